"""The application of a team: workflows and agents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from scanflow.app.agent import Agent
from scanflow.app.model import Model, Whole, as_tuple, find_duplicate, shorten
from scanflow.app.secrets import SecretText
from scanflow.app.webhook import Webhook
from scanflow.app.workflow import Workflow
from scanflow.errors import InvalidError, NotFoundError, did_you_mean
from scanflow.files.secret_sources import is_secret_source
from scanflow.names import MAX_NAME, check_name, format_environment_name


class Tracker(Model):
    """The tracker that an application logs to, and that has its registered models."""

    uri: SecretText | None = None
    """A tracking server or database as MLflow spells it, or a reference to it if it holds a password:
    ``sf.secret("env:NAME")``. Unset: the one inside scanflow's home folder."""

    port: Whole | None = Field(default=None, ge=1, le=65535)
    """The port for a backend that runs the tracker itself."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.uri is not None and self.uri.startswith("file:") and not self.uri.startswith(("file:/", "file:~")):
            raise InvalidError(
                f"Tracker.uri is {self.uri!r}, and its readers work in different folders. Write an absolute path."
            )
        return self

    @property
    def secret(self) -> str | None:
        """The reference to the secret that the address is; None: it is none."""
        return self.uri if self.uri is not None and is_secret_source(self.uri) else None


def _check_folder(value: Any) -> str:
    if not isinstance(value, str | PurePath) or not str(value):
        raise InvalidError(f"app_dir cannot be {shorten(value)}. Write a folder, such as '.'.")
    return str(value)


class Application(Model):
    """An application of one team: workflows, the agents that watch them, and the tracker that they log to.

    Its environment on a backend is named ``scanflow-<name>-<team>``: a Kubernetes namespace, or a folder.
    """

    name: Annotated[str, AfterValidator(lambda name: check_name(name, "application"))]
    """Lower-case letters, digits and ``-``."""

    team: Annotated[str, AfterValidator(lambda team: check_name(team, "team"))] = "default"
    """The team that owns it; lower-case letters, digits and ``-``."""

    app_dir: Annotated[str | Path, BeforeValidator(_check_folder), Field(validate_default=True)] = "."
    """The folder that scripts are relative to. A relative folder is relative to the file that the application was
    loaded from."""

    workflows: Annotated[Sequence[Workflow], AfterValidator(as_tuple)] = ()
    """Batch, online and MPI workflows, each with a name of its own."""

    agents: Annotated[Sequence[Agent], AfterValidator(as_tuple)] = ()
    """The agents that watch the workflows, each with a name of its own."""

    tracker: Tracker | None = None
    """Where steps log. Unset: wherever MLflow itself would."""

    notify: Annotated[Sequence[Webhook], AfterValidator(as_tuple)] = ()
    """Where the server notifies people."""

    backend: str | None = None
    """The backend that its environment is on, by name. ``--backend`` and ``SCANFLOW_BACKEND`` override it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        who = f"Application {self.name!r}"
        if len(self.environment) > MAX_NAME:
            raise InvalidError(
                f"{who}: its environment would be called {self.environment!r}, of {len(self.environment)} characters. "
                f"Kubernetes allows {MAX_NAME}: shorten the name or the team by {len(self.environment) - MAX_NAME}."
            )
        for what, named in (("workflows", self.workflows), ("agents", self.agents)):
            if doubled := find_duplicate(thing.name for thing in named):
                raise InvalidError(f"{who} has two {what} named {doubled!r}. Rename one of them.")
        self._check_online(who)
        nodes = {node.name for workflow in self.workflows for node in workflow.nodes}
        for agent in self.agents if nodes else ():
            for sensor in agent.sensors:
                if unknown := [node for node in sensor.nodes if node not in nodes]:
                    raise InvalidError(
                        f"{who}: the sensor {sensor.name!r} of the agent {agent.name!r} reads {unknown[0]!r}, which is "
                        f"not a node of its workflows.{did_you_mean(unknown[0], nodes)}"
                    )
        return self

    def _check_online(self, who: str) -> None:
        """Check the references to online workflows of the application: backups, and services that steps avoid."""
        online = {workflow.name for workflow in self.workflows if workflow.type == "online"}
        for workflow in self.workflows:
            for step in workflow.steps if online else ():  # what a run keeps of its application has none
                if unknown := [name for name in step.avoid_services if name not in online]:
                    raise InvalidError(
                        f"{who}: the step {step.name!r} has {unknown[0]!r} in apart_from, which is not an online "
                        f"workflow of this application.{did_you_mean(unknown[0], online)}"
                    )
            backup = None if workflow.serving is None else workflow.serving.backup
            if backup is not None and backup not in online:
                raise InvalidError(
                    f"{who}: the backup of the workflow {workflow.name!r} is {backup!r}, which is not another online "
                    f"workflow of this application.{did_you_mean(backup, online - {workflow.name})}"
                )

    @property
    def environment(self) -> str:
        """The name of its environment on a backend: ``scanflow-<name>-<team>``."""
        return format_environment_name(self.name, self.team)

    def workflow(self, name: str | None = None) -> Workflow:
        """Return the named workflow, or the only one; NotFoundError: there is none, or several to choose from."""
        by_name = {workflow.name: workflow for workflow in self.workflows}
        if name is None:
            if len(by_name) == 1:
                return self.workflows[0]
            if not by_name:
                raise NotFoundError(f"Application {self.name!r} has no workflow. Give it one: workflows=[...].")
            raise NotFoundError(
                f"Application {self.name!r} has several workflows: {', '.join(by_name)}. Name one, as in app.py:"
                f"{self.workflows[0].name}"
            )
        if name not in by_name:
            raise NotFoundError(f"Application {self.name!r} has no workflow {name!r}.{did_you_mean(name, by_name)}")
        return by_name[name]

    def with_workflow(self, changed: Workflow) -> Application:
        """Return a copy of the application with this workflow in place of the one of its name."""
        self.workflow(changed.name)
        replaced = tuple(changed if workflow.name == changed.name else workflow for workflow in self.workflows)
        return self.replace(workflows=replaced)
