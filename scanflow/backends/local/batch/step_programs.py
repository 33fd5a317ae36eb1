"""The programs of a run's steps: files, functions and interpreters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from scanflow.app.executor import Executor, Target
from scanflow.app.steps import check_parameters
from scanflow.app_files import AppFiles
from scanflow.backends.function_store import build_lost_function_error, is_saved_function
from scanflow.backends.local.layout import Home
from scanflow.backends.local.python_environments import locate_python, normalise_requirements
from scanflow.backends.pickles import read_home_key, read_pickle
from scanflow.backends.run_definition import RunDefinition
from scanflow.errors import InternalError
from scanflow.files.secret_sources import check_secret_sources
from scanflow.loading import load_function

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
            elif (call := node.target.call) is not None:
                check_parameters(call, node.parameters, who=f"Step {node.name!r}")
            elif is_saved_function(node.target.partition(":")[0]):
                self.find_pickled_function(node.target)
            else:
                self.files.find_function_file(node.target, node.name)
            self.choose_python(node)
            sources = [secret.source for secret in node.secrets]
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
