"""What a run is made of, as the journal keeps it: enough to go on with it in another process."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from scanflow.app.executor import Executor
from scanflow.app.files import dump_json, load_json
from scanflow.app.workflow import Workflow
from scanflow.backends.port import RunDefinition
from scanflow.errors import UnsupportedError


class KeptDefinition(BaseModel):
    """A run's definition as text."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    app: str
    """The application as JSON."""

    workflow: str
    parameters: Mapping[str, Any] = Field(default_factory=dict)
    spun: str | None = None
    """The one step, or the one task of it, of a spin; other outputs came from another run."""

    @classmethod
    def of(cls, definition: RunDefinition) -> Self:
        text = dump_json(definition.app.replace(workflows=(definition.workflow,), agents=()))
        return cls(app=text, workflow=definition.workflow.name, parameters=definition.parameters, spun=definition.step)

    def read(self, source: str | None) -> RunDefinition:
        app = load_json(self.app)
        path = None if source is None else Path(source)
        return RunDefinition(app, app.workflow(self.workflow), self.parameters, path, self.spun)


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
        if problem := _problem(node):
            raise UnsupportedError(f"Executor {node.name!r}: the embedded backend cannot honour {problem}")


def ignored_fields(workflow: Workflow) -> tuple[str, ...]:
    """Return what a workflow asks for that this backend does without, each in a few words."""
    return tuple(
        f"{node.name}: image={node.image!r} is not used: steps run with this Python, not in containers"
        for node in workflow.steps
        if node.image is not None
    )


def _problem(node: Executor) -> str | None:
    if node.resources.gpu:
        return "resources.gpu: it hands out cores and memory only. Remove it, or run on Kubernetes."
    affinity = node.affinity
    if affinity is None or isinstance(affinity, str):
        return None
    if affinity.mode != "any":
        return f"affinity: steps are not bound to cores of their own, as {affinity.mode!r} asks. Remove it."
    if affinity.node_selector or affinity.apart_from:
        return "affinity: there is one machine. Remove node_selector and apart_from."
    if affinity.avoid_services and not hasattr(os, "sched_setaffinity"):
        return f"affinity: {platform.system()} binds no process to CPUs. Remove avoid_services."
    return None
