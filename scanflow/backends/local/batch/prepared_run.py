"""A run that was checked, as what enters and drives it in the same process takes it; and what is refused here."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

from scanflow.app.executor import Executor
from scanflow.app.workflow import Workflow
from scanflow.backends.local.batch.step_programs import StepPrograms
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import TaskRecord
from scanflow.errors import UnsupportedError


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun(RunDefinition):
    """The definition of a run with what its check has made, so that it is made once."""

    programs: StepPrograms
    """The programs of its steps. Their definition is what is run: a batch workflow, of a spin the steps it needs."""

    inputs: Sequence[TaskRecord] = ()
    """The tasks of the past run that wrote a spin's inputs."""

    @classmethod
    def create(cls, definition: RunDefinition, programs: StepPrograms, inputs: Sequence[TaskRecord] = ()) -> Self:
        values = {field.name: getattr(definition, field.name) for field in fields(RunDefinition)}
        return cls(**values, programs=programs, inputs=inputs)


def check_supported(workflow: Workflow) -> None:
    """Reject fields that this backend does not support.

    Raises:
        UnsupportedError: names the field.
    """
    if workflow.type != "batch":
        raise UnsupportedError(
            f"Workflow {workflow.name!r} is of type {workflow.type!r}; the embedded backend runs 'batch' and 'mpi'."
        )
    for node in workflow.steps:
        if problem := _find_problem(node):
            raise UnsupportedError(f"Executor {node.name!r}: the embedded backend does not support {problem}")


def list_ignored_fields(workflow: Workflow) -> tuple[str, ...]:
    """Return short descriptions of a workflow's fields that this backend ignores."""
    return tuple(
        f"{node.name}: image={node.image!r} is not used: steps run with this Python, not in containers"
        for node in workflow.steps
        if node.image is not None
    )


def _find_problem(node: Executor) -> str | None:
    affinity = node.affinity
    if affinity is None or isinstance(affinity, str):
        return None
    if affinity.mode != "any":
        return f"affinity: steps get no exclusive cores, which {affinity.mode!r} requests. Remove it."
    if affinity.node_selector or affinity.apart_from:
        return "affinity: there is one machine. Remove node_selector and apart_from."
    if affinity.avoid_services and not hasattr(os, "sched_setaffinity"):
        return f"affinity: {platform.system()} cannot bind processes to CPUs. Remove avoid_services."
    return None
