"""Batch workflows in this process: functions, called one after the other by the thread that drives the run."""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scanflow.app.application import Application
from scanflow.app.executor import Executor
from scanflow.app.plan import Plan, plan_workflow
from scanflow.app.steps import call_function, check_parameters, check_result
from scanflow.app.workflow import Workflow
from scanflow.app_files import AppFiles
from scanflow.application_loading import load_function
from scanflow.backends.backend_port import Environment
from scanflow.backends.function_store import build_lost_function_error, compute_name, is_saved_function
from scanflow.backends.log_reader import Stream
from scanflow.backends.memory.memory_logs import Log, MemoryLogs
from scanflow.backends.output_files import OutputFiles, dump_outputs
from scanflow.backends.pickles import load_pickle
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import (
    FINAL_STATES,
    Observer,
    RunEnded,
    RunRecord,
    RunStarted,
    RunState,
    StepFile,
    TaskEnded,
    TaskRecord,
    TaskStarted,
    TaskState,
)
from scanflow.backends.step_schedule import StepProgress
from scanflow.backends.task_parameters import RESULT, Resolved, StepInputs
from scanflow.backends.tasks import (
    add_details,
    add_pending_tasks,
    arrange_outputs,
    build_empty_record,
    cut_down,
    get_logged_task,
    group_by_step,
    list_output_tasks,
    list_spin_inputs,
    reset_changed_tasks,
    select_running_tasks,
    select_tasks,
)
from scanflow.backends.values import copy_value
from scanflow.errors import (
    AlreadyRunningError,
    InvalidError,
    NotFoundError,
    ScanflowError,
    UnsupportedError,
    UsageError,
    did_you_mean,
)
from scanflow.names import RunName, StepName, make_run_name
from scanflow.outputs import keep_outputs
from scanflow.settings import Settings
from scanflow.text.failures import Failure, parse_failure

_OWN_FOLDER = str(Path(__file__).parents[2])  # the library's: its frames are not the user's
_OUTPUTS = Path("/outputs")  # what '<output_dir>/...' becomes in parameters: there is no such folder


@dataclass(slots=True)
class _Run:
    """One run with its tasks, outputs and logs."""

    record: RunRecord
    definition: RunDefinition
    tasks: dict[StepName, TaskRecord] = field(default_factory=dict)
    changed: dict[StepName, int] = field(default_factory=dict)
    outputs: dict[StepName, dict[str, Any]] = field(default_factory=dict)
    logs: dict[tuple[StepName, int], dict[str, Log]] = field(default_factory=dict)
    driven: bool = False
    stop: bool = False
    stopped: set[StepName] = field(default_factory=set)
    """Tasks requested to stop."""

    def note(self, record: TaskRecord) -> None:
        self.tasks[record.task] = record
        self.changed[record.task] = max(self.changed.values(), default=0) + 1

    def forget(self, task: StepName) -> None:
        self.tasks.pop(task)
        self.changed.pop(task, None)

    @property
    def shown(self) -> RunRecord:
        lost = self.record.state == "running" and not self.driven
        return self.record.model_copy(update={"state": "interrupted"}) if lost else self.record

    @property
    def complete(self) -> RunRecord:
        tasks = add_pending_tasks(self.definition.workflow, self.tasks.values())
        return add_details(self.shown, self.definition.workflow, tasks)


