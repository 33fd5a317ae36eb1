"""Preparation of tasks: interpreters, attempt folders, functions, cache keys."""

from __future__ import annotations

import inspect
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from scanflow.app.executor import Executor, Target
from scanflow.app.inherited_secrets import list_inherited_sources
from scanflow.app.parameters import select_secrets
from scanflow.app.steps import check_parameters
from scanflow.app_files import AppFiles
from scanflow.backends import function_process, script_process
from scanflow.backends.function_store import build_lost_function_error, is_saved_function
from scanflow.backends.local.environments import locate_python, normalise_requirements
from scanflow.backends.local.layout import Home, RunFolder
from scanflow.backends.local.services.grants import find_cpus_avoiding
from scanflow.backends.local.services.layout import ServicesHome
from scanflow.backends.parameter_secrets import take_secrets
from scanflow.backends.parameters import Resolved, StepInputs
from scanflow.backends.pickles import read_home_key, read_pickle, read_signed
from scanflow.backends.port import Environment
from scanflow.backends.records import TaskRecord
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.secret_process import SecretRequest
from scanflow.backends.step_process import (
    build_step_env,
    iterate_options,
    list_options_with_secrets,
    list_secret_sources,
)
from scanflow.backends.tasks import split_task
from scanflow.backends.values import Outputs, encode
from scanflow.errors import InternalError, NotFoundError
from scanflow.files.private import create_private_folder
from scanflow.files.secret_sources import check_secret_sources, read_secret_source
from scanflow.loading import load_function
from scanflow.names import StepName
from scanflow.placement.sysfs import read_topology
from scanflow.processes.shims import Spec, create_attempt_folder

if TYPE_CHECKING:  # most runs cache nothing
    from scanflow.backends.step_cache import CacheKey, CacheKeys, CodeLocation

