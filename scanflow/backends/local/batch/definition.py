"""What a run is made of, as the journal keeps it: enough to go on with it in another process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from scanflow.app.application import Application
from scanflow.app.executor import Executor
from scanflow.app.files import dump_json, load_json
from scanflow.app.workflow import Workflow
from scanflow.errors import UnsupportedError
from scanflow.names import StepName


class Definition(BaseModel):
    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    app: str
    """The application as JSON."""

    workflow: str
    parameters: Mapping[str, Any] = Field(default_factory=dict)
    """Changes asked for when the run was started; applied again when its file is read again."""

    spun: StepName | None = None
    """The one step to run, or the one task of it, where the run is a spin; other outputs came from another run."""

    @classmethod
    def of(
        cls, app: Application, workflow: Workflow, *, parameters: Mapping[str, Any], spun: StepName | None = None
    ) -> Self:
        text = dump_json(app.replace(workflows=(workflow,), agents=()))
        return cls(app=text, workflow=workflow.name, parameters=parameters, spun=spun)

    def read(self) -> tuple[Application, Workflow]:
        app = load_json(self.app)
        return app, app.workflow(self.workflow)


def check_supported(workflow: Workflow) -> None:
    """Refuse what this backend cannot honour.

    Raises:
        UnsupportedError: names the field.
    """
    if workflow.type != "batch":
        raise UnsupportedError(
            f"Workflow {workflow.name!r} is of type {workflow.type!r}; the embedded backend runs 'batch' only."
        )
    for node in workflow.steps:
        for field, problem in _problems(node):
            raise UnsupportedError(f"Executor {node.name!r}: the embedded backend cannot honour {field}: {problem}")


def ignored_fields(workflow: Workflow) -> tuple[str, ...]:
    """Return what a workflow asks for that this backend does without, each in a few words."""
    return tuple(
        f"{node.name}: image={node.image!r} is not used: steps run with this Python, not in containers"
        for node in workflow.steps
        if node.image is not None
    )


def _problems(node: Executor) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if node.resources.gpu:
        found.append(("resources.gpu", "it hands out cores and memory only. Remove it, or run on Kubernetes."))
    affinity = node.affinity
    if affinity is not None and not isinstance(affinity, str):
        if affinity.mode != "any":
            found.append(("affinity", f"steps are not bound to cores yet, as {affinity.mode!r} asks. Remove it."))
        if affinity.node_selector or affinity.apart_from:
            found.append(("affinity", "there is one machine. Remove node_selector and apart_from."))
    return found
