"""Preparation of tasks: their attempt folders, commands and environments."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from scanflow.app.executor import Executor
from scanflow.app.parameters import select_secrets
from scanflow.app.plain_secrets import list_inherited_sources
from scanflow.backends import function_process, script_process
from scanflow.backends.backend_port import Environment
from scanflow.backends.local.batch.step_programs import Python, StepPrograms, can_fork
from scanflow.backends.local.layout import RunFolder
from scanflow.backends.local.services.grants import list_cpus_avoiding
from scanflow.backends.local.services.service_layout import ServicesHome
from scanflow.backends.parameter_secrets import take_secrets
from scanflow.backends.secret_process import SecretRequest
from scanflow.backends.step_process import (
    build_step_env,
    iterate_options,
    list_options_with_secrets,
    list_secret_sources,
)
from scanflow.backends.task_parameters import Resolved, StepInputs
from scanflow.backends.tasks import split_task
from scanflow.backends.values import Outputs, encode
from scanflow.errors import NotFoundError
from scanflow.files.private import create_private_folder
from scanflow.files.secret_sources import read_secret_source
from scanflow.names import StepName
from scanflow.placement.sysfs import read_topology
from scanflow.processes.shims import Spec, create_attempt_folder

if TYPE_CHECKING:  # most runs cache nothing
    from scanflow.backends.local.batch.step_keys import StepKeys

SEEN_OUTPUTS = 512
_TRACKER_VARIABLES = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")


class Launcher:
    """Prepares the tasks of one run: reads earlier outputs and writes attempt folders; starts nothing."""

    def __init__(self, programs: StepPrograms, folder: RunFolder, *, max_fan_out: int, tracking: Environment) -> None:
        definition = programs.definition
        self._app, self._workflow, self._tracking = definition.app, definition.workflow, tracking
        self.programs, self._folder, self._home = programs, folder, programs.home.path
        self._inherited = sorted({*definition.inherited, *list_inherited_sources(definition.app)})
        read = lru_cache(maxsize=SEEN_OUTPUTS)(self._read_outputs)
        self.inputs = StepInputs(definition, read=read, outputs=folder.outputs, max_fan_out=max_fan_out)

    @cached_property
    def keys(self) -> StepKeys:
        """The cache keys of its tasks."""
        from scanflow.backends.local.batch.step_keys import StepKeys

        return StepKeys(self.programs, self._folder.outputs)

    def prepare(
        self, node: Executor, task: StepName, attempt: int, parameters: Resolved, *, devices: Mapping[str, str]
    ) -> Path:
        """Write an attempt's folder. ``devices``: the variables that show it its GPUs."""
        python, app_dir = self.programs.choose_python(node), self.programs.app_dir
        outputs = self.clean_outputs(task, attempt)
        folder = self._folder.get_attempt_folder(task, attempt)
        create_private_folder(folder)
        env, variables = {**self.build_env(node, task, outputs), **devices}, select_secrets(node.env)
        secrets = list_secret_sources(node, self._inherited)
        if (tracker := self.programs.tracker_secret) is not None:
            secrets = sorted({*secrets, tracker})
            address = read_secret_source(tracker, app_dir).strip().rstrip("/")
            named = [name for name in _TRACKER_VARIABLES if env.get(name) == address]
            variables |= dict.fromkeys(named, tracker)  # and not in the folder of the attempt
            env = {name: value for name, value in env.items() if name not in named}
        request = None
        if node.target is None:
            argv = self._build_script_command(node, parameters, python, folder, variables, secrets)
        else:
            rest, places = take_secrets(parameters.value) if node.secrets else (parameters.value, [])
            request, file = folder / "request.json", self.programs.files.find_function_file(node.target, node.name)
            by_value = self.programs.find_pickled_function(node.target)
            function_process.FunctionRequest(
                name=str(node.target),
                who=f"Step {node.name!r}",
                file=str(file) if file else None,
                by_value=str(by_value) if by_value else None,
                # A step's own environment has its own packages.
                path=None if python.requirements is not None else self._build_module_path(by_value),
                parameters=encode(rest, folder, self.programs.key),
                exact=parameters.exact,
                key=self.programs.key.hex(),
                secrets=places,
                variables=variables,
                masked=secrets,
                folder=str(app_dir),
            ).write(request)
            argv = [str(python.path), function_process.__file__, str(request)]
        by_fork = str(request) if request and can_fork(node) else None
        cwd, cpus = str(app_dir), self._list_cpus(node)
        spec = Spec(argv=argv, cwd=cwd, request=by_fork, env=env, cpus=cpus, timeout_s=node.timeout_s)
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
        mainfile, who = self.programs.files.find(node.mainfile or "", node.name), f"Executor {node.name!r}"
        options = None
        if node.secrets and take_secrets(parameters.value)[1]:
            argv = [str(python.path), script_process.__file__, str(mainfile)]
            options = list_options_with_secrets(parameters.value, who=who)
        else:
            argv = [str(python.path), str(mainfile), *iterate_options(parameters.value, who=who)]
        if not secrets:
            return argv
        request = SecretRequest(
            argv=argv, folder=str(self.programs.app_dir), variables=variables, masked=secrets, options=options
        )
        return request.write(folder / "secrets.json")

    def _list_cpus(self, node: Executor) -> tuple[int, ...]:
        if not node.avoid_services:
            return ()
        return list_cpus_avoiding(ServicesHome(self._home / "services"), node.avoid_services, read_topology())

    def _build_module_path(self, by_value: Path | None) -> list[str]:
        """Return the module search path of a function. Loading a file adds its folder; by value, add the app's."""
        app_folder = [] if by_value is None else [str(self.programs.app_dir)]
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

    def build_env(self, node: Executor, task: StepName, outputs: Path) -> dict[str, str]:
        """Return the environment variables that a step gets in addition to its runner's."""
        run = self._folder.path.name
        variables = build_step_env(self._app, self._workflow.name, run, node, task, outputs, tracking=self._tracking)
        return {"SCANFLOW_HOME": str(self._home), **variables}  # for steps that run scanflow's own commands

    def _read_outputs(self, task: StepName) -> Outputs:
        folder = self._folder.get_outputs_folder(task)
        if not folder.exists():
            raise NotFoundError(f"The outputs of {split_task(task)[0]!r} are gone: {str(folder)!r}. Start a new run.")
        return Outputs(folder, self.programs.key)