SEEN_OUTPUTS = 512
_TRACKER_VARIABLES = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")
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
        self._inherited = sorted({*definition.inherited, *list_inherited_sources(definition.app)})
        read = lru_cache(maxsize=SEEN_OUTPUTS)(self._read_outputs)
        self.inputs = StepInputs(definition, read=read, outputs=folder.outputs, max_fan_out=max_fan_out)

    @property
    def _tracker_secret(self) -> str | None:
        return None if self._app.tracker is None else self._app.tracker.secret

    @property
    def app_dir(self) -> Path:
        return self._files.app_dir

    @cached_property
    def key(self) -> bytes:
        """The key that pickles of this home are signed with."""
        return read_home_key(self._home.path)

    @cached_property
    def cache_keys(self) -> CacheKeys:
        from scanflow.backends.step_cache import CacheKeys

        return CacheKeys(self._files.app_dir)

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

    def compute_cache_key(self, node: Executor, parameters: Resolved, python: Python) -> CacheKey:
        """Return the key of a task's outputs.

        Raises:
            UnknownContentError: something that they depend on cannot be known.
        """
        from scanflow.backends.local.batch.loaded_code import find_stale_file
        from scanflow.backends.step_cache import UnknownContentError

        key = self.cache_keys.compute(
            node,
            self._describe_code(node, python),
            {**parameters.value, **self._find_paths(node, parameters.value)},
            exact=parameters.exact,
            requirements=python.requirements or (),
            requirements_folder=python.base,
            outputs=self._folder.outputs,
        )
        if node.in_process and (stale := find_stale_file(key.code)) is not None:
            raise UnknownContentError(f"{stale} was changed after this program loaded it. Start the program again")
        return key

    def prepare(
        self,
        node: Executor,
        task: StepName,
        attempt: int,
        parameters: Resolved,
        python: Python,
        *,
        devices: Mapping[str, str],
    ) -> Path:
        """Write an attempt's folder. ``devices``: the variables that show it its GPUs."""
        outputs = self.clean_outputs(task, attempt)
        folder = self._folder.get_attempt_folder(task, attempt)
        create_private_folder(folder)
        env, variables = {**self.build_env(node, task, outputs), **devices}, select_secrets(node.env)
        secrets = list_secret_sources(node, self._inherited)
        if (tracker := self._tracker_secret) is not None:
            secrets = sorted({*secrets, tracker})
            address = read_secret_source(tracker, self.app_dir).strip().rstrip("/")
            named = [name for name in _TRACKER_VARIABLES if env.get(name) == address]
            variables |= dict.fromkeys(named, tracker)  # and not in the folder of the attempt
            env = {name: value for name, value in env.items() if name not in named}
        request = None
        if node.target is None:
            argv = self._build_script_command(node, parameters, python, folder, variables, secrets)
        else:
            rest, places = take_secrets(parameters.value) if node.secrets else (parameters.value, [])
            request, file = folder / "request.json", self._files.find_function_file(node.target, node.name)
            by_value = self._find_pickled_function(node.target)
            function_process.FunctionRequest(
                name=str(node.target),
                who=f"Step {node.name!r}",
                file=str(file) if file else None,
                by_value=str(by_value) if by_value else None,
                # A step's own environment has its own packages.
                path=None if python.requirements is not None else self._build_module_path(by_value),
                parameters=encode(rest, folder, self.key),
                exact=parameters.exact,
                key=self.key.hex(),
                secrets=places,
                variables=variables,
                masked=secrets,
                folder=str(self.app_dir),
            ).write(request)
            argv = [str(python.path), function_process.__file__, str(request)]
        by_fork = str(request) if request and can_fork(node) else None
        cwd = str(self.app_dir)
        spec = Spec(argv=argv, cwd=cwd, request=by_fork, env=env, cpus=self._find_cpus(node), timeout_s=node.timeout_s)
        return create_attempt_folder(folder, spec)

    def _build_script_command(
        self,
        node: Executor,
        parameters: Resolved,
        python: Python,
        folder: Path,
        variables: Mapping[str, str],
        secrets: Sequence[str],
    ) -> list[str]:
        mainfile, who = self._files.find(node.mainfile or "", node.name), f"Executor {node.name!r}"
        options = None
        if node.secrets and take_secrets(parameters.value)[1]:
            argv = [str(python.path), script_process.__file__, str(mainfile)]
            options = list_options_with_secrets(parameters.value, who=who)
        else:
            argv = [str(python.path), str(mainfile), *iterate_options(parameters.value, who=who)]
        if not secrets:
            return argv
        request = SecretRequest(
            argv=argv, folder=str(self.app_dir), variables=variables, masked=secrets, options=options
        )
        return request.write(folder / "secrets.json")

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

    def delete_task(self, task: StepName) -> None:
        """Delete what a task left that the run has no more: another may get its name."""
        for folder in (self._folder.get_outputs_folder(task), self._folder.get_attempts_folder(task)):
            shutil.rmtree(folder, ignore_errors=True)

    def check(self) -> None:
        """Check that every file of the workflow's steps exists before anything runs.

        Raises:
            NotFoundError: one is missing.
            InvalidError: a step's parameters do not match its function, its requirements cannot be read, or there is no
                secret where it refers to one.
        """
        if (tracker := self._tracker_secret) is not None:
            check_secret_sources([tracker], self.app_dir, who=f"The tracker of {self._app.name!r}")
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
            sources = [secret.source for secret in node.secrets]
            check_secret_sources(sources, self._files.app_dir, who=f"Executor {node.name!r}")

    def list_edited_files(self, finished: Iterable[TaskRecord]) -> list[tuple[str, str]]:
        """Return the finished steps of which own files were written after they ended, each with one of these files.

        A function's own file is left out: others are in it, and what it does is compared by itself.
        """
        ended: dict[str, float] = {}
        for record in finished:
            end = (record.began or 0.0) + (record.seconds or 0.0)
            ended[record.step] = min(end, ended.get(record.step, end))
        steps = [node for node in self._workflow.steps if node.name in ended]
        edited = {node.name: self._find_newer_file(node, ended[node.name]) for node in steps}
        return [(step, file) for step, file in sorted(edited.items()) if file is not None]

    def _find_newer_file(self, node: Executor, ended: float) -> str | None:
        from scanflow.backends.step_cache import UnknownContentError

        try:
            code = self._describe_code(node, self.choose_python(node))
            read = map(Path, self.cache_keys.trace(node, code, trusting=True).read)
        except UnknownContentError:
            return None
        files = [file for file in read if node.target is None or file != code.file]
        return next((file.name for file in files if file.stat().st_mtime > ended), None)

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

    def _describe_code(self, node: Executor, python: Python) -> CodeLocation:
        from scanflow.backends.step_cache import CodeLocation

        installed = None
        if python.requirements is not None:
            installed = tuple(python.path.parent.parent.glob("lib/python*/site-packages"))
        target = node.target
        if target is None:
            name = node.mainfile or ""
            return CodeLocation(name, self._files.find(name, node.name), installed=installed)
        module, _, name = target.partition(":")
        defaults = None if target.call is None else _list_defaults(target.call)
        if (stored := self._find_pickled_function(target)) is not None:
            return CodeLocation(name, pickled=read_signed(stored, self.key), defaults=defaults, installed=installed)
        file = self._files.find_function_file(target, node.name)
        if file is not None:  # of a decorated function, perhaps the decorator's
            modules = (module.removesuffix(".py"),)
            return CodeLocation(str(target), file, modules=modules, defaults=defaults, installed=installed)
        function = self.load_target(node)
        place = getattr(sys.modules.get(getattr(function, "function", function).__module__), "__file__", None)
        file = Path(place) if place else None
        return CodeLocation(str(target), file, modules=(module,), defaults=defaults, installed=installed)

    def _find_paths(self, node: Executor, parameters: Mapping[str, Any]) -> dict[str, PurePath]:
        """Return the parameters that are text in the definition, and paths by their annotations."""
        if node.target is None or node.target.call is None:
            return {}
        try:
            checked = check_parameters(node.target.call, parameters, who=f"Step {node.name!r}")
        except Exception:  # noqa: BLE001  whatever an own type raises: the step itself says so
            return {}
        return {name: value for name, value in checked.items() if isinstance(value, PurePath)}

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


def _list_defaults(call: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of a function's parameters that may name files."""
    parameters = inspect.signature(getattr(call, "function", call)).parameters.values()
    kinds = (str, PurePath, list, tuple, Mapping)
    return {parameter.name: parameter.default for parameter in parameters if isinstance(parameter.default, kinds)}