class MemoryBatch:
    """See :class:`~scanflow.backends.backend_port.RunBackend`."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._settings, self._clock, self._sleep = settings, clock, sleep
        self._runs: dict[str, _Run] = {}
        self._functions: dict[str, bytes] = {}
        self._rng = random.Random()  # noqa: S311  names for people, not secrets

    def check(self, definition: RunDefinition) -> None:
        cut = cut_down(definition)
        app, workflow = cut.app, cut.workflow
        if workflow.type != "batch":
            raise UnsupportedError(f"Workflow {workflow.name!r} is of type {workflow.type!r}: it is not run.")
        for node in workflow.steps:
            if node.target is None:
                raise UnsupportedError(
                    f"Executor {node.name!r}: the backend 'memory' does not support mainfile: it starts no processes. "
                    "Write a @sf.step function."
                )
            if node.secrets:
                raise UnsupportedError(
                    f"Executor {node.name!r}: the backend 'memory' does not support {node.secrets[0]!r}: it starts no "
                    "processes, so that what a step prints could not be masked. Use another backend."
                )
            if node.target.declared is not None:
                check_parameters(node.target.declared, node.parameters, who=f"Step {node.name!r}")
            elif not is_saved_function(node.target.partition(":")[0]):
                AppFiles(app, workflow).find_function_file(node.target, node.name)
        if cut.past is not None:
            list_spin_inputs(cut, self.show(cut.past))

    def plan(self, app: Application, workflow: Workflow) -> Plan:
        self.check(RunDefinition(app, workflow))
        return plan_workflow(workflow, machine_cores=self._settings.slots or 1, machine_memory_bytes=sys.maxsize)

    def keep_function(self, pickled: bytes) -> str:
        name = compute_name(pickled)
        self._functions[name] = pickled
        return name

    def forget_functions(self, before: float, needed: Collection[str] = ()) -> int:  # noqa: ARG002
        return 0

    def free_name(self) -> RunName:
        name = make_run_name(self._rng)
        while name in self._runs:
            name = RunName(f"{make_run_name(self._rng)}-{self._rng.randrange(10**6)}")
        return name

    def enter(self, definition: RunDefinition, name: RunName | None = None) -> RunRecord:
        self.check(definition)
        run_name, cut = name or self.free_name(), cut_down(definition)
        if (existing := self._runs.get(run_name)) is not None:
            if existing.definition != cut:
                raise InvalidError(f"A run {run_name!r} already exists. Choose another name.")
            return existing.complete
        record = RunRecord(
            name=run_name,
            app=cut.app.name,
            team=cut.app.team,
            workflow=cut.workflow.name,
            state="running",
            created=self._clock(),
            source=None if cut.source is None else str(cut.source),
        )
        run = _Run(record, cut)
        if cut.past is not None:
            past = self._run(cut.past)
            for input_task in list_spin_inputs(cut, past.complete):
                run.note(input_task)
                run.outputs[input_task.task] = past.outputs.get(input_task.task, {})
        return self._runs.setdefault(run_name, run).complete

    def drive(
        self,
        name: str,
        definition: RunDefinition | None = None,
        *,
        environment: Environment,  # noqa: ARG002  steps share this process' environment
        observe: Observer,
    ) -> RunRecord:
        run, changed = self._run(name), dict[StepName, TaskRecord]()
        if run.driven:
            raise AlreadyRunningError(f"The run {run.record.name!r} is running.")
        if definition is not None:
            self.check(replace(definition, past=None))
            before, run.definition = run.definition.workflow, cut_down(definition)
            changed = reset_changed_tasks(before, run.definition.workflow, run.tasks.values())
            for task in changed.values():
                run.note(task)
        run.driven, run.stop = True, False
        run.stopped.clear()
        try:
            state, began = "failed", self._clock()
            succeeded = sum(task.state == "succeeded" for task in run.complete.tasks)
            steps = len(run.definition.workflow.nodes)
            run.record = run.record.model_copy(update={"state": "running", "error": None})
            observe(RunStarted(run=run.record.name, steps=steps, kept=succeeded, changed=tuple(changed)))
            state = _Drive(run, self._functions, self._settings.max_fan_out, self._clock, self._sleep, observe).run()
            seconds = (run.record.seconds or 0.0) + self._clock() - began
            run.record = run.record.model_copy(update={"state": state, "seconds": seconds})
        finally:
            run.driven = False
        observe(RunEnded(run=run.record.name, record=run.complete))
        return run.complete

    def stop(self, name: str) -> RunRecord:
        """Request a run to stop; it stops before its next task."""
        run = self._run(name)
        if run.record.state in FINAL_STATES:
            state = run.record.state
            raise UsageError(f"The run {run.record.name!r} has {state} already; there is nothing to stop.")
        run.stop = True
        if not run.driven:
            run.record = run.record.model_copy(update={"state": "stopped"})
        return run.complete

    def stop_task(self, name: str, task: str) -> RunRecord:
        """Request tasks to stop: their results are discarded."""
        run = self._run(name)
        run.stopped |= {task_record.task for task_record in select_running_tasks(run.complete, task)}
        return run.complete

    def give_up(self, name: str, why: str) -> RunRecord:
        run = self._run(name)
        if run.shown.state == "interrupted":
            run.record = run.record.model_copy(update={"state": "failed", "error": why})
        return run.complete

    def show(self, name: str) -> RunRecord:
        return self._run(name).complete

    def follow(self, name: str, since: int = -1) -> tuple[RunRecord, int]:
        run = self._run(name)
        tasks = tuple(run.tasks[task] for task, number in run.changed.items() if number > since)
        return run.shown.model_copy(update={"tasks": tasks}), max(run.changed.values(), default=since)

    def runs(
        self,
        *,
        limit: int,
        offset: int = 0,
        app: str | None = None,
        team: str | None = None,
        workflow: str | None = None,
        state: RunState | None = None,
    ) -> list[RunRecord]:
        filters = {"app": app, "team": team, "workflow": workflow, "state": state}
        records = [
            run.shown
            for run in reversed(self._runs.values())
            if all(value in {None, getattr(run.record, name)} for name, value in filters.items())
        ]
        return records[offset : offset + limit]

    def definition(self, name: str) -> RunDefinition:
        return self._run(name).definition

    def outputs(self, name: str, step: str) -> dict[str, Any] | list[dict[str, Any]]:
        run = self._run(name)
        tasks = list_output_tasks(run.complete, step)
        values = [copy_value(run.outputs[task.task]) for task in tasks]
        return arrange_outputs(step, tasks, values)

    def output_files(self, name: str, step: str, *, max_bytes: int | None = None) -> OutputFiles | list[OutputFiles]:
        run = self._run(name)
        tasks = list_output_tasks(run.complete, step)
        return arrange_outputs(step, tasks, [dump_outputs(run.outputs[task.task], max_bytes) for task in tasks])

    def files(self, name: str, step: str | None = None) -> list[StepFile]:
        select_tasks(self._run(name).complete, step)
        return []  # steps have no folders here

    def logs(self, name: str, task: str, *, stream: Stream = "both", attempt: int | None = None) -> MemoryLogs:
        run = self._run(name)
        record = get_logged_task(run.complete, task)
        streams = run.logs.get((record.task, attempt or record.attempts), {})
        selected = [(source, log) for source, log in streams.items() if stream in {source, "both"}]
        return MemoryLogs(lambda: (selected, run.tasks[StepName(task)].state != "running"))

    def _run(self, name: str) -> _Run:
        names = list(self._runs)
        if name.startswith("@latest"):
            back = int(name.removeprefix("@latest").removeprefix("-") or 0)
            name = names[-1 - back] if back < len(names) else name
        if name not in self._runs:
            hint = did_you_mean(name, names) if names else " There are no runs yet."
            raise NotFoundError(f"There is no run {name!r}.{hint}")
        return self._runs[name]


class _Drive:
    """One drive of a run."""

    def __init__(
        self,
        run: _Run,
        functions: Mapping[str, bytes],
        max_fan_out: int,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        observe: Observer,
    ) -> None:
        self._functions = functions
        self._run, self._clock, self._sleep, self._observe = run, clock, sleep, observe
        self._workflow, self._files = run.definition.workflow, AppFiles(run.definition.app, run.definition.workflow)
        self._progress, self._recorded = StepProgress(self._workflow.parents), group_by_step(run.tasks.values())
        self._inputs = StepInputs(
            run.definition, read=run.outputs.__getitem__, outputs=_OUTPUTS, max_fan_out=max_fan_out
        )

    def run(self) -> RunState:
        """Run all steps that can run, and return the run's final state. What needs no failed step goes on."""
        failed = False
        while not self._run.stop and (step := self._progress.take_next_ready()) is not None:
            node = self._workflow.by_name[step]
            assert isinstance(node, Executor)
            try:
                failed |= not self._run_step(node)
            except ScanflowError as error:
                failure = Failure(summary="could not start", cause=str(error))
                self._end(TaskRecord(task=StepName(step), step=step, state="failed", failure=failure), 1, 1)
                failed = True
        if failed:
            return self._compute_final_state("failed")
        return self._compute_final_state("succeeded" if self._progress.finished else "stopped")

    def _compute_final_state(self, state: RunState) -> RunState:
        return "stopped" if self._run.stop else state

    def _run_step(self, node: Executor) -> bool:
        """Run a step's tasks; return whether none of them failed."""
        if self._progress.should_skip(node.name) or not self._inputs.is_condition_met(node):
            self._inputs.skip(node.name)
            self._end(TaskRecord(task=StepName(node.name), step=node.name, state="skipped"), 1, 0)
            self._progress.end(node.name, "skipped")
            return True
        tasks, failed = self._inputs.expand_tasks(node), False
        for name in self._recorded.get(node.name, set()) - {name for name, _ in tasks}:
            self._run.forget(name)  # its list of items has changed since, or has become known
        if not tasks:
            self._end(build_empty_record(node.name), 1, 0)
        unfinished = len(tasks)
        for task, item in tasks:
            previous = self._run.tasks.get(task)
            if previous is None or previous.state != "succeeded":
                if self._run.stop:
                    return False
                state = self._run_task(node, task, item, len(tasks), unfinished)
                failed |= state == "failed"
                if state != "succeeded":
                    continue
            unfinished -= 1
        if not unfinished:
            self._progress.end(node.name, "ran")
        return not failed

    def _run_task(self, node: Executor, task: StepName, item: Resolved, width: int, unfinished: int) -> TaskState:
        """Run a task with its retries, and return its final state."""
        previous = self._run.tasks.get(task)
        attempt, failures = (0 if previous is None else previous.attempts), 0
        while True:
            attempt += 1
            record = self._run_attempt(node, task, item, attempt, width)
            if record.state != "failed" or failures >= node.retry.limit or self._run.stop:
                self._end(record, width, unfinished - (record.state == "succeeded"))
                return record.state
            failures += 1
            wait_s = node.retry.wait_s(failures)
            self._end(record, width, unfinished, retry_in_s=wait_s)
            self._sleep(wait_s)

    def _run_attempt(self, node: Executor, task: StepName, item: Resolved, attempt: int, width: int) -> TaskRecord:
        parameters = self._inputs.resolve_parameters(node, item)
        began, who = self._clock(), f"Step {node.name!r}"
        record = TaskRecord(task=task, step=node.name, state="running", attempts=attempt, began=began)
        logs = {"stdout": Log(), "stderr": Log()}
        self._run.logs[task, attempt] = logs
        self._run.note(record)
        self._observe(TaskStarted(run=self._run.record.name, task=task, step=node.name, width=width, attempt=attempt))
        outputs: dict[str, Any] = {}
        failure: Failure | None = None
        state: TaskState = "succeeded"
        with logs["stdout"].capture(logs["stderr"]), keep_outputs(outputs):
            try:
                function = self._load_function(node)
                given = copy_value(parameters.value)
                result = call_function(function, check_parameters(function, given, who=who, exact=parameters.exact))
                outputs[RESULT] = copy_value(check_result(function, result, who=who))
            except KeyboardInterrupt:
                self._run.stop, state = True, "stopped"
                failure = Failure(summary="stopped")
            except BaseException:  # noqa: BLE001  any exception of a user's function is its step's failure
                text = traceback.format_exc()
                sys.stderr.write(text)
                state = "failed"
                failure = parse_failure(text, summary="raised", own_folder=_OWN_FOLDER)
        if task in self._run.stopped:
            state, failure = "stopped", Failure(summary="stopped")
        if failure is None:
            self._run.outputs[task] = outputs
        return record.model_copy(
            update={"state": state, "seconds": max(0.0, self._clock() - began), "failure": failure}
        )

    def _end(self, record: TaskRecord, width: int, unfinished: int, *, retry_in_s: float | None = None) -> None:
        self._run.note(record)
        self._observe(
            TaskEnded(run=self._run.record.name, record=record, width=width, left=unfinished, retry_in_s=retry_in_s)
        )

    def _load_function(self, node: Executor) -> Callable[..., Any]:
        assert node.target is not None
        if node.target.call is not None:
            return node.target.call
        name = node.target.partition(":")[0]
        if is_saved_function(name):
            if name not in self._functions:
                raise build_lost_function_error(node.target)
            function: Callable[..., Any] = load_pickle(self._functions[name])
            return function
        return load_function(str(node.target), self._files.find_function_file(node.target, node.name))
