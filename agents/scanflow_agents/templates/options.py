"""What the templates' parameters have in common, and how they are checked when an agent is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import Field

from scanflow.agent.records import Autonomy
from scanflow.app.agents import Agent
from scanflow.app.application import Application
from scanflow.app.model import Model
from scanflow.app.workflow import Workflow
from scanflow.errors import InvalidError, NotFoundError, did_you_mean
from scanflow.knowledge.version_tags import CHAMPION


class Options(Model):
    """Parameters that every template has."""

    interval_s: float = Field(default=3600.0, gt=0)
    """How often it looks, in seconds: Table 5.5's hour. The demo has seconds here."""

    autonomy: Autonomy = "auto"
    """How far its strategies go by themselves."""

    @classmethod
    def of(cls, agent: Agent) -> Self:
        """Return the agent's parameters, with defaults for those it does not say.

        An agent with modules of its own may have parameters for those too, if their names are unlike the template's."""
        given: dict[str, Any] = dict(agent.parameters)
        if agent.modules:
            given = {name: value for name, value in given.items() if name in cls.model_fields or _near(cls, name)}
        unknown = [name for name in given if name not in cls.model_fields]
        who = f"Agent {agent.name!r} (template {agent.template or cls.__name__.removesuffix('Options').lower()!r})"
        if unknown:
            raise InvalidError(f"{who} has no parameter {unknown[0]!r}.{did_you_mean(unknown[0], cls.model_fields)}")
        try:
            return cls(**given)
        except InvalidError as error:
            lines = str(error).splitlines()
            raise InvalidError("\n".join(line.replace(cls.__name__, who, 1) for line in lines)) from error


class Starting(Options):
    """Parameters of strategies that start runs."""

    cool_down_s: float = Field(default=300.0, ge=0)
    """How long it waits after it began one, in seconds."""

    budget_window_s: float = Field(default=86_400.0, gt=0)
    """The time that its budget is for, in seconds: a day."""


class OfModel(Options):
    """Parameters of strategies about the model that a service answers with."""

    service: str | None = None
    """The online workflow with the model. None: the application's only one."""

    node: str | None = None
    """Its node with the model. None: the only one of a registered model."""

    model_name: str | None = None
    """The model. None: that node's."""

    alias: str = CHAMPION
    """What names the version in use."""


class Watching(Options):
    """Parameters of strategies about how a service runs."""

    watch_interval_s: float = Field(default=60.0, gt=0)
    """How often the service is looked at, in seconds."""

    watch_cool_down_s: float = Field(default=120.0, ge=0)
    """How long scaling and placement are left alone after a change, in seconds."""


def agent_named(app: Application, agent: Agent, name: str, parameter: str) -> str:
    names = [one.name for one in app.agents]
    if name not in names:
        raise _not_there(app, agent, f"agent {name!r}", parameter, name, names)
    return name


def workflow_named(app: Application, agent: Agent, name: str, parameter: str, *, online: bool = False) -> Workflow:
    """Return a workflow of the application, a batch one unless ``online``."""
    fitting = {one.name: one for one in app.workflows if (one.type == "online") == online}
    if name not in fitting:
        kind = "online" if online else "batch"
        raise _not_there(app, agent, f"{kind} workflow {name!r}", parameter, name, fitting)
    return fitting[name]


def service_named(app: Application, agent: Agent, name: str | None, parameter: str = "service") -> Workflow:
    """Return the online workflow that is meant: the one named, or the application's only one."""
    online = [one.name for one in app.workflows if one.type == "online"]
    if name is None and len(online) != 1:
        raise InvalidError(
            f"Agent {agent.name!r}: the application {app.name!r} has {len(online)} online workflows. Say which is "
            f"meant: parameters={{{parameter!r}: ...}}"
        )
    return workflow_named(app, agent, online[0] if name is None else name, parameter, online=True)


def model_named(agent: Agent, service: Workflow, node: str | None) -> tuple[str, str]:
    """Return the node of a service that is a registered model, and the model's name."""
    models = {one.name: one.model for one in service.services if one.model is not None}
    if node is None and len(models) != 1:
        raise InvalidError(
            f"Agent {agent.name!r}: {len(models)} nodes of {service.name!r} are models of the registry. Say which is "
            "meant: parameters={'node': ...}"
        )
    name = next(iter(models)) if node is None else node
    if name not in models:
        raise InvalidError(
            f"Agent {agent.name!r}: {service.name!r} has no node {name!r} that is a model of the registry."
            f"{did_you_mean(name, models)}"
        )
    return name, models[name].removeprefix("models:/").partition("@")[0].partition("/")[0]


def takes(agent: Agent, workflow: Workflow, parameters: Mapping[str, Any]) -> None:
    """Check that the workflow has these parameters, so that a wrong name is told before anything has drifted."""
    try:
        workflow.with_parameters(parameters)
    except NotFoundError as error:
        raise InvalidError(
            f"Agent {agent.name!r} runs {workflow.name!r} with {', '.join(map(repr, parameters))}. {error}"
        ) from error


def has_parameter(workflow: Workflow, name: str) -> bool:
    try:
        workflow.with_parameters({name: ""})
    except NotFoundError:
        return False
    return True


def _near(cls: type[Options], name: str) -> bool:
    return did_you_mean(name, cls.model_fields).startswith(" Did you mean")


def _not_there(
    app: Application, agent: Agent, what: str, parameter: str, name: str, known: Iterable[str]
) -> InvalidError:
    return InvalidError(
        f"Agent {agent.name!r}: the application {app.name!r} has no {what}.{did_you_mean(name, known)} Say which is "
        f"meant: parameters={{{parameter!r}: ...}}"
    )
