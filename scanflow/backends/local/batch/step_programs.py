"""The programs of a run's steps: files, functions and interpreters; and the checked run that they belong to."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from scanflow.app.executor import Executor, Target
from scanflow.app.steps import check_parameters
from scanflow.app.workflow import Workflow
from scanflow.app_files import AppFiles
from scanflow.application_loading import load_function
from scanflow.backends.definition import SavedDefinition
from scanflow.backends.function_store import build_lost_function_error, is_saved_function
from scanflow.backends.local.layout import Home
from scanflow.backends.local.python_environments import locate_python, normalise_requirements
from scanflow.backends.pickles import read_home_key, read_pickle
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import TaskRecord
from scanflow.errors import InternalError, UnsupportedError
from scanflow.files.secret_sources import check_secret_sources

_READ_AT_START = ("PYTHON", "LD_", "GLIBC_", "MALLOC_", "LANG", "LC_", "TZ")
"""Variables that an interpreter, or what it is linked with, reads only once, when it starts."""


@dataclass(frozen=True, slots=True)
class Python:
    path: Path
    requirements: tuple[str, ...] | None = None
    """The requirements of its environment; None: it is this process' own."""

    base: Path = Path()
    """The folder that relative paths in the requirements are relative to."""


def can_fork(node: Executor) -> bool:
    """Return whether a step can be a fork of the warm shim: a function that runs with this interpreter, as started."""
    changed = any(name.startswith(_READ_AT_START) for name in node.env)
    # Elsewhere (macOS), system libraries do not survive a fork without an exec.
    own = node.target is not None and not node.in_process
    return own and node.requirements is None and not changed and sys.platform == "linux"


class StepPrograms:
    """Locates what the steps of one definition run; each step's interpreter is chosen once."""

    def __init__(self, definition: RunDefinition, home: Home) -> None:
        self.definition, self.home = definition, home
        self.files = AppFiles(definition.app, definition.workflow)
        self._pythons: dict[str, Python] = {}

    @property
    def app_dir(self) -> Path:
        return self.files.app_dir

    @cached_property
    def key(self) -> bytes:
        """The key that pickles of this home are signed with."""
        return read_home_key(self.home.path)

    @cached_property
    def saved(self) -> SavedDefinition:
        """The definition as it is recorded, with the digests of its functions."""
        return SavedDefinition.from_definition(self.definition)

    @property
    def tracker_secret(self) -> str | None:
        """The reference to the secret that is the tracker's address; None: it has no address, or one that is none."""
        tracker = self.definition.app.tracker
        return None if tracker is None else tracker.secret

    def check(self) -> None:
        """Check that every file of the workflow's steps exists before anything runs.

        Raises:
            NotFoundError: one is missing.
            InvalidError: a step's parameters do not match its function, its requirements cannot be read, or there is no
                secret where it refers to one.
        """
        if (tracker := self.tracker_secret) is not None:
            check_secret_sources([tracker], self.app_dir, who=f"The tracker of {self.definition.app.name!r}")
        for node in self.definition.workflow.steps:
            if node.target is None:
                self.files.find(node.mainfile or "", node.name)
            elif (call := node.target.declared) is not None:
                check_parameters(call, node.parameters, who=f"Step {node.name!r}")
            elif is_saved_function(node.target.partition(":")[0]):
                self.find_pickled_function(node.target)
            else:
                self.files.find_function_file(node.target, node.name)
            self.choose_python(node)
            if sources := [secret.source for secret in node.secrets]:
                check_secret_sources(sources, self.files.app_dir, who=f"Executor {node.name!r}")

    def choose_python(self, node: Executor) -> Python:
        """Return the interpreter of a step, the same for all its tasks; its environment may not exist yet."""
        if node.name not in self._pythons:
            self._pythons[node.name] = self._get_python(node)
        return self._pythons[node.name]

    def _get_python(self, node: Executor) -> Python:
        if node.requirements is None:
            return Python(Path(sys.executable))
        if isinstance(node.requirements, str):
            file = self.files.find(node.requirements, node.name)
            lines, base = file.read_text(encoding="utf-8").splitlines(), file.parent
        else:
            lines, base = list(node.requirements), self.files.app_dir
        requirements = normalise_requirements(lines, with_runtime=node.target is not None)
        return Python(locate_python(self.home.environments, requirements), requirements, base)

    def load_target(self, node: Executor) -> Callable[..., Any]:
        target = node.target
        if target is None:
            raise InternalError(f"The step {node.name!r} is not a function.")
        if target.call is not None:
            return target.call
        if (file := self.find_pickled_function(target)) is not None:
            function: Callable[..., Any] = read_pickle(file, self.key)
            return function
        return load_function(str(target), self.files.find_function_file(target, node.name))

    def find_pickled_function(self, target: Target) -> Path | None:
        """Return the file of a function that was sent by value; None: it is loaded by its name."""
        name = target.partition(":")[0]
        if not is_saved_function(name):
            return None
        if not (file := self.home.functions / name).exists():
            raise build_lost_function_error(target)
        return file


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
