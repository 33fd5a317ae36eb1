"""The common parameters of the templates, and their validation when an agent is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import Field

from scanflow.agent.agent_records import Autonomy
from scanflow.app.agent import Agent
from scanflow.app.application import Application
from scanflow.app.model import Model, Whole
from scanflow.app.workflow import Workflow
from scanflow.errors import InvalidError, NotFoundError, did_you_mean
from scanflow.knowledge.version_tags import CHAMPION

DAY_S = 86_400.0


class Options(Model):
    """Parameters that every template has."""

    interval_s: float = Field(default=3600.0, gt=0)
    """The interval of its sensors, in seconds: an hour as in Table 5.5. The demo uses seconds."""

    autonomy: Autonomy = "auto"
    """The autonomy of its strategies."""

    @classmethod
    def from_agent(cls, agent: Agent) -> Self:
        """Build the options from an agent's parameters, with defaults for the others.

        An agent with its own modules may have parameters for those too, if their names differ enough from the
        template's."""
        parameters: dict[str, Any] = dict(agent.parameters)
        if agent.modules:
            parameters = {
                name: value for name, value in parameters.items() if name in cls.model_fields or _is_near(cls, name)
            }
        unknown = [name for name in parameters if name not in cls.model_fields]
        who = f"Agent {agent.name!r} (template {agent.template or cls.__name__.removesuffix('Options').lower()!r})"
        if unknown:
            raise InvalidError(f"{who} has no parameter {unknown[0]!r}.{did_you_mean(unknown[0], cls.model_fields)}")
        try:
            return cls(**parameters)
        except InvalidError as error:
            lines = str(error).splitlines()
            raise InvalidError("\n".join(line.replace(cls.__name__, who, 1) for line in lines)) from error


def bound_call(autonomy: Autonomy) -> Autonomy:
    """Return the autonomy of a strategy that calls another agent: what follows from it is that agent's to limit."""
    return "observe" if autonomy == "observe" else "auto"


class RunOptions(Options):
    """Parameters of strategies that start runs."""

    cool_down_s: float = Field(default=300.0, ge=0)
    """How long it waits after starting one, in seconds."""

    budget_window_s: float = Field(default=DAY_S, gt=0)
    """The period of its budget, in seconds: a day."""

    budget: Whole = Field(default=4, ge=1)
    """The most runs in ``budget_window_s``: four a day."""

    @property
    def limits(self) -> dict[str, Any]:
        """The fields of such a strategy."""
        return {"autonomy": self.autonomy, "budget": self.budget, "budget_window": self.budget_window_s}


class ModelOptions(Options):
    """Parameters of strategies on the model of a service."""

    service: str | None = None
    """The online workflow with the model. None: the application's only one."""

    node: str | None = None
    """Its node with the model. None: the only one of a registered model."""

    model_name: str | None = None
    """The model. None: that node's."""

    alias: str = CHAMPION
    """The alias of the version in use."""


class WatchOptions(Options):
    """Parameters of strategies on the operation of a service."""

    watch_interval_s: float = Field(default=60.0, gt=0)
    """The interval of checks of the service, in seconds."""

    watch_cool_down_s: float = Field(default=120.0, ge=0)
    """How long scaling and placement stay unchanged after a change, in seconds."""


def check_agent(app: Application, agent: Agent, name: str, parameter: str) -> str:
    names = [other.name for other in app.agents]
    if name not in names:
        raise _build_missing_error(app, agent, f"agent {name!r}", parameter, name, names)
    return name


def find_checked_model(app: Application, checker: str) -> str | None:
    """Return the model of which a checker's workflow detects the drift; None: that is not known."""
    agents = [agent for agent in app.agents if agent.name == checker]
    names = {agent.parameters.get("detector_workflow", "detector") for agent in agents}
    steps = [step for workflow in app.workflows if workflow.name in names for step in workflow.steps]
    models = (step.parameters.get("model_name") for step in steps)
    return next((model for model in models if isinstance(model, str)), None)


def get_workflow(app: Application, agent: Agent, name: str, parameter: str, *, online: bool = False) -> Workflow:
    """Return a workflow of the application, a batch one unless ``online``."""
    fitting = {workflow.name: workflow for workflow in app.workflows if (workflow.type == "online") == online}
    if name not in fitting:
        kind = "online" if online else "batch"
        raise _build_missing_error(app, agent, f"{kind} workflow {name!r}", parameter, name, fitting)
    return fitting[name]


def get_service_workflow(app: Application, agent: Agent, name: str | None) -> Workflow:
    """Return the online workflow with a name, or the application's only one."""
    online = [workflow.name for workflow in app.workflows if workflow.type == "online"]
    if name is None and len(online) != 1:
        raise InvalidError(
            f"Agent {agent.name!r}: the application {app.name!r} has {len(online)} online workflows. Choose one: "
            "parameters={'service': ...}"
        )
    return get_workflow(app, agent, online[0] if name is None else name, "service", online=True)


def get_model_node(agent: Agent, service: Workflow, node: str | None) -> tuple[str, str]:
    """Return the node of a service with a registered model, and the model's name."""
    models = {
        service_node.name: service_node.model for service_node in service.services if service_node.model is not None
    }
    if not models:
        raise InvalidError(
            f"Agent {agent.name!r}: no node of {service.name!r} is a model of the registry. Name another online "
            "workflow: parameters={'service': ...}, or give its node one: model='models:/NAME@champion'"
        )
    if node is None and len(models) != 1:
        raise InvalidError(
            f"Agent {agent.name!r}: {len(models)} nodes of {service.name!r} are models of the registry. Choose one: "
            "parameters={'node': ...}"
        )
    name = next(iter(models)) if node is None else node
    if name not in models:
        raise InvalidError(
            f"Agent {agent.name!r}: {service.name!r} has no node {name!r} that is a model of the registry."
            f"{did_you_mean(name, models)}"
        )
    return name, models[name].removeprefix("models:/").partition("@")[0].partition("/")[0]


def check_parameters(agent: Agent, workflow: Workflow, parameters: Mapping[str, Any]) -> None:
    """Check that these parameters can be set in the workflow, so that a wrong name is an error at loading time."""
    try:
        workflow.with_parameters(parameters)
    except (NotFoundError, InvalidError) as error:
        raise InvalidError(
            f"Agent {agent.name!r} runs {workflow.name!r} with {', '.join(map(repr, parameters))}. {error}"
        ) from error


def has_parameter(workflow: Workflow, name: str) -> bool:
    """Return whether a workflow has a parameter that can be set by this name."""
    try:
        workflow.with_parameters({name: ""})
    except (NotFoundError, InvalidError):
        return False
    return True


def _is_near(cls: type[Options], name: str) -> bool:
    return did_you_mean(name, cls.model_fields).startswith(" Did you mean")


def _build_missing_error(
    app: Application, agent: Agent, what: str, parameter: str, name: str, names: Iterable[str]
) -> InvalidError:
    return InvalidError(
        f"Agent {agent.name!r}: the application {app.name!r} has no {what}.{did_you_mean(name, names)} Choose one: "
        f"parameters={{{parameter!r}: ...}}"
    )
