"""Run a task of any kind in its pod: read its inputs, run it, cache its outputs, and report to the engine."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scanflow.app.executor import Executor, Target
from scanflow.app.parameters import select_secrets
from scanflow.app.plain_secrets import list_inherited_sources
from scanflow.app.workflow import Workflow
from scanflow.app_files import AppFiles
from scanflow.backends import function_process, script_process
from scanflow.backends.function_store import is_saved_function
from scanflow.backends.kubernetes.batch import pod_layout
from scanflow.backends.kubernetes.batch.folders import Folders, create_empty_folder
from scanflow.backends.kubernetes.batch.launch_plan import build_task_env
from scanflow.backends.kubernetes.batch.pod_process import run_process
from scanflow.backends.kubernetes.batch.pod_storage import open_storage
from scanflow.backends.kubernetes.batch.retries import has_own_backoff
from scanflow.backends.kubernetes.batch.run_document import RunDocument
from scanflow.backends.kubernetes.batch.storage import ClaimStorage
from scanflow.backends.kubernetes.batch.task_report import (
    POD_DELETED,
    TaskReport,
    build_error_report,
    build_process_report,
)
from scanflow.backends.kubernetes.batch.workflow_signals import evaluate_signal, list_signals, replay
from scanflow.backends.parameter_secrets import take_secrets
from scanflow.backends.pickles import read_signed
from scanflow.backends.placed_secrets import SecretPath
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.secret_process import SecretRequest
from scanflow.backends.step_cache import (
    CacheKey,
    CacheKeys,
    CodeLocation,
    UnknownContentError,
    copy_outputs,
    describe_changed_file,
    describe_unknown,
)
from scanflow.backends.step_process import (
    build_step_env,
    iterate_options,
    list_options_with_secrets,
    list_secret_sources,
)
from scanflow.backends.task_parameters import NO_ITEM, Resolved, StepInputs
from scanflow.backends.tasks import format_task_name
from scanflow.backends.values import Outputs, describe_missing_result, encode
from scanflow.errors import InternalError, ScanflowError
from scanflow.files.private import write_private
from scanflow.graphs import list_ancestors
from scanflow.names import StepName
from scanflow.text.failures import Failure

if TYPE_CHECKING:
    from scanflow.backends.kubernetes.batch.task_archives import Snapshot

EXIT_REFUSED = 125
"""The exit code of a task that could not be started."""


class Pod:
    """One task of one run, in its pod."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self.document = RunDocument.read(folders.run)
        self.base = folders.make(self.document.run)

    @cached_property
    def _storage(self) -> ClaimStorage:
        storage = open_storage(self._folders)
        for step, origin in self.document.origins.items():
            storage.link(self.base, step, pod_layout.locate_run_outputs(self._folders.outputs, origin))
        return storage

    @cached_property
    def definition(self) -> RunDefinition:
        return self.document.build_definition(self._folders.app)

    @property
    def workflow(self) -> Workflow:
        return self.definition.workflow

    @cached_property
    def key(self) -> bytes:
        """The key that signs this environment's pickles."""
        return (self._folders.keys / pod_layout.KEY).read_bytes()

    @cached_property
    def files(self) -> AppFiles:
        return AppFiles(self.definition.app, self.workflow)

    def build_inputs(self) -> StepInputs:
        most = self.document.max_fan_out
        return StepInputs(self.definition, read=self._read, outputs=self.base, max_fan_out=most)

    def locate_folder(self, task: StepName) -> Path:
        """Return a task's output folder."""
        step, _, index = task.partition(".")
        return self.base / step / index if index else self.base / step

    def _read(self, task: StepName) -> Mapping[str, Any]:
        self._storage.check(self.document.run, [task])
        return Outputs(self.locate_folder(task), self.key)

    # Signals

    def report_signals(self, sources: list[str]) -> None:
        """Report the signals of ended steps that later steps wait for."""
        for source in sources:
            self._fetch(source, outputs_only=True, including=True)
        self._report_signals(sources)

    def _report_signals(self, sources: list[str]) -> None:
        for signal in list_signals(self.workflow):
            if signal.source in sources:
                inputs = self.build_inputs()
                replay(self.workflow, inputs, signal.source, including=True)
                kept_tasks, only = self.document.kept, self.definition.step
                self._folders.write_parameter(
                    signal.name, evaluate_signal(signal, self.workflow, inputs, kept_tasks=kept_tasks, only=only)
                )

    def _fetch(self, step: str, *, outputs_only: bool = False, including: bool = False) -> None:
        """Bring what the steps before a step left; ``including``: what it left itself, too."""
        steps = list_ancestors(self.workflow.parents, step) | ({step} if including else set())
        self._storage.fetch(self.document.run, sorted(steps), outputs_only=outputs_only)

    # A task

    def run(self, step: str, index: int | None, *, retry: int, before: Mapping[str, int]) -> int:
        """Run a task, and return the exit code of its pod."""
        task, attempt = format_task_name(step, index), retry + 1
        try:
            node = self.workflow.node(step)
            if not isinstance(node, Executor):
                raise InternalError(f"The step {step!r} is not a batch step.")
            attempt += before.get(task, 0)
            if retry and has_own_backoff(node):
                time.sleep(node.retry.wait_s(retry))
            report = self._run(node, task, index, attempt)
        except ScanflowError as error:
            report = build_error_report(error)
        except Exception as error:  # noqa: BLE001  whatever it is, the run's record is to say it
            traceback.print_exc()
            report = build_error_report(error)
        return finish(self._folders, report)

    def _run(self, node: Executor, task: StepName, index: int | None, attempt: int) -> TaskReport:
        self._fetch(node.name)
        inputs = self.build_inputs()
        replay(self.workflow, inputs, node.name)
        for step in sorted(list_ancestors(self.workflow.parents, node.name)):
            self._storage.check(self.document.run, inputs.list_tasks(step))
        if node.when is not None:
            inputs.is_condition_met(node)  # raises here for a condition that cannot be evaluated
        tasks = inputs.expand_tasks(node)
        items = [item for name, item in tasks if name == task]
        if index is not None and not items:
            raise InternalError(f"The step {node.name!r} has no task {task!r}.")
        parameters = inputs.resolve_parameters(node, items[0] if items else NO_ITEM)
        key, note = self._compute_cache_key(node, parameters) if node.cache else (None, None)
        if key is not None and not node.refresh_cache and (origin := self._restore_cached(key, task)):
            self._report_success(node, task, len(tasks))
            files = self._folders.list_few_files(self.locate_folder(task), len(tasks))
            return TaskReport(seconds=0.0, exit_code=0, origin=origin, files=None if files is None else tuple(files))
        target, run = self.locate_folder(task), self.document.run
        logs = pod_layout.locate_attempt_logs(self._folders.outputs, run, task, attempt)
        if not self._storage.begin_attempt(logs, self.document.drive) and not node.retry.limit:
            return POD_DELETED
        create_empty_folder(target)
        before = self._storage.begin_task(run, task, target, again=attempt > 1)
        argv = self._build_command(node, parameters)
        end = run_process(
            argv, cwd=self._folders.app, env=self._build_variables(node, task), timeout_s=node.timeout_s, logs=logs
        )
        report = build_process_report(end._replace(files=self._folders.list_few_files(target, len(tasks))))
        if end.succeeded and node.target is not None and (failure := describe_missing_result(target)):
            report = report.model_copy(update={"failure": failure})
        if report.failure is not None:
            self._keep_failure(task, logs, before)
            kept = report.files if self._storage.keeps_all else ()
            return report.model_copy(update={"cache_note": note, "files": kept})
        self._report_success(node, task, len(tasks))
        try:
            note = note if key is None else self._store_in_cache(key, target)
            self._storage.keep_logs(logs)
            self._storage.keep_task(run, task, target, before)
        except (ScanflowError, OSError) as error:
            failure = Failure(summary="its outputs could not be kept", cause=str(error))
            return report.model_copy(update={"failure": failure, "files": ()})
        return report.model_copy(update={"cache_note": note})

    def _keep_failure(self, task: StepName, logs: Path, before: Snapshot | None) -> None:
        try:
            self._storage.keep_logs(logs)
            self._storage.keep_attempt(self.document.run, task, self.locate_folder(task), before)
        except (ScanflowError, OSError):  # the step's own failure is what is to be said
            traceback.print_exc()

    def _report_success(self, node: Executor, task: StepName, width: int) -> None:
        self._folders.report_outputs(self.locate_folder(task), width)
        if node.for_each is None:
            self._report_signals([node.name])

    def _build_command(self, node: Executor, parameters: Resolved) -> list[str]:
        secrets = list_secret_sources(node, list_inherited_sources(self.definition.app))
        rest, places = take_secrets(parameters.value) if node.secrets else (parameters.value, [])
        request_folder = self._folders.reported / "request"
        request_folder.mkdir(exist_ok=True)
        options = None
        if node.target is not None:
            return self._build_function_command(node, node.target, Resolved(rest, parameters.exact), places, secrets)
        main, who = self.files.find(node.mainfile or "", node.name), f"Executor {node.name!r}"
        if places:
            argv = [sys.executable, script_process.__file__, str(main)]
            options = list_options_with_secrets(parameters.value, who=who)
        else:
            argv = [sys.executable, str(main), *iterate_options(parameters.value, who=who)]
        if not secrets:
            return argv
        return SecretRequest(
            argv=argv,
            folder=str(self._folders.app),
            variables=select_secrets(node.env),
            masked=secrets,
            options=options,
        ).write(request_folder / "secrets.json")

    def _build_function_command(
        self, node: Executor, target: Target, parameters: Resolved, places: list[SecretPath], masked: list[str]
    ) -> list[str]:
        file, by_value = (self.files.find_function_file(target, node.name), self._find_pickled_function(str(target)))
        request_folder = self._folders.reported / "request"
        request = request_folder / "request.json"
        function_process.FunctionRequest(
            name=str(target),
            who=f"Step {node.name!r}",
            file=str(file) if file else None,
            by_value=str(by_value) if by_value else None,
            path=[str(self._folders.app), *sys.path[1:]],
            parameters=encode(parameters.value, request_folder, self.key),
            exact=parameters.exact,
            key=self.key.hex(),
            secrets=places,
            variables=select_secrets(node.env),
            masked=masked,
            folder=str(self._folders.app),
        ).write(request)
        return [sys.executable, function_process.__file__, str(request)]

    def _find_pickled_function(self, target: str) -> Path | None:
        name = target.partition(":")[0]
        file = self._folders.run / name
        return (
            file.resolve() if is_saved_function(name) and file.is_file() else None
        )  # a ConfigMap's files are links, which are not loaded

    def _build_variables(self, node: Executor, task: StepName) -> dict[str, str]:
        tracking = build_task_env(self.document.variables, node.name, task)
        own = build_step_env(
            self.definition.app,
            self.workflow.name,
            self.document.run,
            node,
            task,
            self.locate_folder(task),
            tracking=lambda _: tracking,
        )
        return {**os.environ, **own}

    def _locate_cached(self, key: CacheKey) -> Path:
        return self._folders.outputs / pod_layout.CACHE / key.text

    def _restore_cached(self, key: CacheKey, task: StepName) -> str | None:
        """Copy the cached outputs of an earlier run, and return that run; None: there are none."""
        cached, target = self._locate_cached(key), self.locate_folder(task)
        self._storage.fetch_cached(cached)
        note = cached.with_suffix(".run")
        if not cached.is_dir() or not note.is_file():
            return None
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            copy_outputs(cached, target)
        except OSError:
            return None
        self._storage.keep_task(self.document.run, task, target, None)
        return note.read_text(encoding="utf-8")

    def _store_in_cache(self, key: CacheKey, target: Path) -> str | None:
        """Keep a task's outputs for later runs; return why they are not, for people."""
        if changed := self._cache_keys.find_changed_file(key):
            return describe_changed_file(changed)
        cached = self._locate_cached(key)
        cached.parent.mkdir(parents=True, exist_ok=True)
        try:
            copy_outputs(target, cached)
        except OSError:  # another task remembers the same, or a file cannot be copied: it only saves time
            return None
        write_private(cached.with_suffix(".run"), self.document.run)
        return self._storage.keep_cached(cached, self.document.run)

    @cached_property
    def _cache_keys(self) -> CacheKeys:
        return CacheKeys(self._folders.app)

    def _compute_cache_key(self, node: Executor, parameters: Resolved) -> tuple[CacheKey, None] | tuple[None, str]:
        """Return the key of a task's outputs, or why there is none."""
        try:
            return self._cache_keys.compute(
                node,
                self._describe_code(node),
                parameters.value,
                exact=parameters.exact,
                requirements=[node.image or "", *self._read_requirements(node)],
                requirements_folder=self._folders.app,
                outputs=self.base,
            ), None
        except UnknownContentError as error:
            return None, describe_unknown(error)

    def _describe_code(self, node: Executor) -> CodeLocation:
        target = node.target
        if target is None:
            name = node.mainfile or ""
            return CodeLocation(name, self.files.find(name, node.name))
        module, _, name = target.partition(":")
        if (stored := self._find_pickled_function(str(target))) is not None:
            return CodeLocation(name, pickled=read_signed(stored, self.key))
        file = self.files.find_function_file(target, node.name)
        return CodeLocation(str(target), file, modules=() if file else (module,))

    def _read_requirements(self, node: Executor) -> list[str]:
        if isinstance(node.requirements, str):
            return self.files.find(node.requirements, node.name).read_text(encoding="utf-8").splitlines()
        return list(node.requirements or ())


def finish(folders: Folders, report: TaskReport) -> int:
    """Write the report of a task's end, and return the exit code of its pod."""
    folders.write_report(report.to_json())
    if report.stopped:
        return pod_layout.EXIT_STOPPED
    if report.failure is None:
        return 0
    return EXIT_REFUSED if report.exit_code is None else report.exit_code % 256 or 1
