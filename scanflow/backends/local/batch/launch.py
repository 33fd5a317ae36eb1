"""Preparation of tasks: interpreters, attempt folders, functions, cache keys."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import cloudpickle

from scanflow.app.executor import Executor, Target
from scanflow.app.steps import check_parameters
from scanflow.app_files import AppFiles
from scanflow.backends import function_process
from scanflow.backends.function_store import build_lost_function_error, is_saved_function
from scanflow.backends.local.environments import locate_python, normalise_requirements
from scanflow.backends.local.layout import Home, RunFolder
from scanflow.backends.local.services.grants import find_cpus_avoiding
from scanflow.backends.local.services.layout import ServicesHome
from scanflow.backends.parameters import StepInputs
from scanflow.backends.pickles import read_home_key, read_pickle
from scanflow.backends.port import Environment, RunDefinition
from scanflow.backends.step_cache import cache_key
from scanflow.backends.step_process import build_step_env, iterate_options
from scanflow.backends.tasks import split_task
from scanflow.backends.values import Outputs, encode
from scanflow.errors import InternalError, NotFoundError
from scanflow.files.private import create_private_folder
from scanflow.loading import load_function
from scanflow.names import StepName
from scanflow.placement.sysfs import read_topology
from scanflow.processes.shims import Spec, create_attempt_folder

SEEN_OUTPUTS = 512
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


class Launcher:
    """Prepares the tasks of one run: reads earlier outputs and writes attempt folders; starts nothing."""

    def __init__(
        self, definition: RunDefinition, folder: RunFolder, *, home: Home, max_fan_out: int, tracking: Environment
    ) -> None:
        self._app, self._workflow, self._tracking = definition.app, definition.workflow, tracking
        self._home, self._folder, self._files = home, folder, AppFiles(definition.app, definition.workflow)
        self._pythons: dict[str, Python] = {}
        read = lru_cache(maxsize=SEEN_OUTPUTS)(self._read_outputs)
        self.inputs = StepInputs(definition, read=read, outputs=folder.outputs, max_fan_out=max_fan_out)

    @property
    def app_dir(self) -> Path:
        return self._files.app_dir

    @cached_property
    def key(self) -> bytes:
        """The key that pickles of this home are signed with."""
        return read_home_key(self._home.path)

    def choose_python(self, node: Executor) -> Python:
        """Return the interpreter of a step, the same for all its tasks; its environment may not exist yet."""
        if node.name not in self._pythons:
            self._pythons[node.name] = self._find_python(node)
        return self._pythons[node.name]

    def _find_python(self, node: Executor) -> Python:
        if node.requirements is None:
            return Python(Path(sys.executable))
        if isinstance(node.requirements, str):
            file = self._files.find(node.requirements, node.name)
            lines, base = file.read_text(encoding="utf-8").splitlines(), file.parent
        else:
            lines, base = list(node.requirements), self._files.app_dir
        requirements = normalise_requirements(lines, with_runtime=node.target is not None)
        return Python(locate_python(self._home.environments, requirements), requirements, base)

    def cache_key(self, node: Executor, parameters: Mapping[str, Any], python: Python) -> str:
        code, name = self._build_code(node)
        return cache_key(
            code=code,
            name=name,
            parameters=parameters,
            requirements="\n".join(python.requirements or ()),
            version=node.cache if isinstance(node.cache, str) else "",
            outputs=self._folder.outputs,
        )

    def prepare(
        self, node: Executor, task: StepName, attempt: int, parameters: Mapping[str, Any], python: Python
    ) -> Path:
        outputs = self.clean_outputs(task, attempt)
        folder = self._folder.get_attempt_folder(task, attempt)
        create_private_folder(folder)
        request = None
        if node.target is None:
            mainfile = self._files.find(node.mainfile or "", node.name)
            argv = [str(python.path), str(mainfile), *iterate_options(parameters, who=f"Executor {node.name!r}")]
        else:
            request, file = folder / "request.json", self._files.find_function_file(node.target, node.name)
            by_value = self._find_pickled_function(node.target)
            function_process.FunctionRequest(
                name=str(node.target),
                who=f"Step {node.name!r}",
                file=str(file) if file else None,
                by_value=str(by_value) if by_value else None,
                # A step's own environment has its own packages.
                path=None if python.requirements is not None else self._build_module_path(by_value),
                parameters=encode(dict(parameters), folder, self.key),
                key=self.key.hex(),
            ).write(request)
            argv = [str(python.path), function_process.__file__, str(request)]
        env = self.build_env(node, task, outputs)
        by_fork = str(request) if request and can_fork(node) else None
        cwd = str(self.app_dir)
        spec = Spec(argv=argv, cwd=cwd, request=by_fork, env=env, cpus=self._find_cpus(node), timeout_s=node.timeout_s)
        return create_attempt_folder(folder, spec)

    def _find_cpus(self, node: Executor) -> tuple[int, ...]:
        if not node.avoid_services:
            return ()
        return find_cpus_avoiding(ServicesHome(self._home.path / "services"), node.avoid_services, read_topology())

    def _build_module_path(self, by_value: Path | None) -> list[str]:
        """Return the module search path of a function. Loading a file adds its folder; by value, add the app's."""
        app_folder = [] if by_value is None else [str(self._files.app_dir)]
        return [*app_folder, *(entry or str(Path.cwd()) for entry in sys.path)]

    def clean_outputs(self, task: StepName, attempt: int) -> Path:
        """Return a task's output folder, emptied of an earlier attempt's files."""
        outputs = self._folder.get_outputs_folder(task)
        link = self._folder.outputs / split_task(task)[0]
        if link.is_symlink() and not link.exists():  # a spin's input, whose run is gone
            link.unlink()
        if attempt > 1:
            shutil.rmtree(outputs, ignore_errors=True)
        create_private_folder(outputs)
        return outputs

    def check(self) -> None:
        """Check that every file of the workflow's steps exists before anything runs.

        Raises:
            NotFoundError: one is missing.
            InvalidError: a step's parameters do not match its function, or its requirements cannot be read.
        """
        for node in self._workflow.steps:
            if node.target is None:
                self._files.find(node.mainfile or "", node.name)
            elif (call := node.target.call) is not None:
                check_parameters(call, node.parameters, who=f"Step {node.name!r}")
            elif is_saved_function(node.target.partition(":")[0]):
                self._find_pickled_function(node.target)
            else:
                self._files.find_function_file(node.target, node.name)
            self.choose_python(node)

    def load_target(self, node: Executor) -> Callable[..., Any]:
        target = node.target
        if target is None:
            raise InternalError(f"The step {node.name!r} is not a function.")
        if target.call is not None:
            return target.call
        if (file := self._find_pickled_function(target)) is not None:
            function: Callable[..., Any] = read_pickle(file, self.key)
            return function
        return load_function(str(target), self._files.find_function_file(target, node.name))

    def _find_pickled_function(self, target: Target) -> Path | None:
        """Return the file of a function that was sent by value; None: it is loaded by its name."""
        name = target.partition(":")[0]
        if not is_saved_function(name):
            return None
        if not (file := self._home.functions / name).exists():
            raise build_lost_function_error(target)
        return file

    def _build_code(self, node: Executor) -> tuple[Path | bytes, str]:
        if node.target is None:
            return self._files.find(node.mainfile or "", node.name), node.mainfile or ""
        file = self._files.find_function_file(node.target, node.name)
        if file is not None:
            return file, str(node.target)
        if node.target.call is None and (stored := self._find_pickled_function(node.target)) is not None:
            return stored, str(node.target)
        function = self.load_target(node)
        plain = getattr(function, "function", function)
        own = None if plain.__module__ == "__main__" else getattr(sys.modules.get(plain.__module__), "__file__", None)
        return (Path(own) if own else cloudpickle.dumps(plain)), str(node.target)

    def build_env(self, node: Executor, task: StepName, outputs: Path) -> dict[str, str]:
        """Return the environment variables that a step gets in addition to its runner's."""
        run = self._folder.path.name
        variables = build_step_env(self._app, self._workflow.name, run, node, task, outputs, tracking=self._tracking)
        return {"SCANFLOW_HOME": str(self._home.path), **variables}  # for steps that run scanflow's own commands

    def _read_outputs(self, task: StepName) -> Outputs:
        folder = self._folder.get_outputs_folder(task)
        if not folder.exists():
            raise NotFoundError(f"The outputs of {split_task(task)[0]!r} are gone: {str(folder)!r}. Start a new run.")
        return Outputs(folder, self.key)
