"""The cache keys of one run's tasks, and which of its steps were edited. Imported where a step is cached, or kept."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

from scanflow.app.executor import Executor
from scanflow.app.steps import check_parameters, get_exact_defaults
from scanflow.backends.local.batch.step_programs import StepPrograms
from scanflow.backends.pickles import read_signed
from scanflow.backends.run_records import TaskRecord
from scanflow.backends.step_cache import CacheKey, CacheKeys, CodeLocation, UnknownContentError
from scanflow.backends.task_parameters import Resolved
from scanflow.modules import find_loaded_version, read_file_version
from scanflow.processes.proc_stat import compute_start_time

STARTUP_S = 0.05
"""A process loads no code of the user's in this time after its start, which is known to 10 ms."""


class StepKeys:
    """Computes the keys of the outputs of a run's tasks. Not thread-safe."""

    def __init__(self, programs: StepPrograms, outputs: Path) -> None:
        """``outputs``: the folder of the run's outputs."""
        self._programs, self._outputs = programs, outputs
        self.cache_keys = CacheKeys(programs.app_dir)

    def compute(self, node: Executor, parameters: Resolved) -> CacheKey:
        """Return the key of a task's outputs.

        Raises:
            UnknownContentError: something that they depend on cannot be known.
        """
        python = self._programs.choose_python(node)
        key = self.cache_keys.compute(
            node,
            self._describe_code(node),
            {**_list_exact_defaults(node), **parameters.value, **_list_path_parameters(node, parameters.value)},
            exact=parameters.exact,
            requirements=python.requirements or (),
            requirements_folder=python.base,
            outputs=self._outputs,
        )
        if node.in_process and (stale := find_stale_file(key.code)) is not None:
            raise UnknownContentError(f"{stale} was changed after this program loaded it. Start the program again")
        return key

    def list_edited_files(self, finished: Iterable[TaskRecord]) -> list[tuple[str, str]]:
        """Return the finished steps of which own files were written after they ended, each with one of these files.

        A function's own file is left out: others are in it, and what it does is compared by itself.
        """
        ended: dict[str, float] = {}
        for record in finished:
            end = (record.began or 0.0) + (record.seconds or 0.0)
            ended[record.step] = min(end, ended.get(record.step, end))
        steps = [node for node in self._programs.definition.workflow.steps if node.name in ended]
        edited = {node.name: self._find_newer_file(node, ended[node.name]) for node in steps}
        return [(step, file) for step, file in sorted(edited.items()) if file is not None]

    def _find_newer_file(self, node: Executor, ended: float) -> str | None:
        try:
            code = self._describe_code(node)
            read = map(Path, self.cache_keys.trace(node, code, trusting=True).read)
        except UnknownContentError:
            return None
        files = [file for file in read if node.target is None or file != code.file]
        return next((file.name for file in files if file.stat().st_mtime > ended), None)

    def _describe_code(self, node: Executor) -> CodeLocation:
        programs, python, installed = self._programs, self._programs.choose_python(node), None
        if python.requirements is not None:
            installed = tuple(python.path.parent.parent.glob("lib/python*/site-packages"))
        target = node.target
        if target is None:
            name = node.mainfile or ""
            return CodeLocation(name, programs.files.find(name, node.name), installed=installed)
        module, _, name = target.partition(":")
        defaults = None if target.call is None else _list_defaults(target.call)
        if (stored := programs.find_pickled_function(target)) is not None:
            return CodeLocation(name, pickled=read_signed(stored, programs.key), defaults=defaults, installed=installed)
        file = programs.files.find_function_file(target, node.name)
        if file is not None:  # of a decorated function, perhaps the decorator's
            modules = (module.removesuffix(".py"),)
            return CodeLocation(str(target), file, modules=modules, defaults=defaults, installed=installed)
        function = programs.load_target(node)
        place = getattr(sys.modules.get(getattr(function, "function", function).__module__), "__file__", None)
        file = Path(place) if place else None
        return CodeLocation(str(target), file, modules=(module,), defaults=defaults, installed=installed)


def find_stale_file(files: Iterable[str]) -> str | None:
    """Return a file that this process loaded in another version, or may have; None: there is none."""
    modules = {getattr(module, "__file__", None): module for module in list(sys.modules.values())}
    started = compute_start_time() + STARTUP_S
    for file in files:
        if (module := modules.get(file)) is None:
            continue
        now, loaded = read_file_version(Path(file)), find_loaded_version(module)
        if now != loaded if loaded is not None else max(now[2:]) / 1e9 > started:
            return file
    return None


def _list_exact_defaults(node: Executor) -> dict[str, Any]:
    """Return the defaults that a definition has which was sent to a server: keys are the same with and without one."""
    return {} if node.target is None or node.target.call is None else get_exact_defaults(node.target.call)


def _list_path_parameters(node: Executor, parameters: Mapping[str, Any]) -> dict[str, PurePath]:
    """Return the parameters that are text in the definition, and paths by their annotations."""
    if node.target is None or node.target.call is None:
        return {}
    try:
        checked = check_parameters(node.target.call, parameters, who=f"Step {node.name!r}")
    except Exception:  # noqa: BLE001  whatever an own type raises: the step itself says so
        return {}
    return {name: value for name, value in checked.items() if isinstance(value, PurePath)}


def _list_defaults(call: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of a function's parameters that may name files."""
    parameters = inspect.signature(getattr(call, "function", call)).parameters.values()
    kinds = (str, PurePath, list, tuple, Mapping)
    return {parameter.name: parameter.default for parameter in parameters if isinstance(parameter.default, kinds)}
