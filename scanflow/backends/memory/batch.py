"""Batch workflows in this process: functions, called one after the other by whoever drives the run."""

from __future__ import annotations

import copy
import random
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scanflow.app.application import Application
from scanflow.app.executor import Executor
from scanflow.app.plan import Plan, plan_workflow
from scanflow.app.steps import check_parameters, check_result
from scanflow.app.workflow import Workflow
from scanflow.backends.app_files import AppFiles
from scanflow.backends.memory.logs import Log, MemoryLogs
from scanflow.backends.outputs import RESULT, pick_output
from scanflow.backends.parameters import items_of, resolve_parameters
from scanflow.backends.port import Environment, RunDefinition, Stream
from scanflow.backends.records import (
    Observer,
    RunEnded,
    RunRecord,
    RunStarted,
    RunState,
    TaskEnded,
    TaskRecord,
    TaskStarted,
    TaskState,
)
from scanflow.backends.schedule import StepProgress
from scanflow.backends.tasks import inputs_of_spin, only_step, split_task, task_name, with_pending
from scanflow.errors import (
    AlreadyRunningError,
    InvalidError,
    NotFoundError,
    ScanflowError,
    UnsupportedError,
    UsageError,
    did_you_mean,
)
from scanflow.failures import Failure, failure_from_text
from scanflow.loading import load_function
from scanflow.names import RunName, StepName, make_run_name
from scanflow.outputs import keep_outputs
from scanflow.settings import Settings

_ENDED = frozenset({"succeeded", "failed", "stopped"})
_OWN_FOLDER = str(Path(__file__).parents[2])  # the library's: its frames are not the user's
_OUTPUTS = Path("/outputs")  # what '<output_dir>/...' becomes in parameters: there is no such folder


@dataclass(slots=True)
class _Run:
    """One run, and all that it has left."""

    record: RunRecord
    definition: RunDefinition
    only: str | None = None
    """The task that is spun, if it is a spin."""

    tasks: dict[StepName, TaskRecord] = field(default_factory=dict)
    changed: dict[StepName, int] = field(default_factory=dict)
    outputs: dict[StepName, dict[str, Any]] = field(default_factory=dict)
    logs: dict[tuple[StepName, int], dict[str, Log]] = field(default_factory=dict)
    driven: bool = False
    stop: bool = False

    def note(self, record: TaskRecord) -> None:
        self.tasks[record.task] = record
        self.changed[record.task] = max(self.changed.values(), default=0) + 1

    @property
    def shown(self) -> RunRecord:
        lost = self.record.state == "running" and not self.driven
        return self.record.model_copy(update={"state": "interrupted"}) if lost else self.record

    @property
    def complete(self) -> RunRecord:
        tasks = with_pending(self.definition.workflow, self.tasks.values())
        return self.shown.model_copy(update={"tasks": tasks})


class MemoryBatch:
    """See :class:`~scanflow.backends.port.BatchBackend`."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._settings, self._clock, self._sleep = settings, clock, sleep
        self._runs: dict[str, _Run] = {}
        self._rng = random.Random()  # noqa: S311  names for people, not secrets

    def check(self, app: Application, workflow: Workflow) -> None:
        if workflow.type != "batch":
            raise UnsupportedError(f"Workflow {workflow.name!r} is of type {workflow.type!r}: it is not run.")
        for node in workflow.steps:
            if node.target is None:
                raise UnsupportedError(
                    f"Executor {node.name!r}: the backend 'memory' cannot honour mainfile: it starts no processes. "
                    "Write a @sf.step function."
                )
            if node.target.call is not None:
                check_parameters(node.target.call, node.parameters, who=f"Step {node.name!r}")
            else:
                AppFiles(app, workflow).function_file(node.target, node.name)

    def plan(self, app: Application, workflow: Workflow) -> Plan:
        self.check(app, workflow)
        return plan_workflow(workflow, machine_cores=self._settings.slots or 1, machine_memory_bytes=sys.maxsize)

    def free_name(self) -> RunName:
        name = make_run_name(self._rng)
        while name in self._runs:
            name = RunName(f"{make_run_name(self._rng)}-{self._rng.randrange(10**6)}")
        return name

    def enter(
        self,
        app: Application,
        workflow: Workflow,
        *,
        parameters: Mapping[str, Any],
        source: Path | None,
        name: RunName | None = None,
    ) -> RunRecord:
        self.check(app, workflow)
        return self._enter(app, workflow, parameters, source, name).complete

    def _enter(
        self,
        app: Application,
        workflow: Workflow,
        parameters: Mapping[str, Any],
        source: Path | None,
        name: RunName | None,
    ) -> _Run:
        chosen = name or self.free_name()
        definition = RunDefinition(app, workflow, dict(parameters))
        if (known := self._runs.get(chosen)) is not None:
            if known.definition != definition:
                raise InvalidError(f"There is a run {chosen!r} already. Choose another name.")
            return known
        record = RunRecord(
            name=chosen,
            app=app.name,
            team=app.team,
            workflow=workflow.name,
            state="running",
            created=self._clock(),
            source=None if source is None else str(source),
        )
        return self._runs.setdefault(chosen, _Run(record, definition))

    def check_spin(
        self, past: str, step: str, *, app: Application, workflow: Workflow, parameters: Mapping[str, Any]
    ) -> None:
        cut, run = only_step(workflow, step, parameters), self._run(past)
        self.check(app, cut)
        inputs_of_spin(cut, step, run.record.name, run.tasks.values())

    def enter_spin(
        self,
        past: str,
        step: str,
        *,
        app: Application,
        workflow: Workflow,
        parameters: Mapping[str, Any],
        source: Path | None,
        name: RunName | None = None,
    ) -> RunRecord:
        cut, before = only_step(workflow, step, parameters), self._run(past)
        self.check(app, cut)
        inputs = inputs_of_spin(cut, step, before.record.name, before.tasks.values())
        run = self._enter(app, cut, parameters, source, name)
        run.only = step
        for record in inputs:
            run.note(record.model_copy(update={"origin": before.record.name}))
            run.outputs[record.task] = before.outputs.get(record.task, {})
        return run.complete

    def drive(
        self,
        run: str,
        *,
        app: Application | None = None,
        workflow: Workflow | None = None,
        environment: Environment,  # noqa: ARG002  steps share this process' environment
        observe: Observer,
    ) -> RunRecord:
        found = self._run(run)
        if found.driven:
            raise AlreadyRunningError(f"The run {found.record.name!r} is running.")
        if app is not None and workflow is not None:
            cut = workflow if found.only is None else only_step(workflow, found.only, found.definition.parameters)
            self.check(app, cut)
            found.definition = RunDefinition(app, cut, found.definition.parameters)
        found.driven, found.stop = True, False
        try:
            state, began = "failed", self._clock()
            kept = sum(one.state == "succeeded" for one in found.tasks.values())
            steps = len(found.definition.workflow.nodes)
            found.record = found.record.model_copy(update={"state": "running", "error": None})
            observe(RunStarted(run=found.record.name, steps=steps, kept=kept))
            state = _Drive(found, self._settings.max_fan_out, self._clock, self._sleep, observe).run()
            seconds = (found.record.seconds or 0.0) + self._clock() - began
            found.record = found.record.model_copy(update={"state": state, "seconds": seconds})
        finally:
            found.driven = False
        observe(RunEnded(run=found.record.name, record=found.complete))
        return found.complete

    def stop(self, run: str) -> RunRecord:
        """Ask a run to stop: it does before its next task."""
        found = self._run(run)
        if found.record.state in _ENDED:
            state = found.record.state
            raise UsageError(f"The run {found.record.name!r} has {state} already; there is nothing to stop.")
        found.stop = True
        if not found.driven:
            found.record = found.record.model_copy(update={"state": "stopped"})
        return found.complete

    def give_up(self, run: str, why: str) -> RunRecord:
        found = self._run(run)
        if found.shown.state == "interrupted":
            found.record = found.record.model_copy(update={"state": "failed", "error": why})
        return found.complete

    def show(self, run: str) -> RunRecord:
        return self._run(run).complete

    def follow(self, run: str, since: int = -1) -> tuple[RunRecord, int]:
        found = self._run(run)
        tasks = tuple(found.tasks[task] for task, number in found.changed.items() if number > since)
        return found.shown.model_copy(update={"tasks": tasks}), max(found.changed.values(), default=since)

    def runs(
        self, *, limit: int, app: str | None = None, team: str | None = None, workflow: str | None = None
    ) -> list[RunRecord]:
        wanted = {"app": app, "team": team, "workflow": workflow}
        found = [
            run.shown
            for run in reversed(self._runs.values())
            if all(value in {None, getattr(run.record, name)} for name, value in wanted.items())
        ]
        return found[:limit]

    def definition(self, run: str) -> RunDefinition:
        return self._run(run).definition

    def outputs(self, run: str, step: str) -> dict[str, Any] | list[dict[str, Any]]:
        found = self._run(run)
        tasks = [one for one in found.complete.tasks if step in {one.step, one.task}]
        if not tasks or any(task.state != "succeeded" for task in tasks):
            done = {task.step for task in found.tasks.values() if task.state == "succeeded"}
            raise NotFoundError(
                f"The step {step!r} has no outputs in the run {found.record.name!r}.{did_you_mean(step, done)}"
            )
        left = [dict(found.outputs[task.task]) for task in tasks]
        return left[0] if step == tasks[0].task else left

    def logs(self, run: str, task: str, *, stream: Stream = "both", attempt: int | None = None) -> MemoryLogs:
        found = self._run(run)
        known = found.tasks.get(StepName(task))
        kept = None if known is None else found.logs.get((known.task, attempt or known.attempts))
        if kept is None:
            began = [str(name) for name, _ in found.logs]
            raise NotFoundError(f"The run {found.record.name!r} has no log of {task!r}.{did_you_mean(task, began)}")
        chosen = [(name, log) for name, log in kept.items() if stream in {name, "both"}]
        return MemoryLogs(lambda: (chosen, found.tasks[StepName(task)].state != "running"))

    def _run(self, name: str) -> _Run:
        names = list(self._runs)
        if name.startswith("@latest"):
            back = int(name.removeprefix("@latest").removeprefix("-") or 0)
            name = names[-1 - back] if back < len(names) else name
        if name not in self._runs:
            hint = did_you_mean(name, names) if names else " There is none yet."
            raise NotFoundError(f"There is no run {name!r}.{hint}")
        return self._runs[name]


class _Drive:
    """One drive of a run."""

    def __init__(
        self, run: _Run, max_fan_out: int, clock: Callable[[], float], sleep: Callable[[float], None], observe: Observer
    ) -> None:
        self._run, self._max_fan_out = run, max_fan_out
        self._clock, self._sleep, self._observe = clock, sleep, observe
        self._workflow, self._places = run.definition.workflow, AppFiles(run.definition.app, run.definition.workflow)
        self._progress = StepProgress(self._workflow.parents)
        self._tasks: dict[str, list[StepName]] = {}
        self._fans: set[str] = set()

    def run(self) -> RunState:
        while not self._run.stop and (step := self._progress.next_ready()) is not None:
            node = self._workflow.by_name[step]
            assert isinstance(node, Executor)
            try:
                if not self._step(node):
                    return self._ended("failed")
            except ScanflowError as error:
                failure = Failure(summary="could not start", cause=str(error))
                self._end(TaskRecord(task=StepName(step), step=step, state="failed", failure=failure), 1, 1)
                return "failed"
        return self._ended("succeeded")

    def _ended(self, state: RunState) -> RunState:
        return "stopped" if self._run.stop else state

    def _step(self, node: Executor) -> bool:
        if self._progress.must_skip(node.name) or not self._condition_holds(node):
            self._end(TaskRecord(task=StepName(node.name), step=node.name, state="skipped"), 1, 0)
            self._progress.end(node.name, "skipped")
            return True
        items = items_of(
            node, lookup=self._lookup, output_dir=self._workflow.output_dir, outputs=_OUTPUTS, at_most=self._max_fan_out
        )
        if items is not None:
            self._fans.add(node.name)
        named = [(task_name(node.name, None), None)]
        if items is not None:
            named = [(task_name(node.name, index), item) for index, item in enumerate(items)]
        spun, index = split_task(self._run.only or "")
        if spun == node.name and index is not None:
            named = [one for one in named if one[0] == self._run.only]
        self._tasks[node.name] = [task for task, _ in named]
        left = len(named)
        for task, item in named:
            known = self._run.tasks.get(task)
            kept = known is not None and known.state == "succeeded"
            if not kept and (self._run.stop or not self._task(node, task, item, len(named), left)):
                return False
            left -= 1
        self._progress.end(node.name, "ran")
        return True

    def _task(self, node: Executor, task: StepName, item: Any, width: int, left: int) -> bool:
        before = self._run.tasks.get(task)
        attempt, failures = (0 if before is None else before.attempts), 0
        while True:
            attempt += 1
            record = self._attempt(node, task, item, attempt, width)
            if record.state == "succeeded" or failures >= node.retry.limit or self._run.stop:
                self._end(record, width, left - (record.state == "succeeded"))
                return record.state == "succeeded"
            failures += 1
            wait_s = node.retry.wait_s(failures)
            self._end(record, width, left, retry_in_s=wait_s)
            self._sleep(wait_s)

    def _attempt(self, node: Executor, task: StepName, item: Any, attempt: int, width: int) -> TaskRecord:
        parameters = resolve_parameters(
            node, item=item, lookup=self._lookup, output_dir=self._workflow.output_dir, outputs=_OUTPUTS
        )
        began, who = self._clock(), f"Step {node.name!r}"
        record = TaskRecord(task=task, step=node.name, state="running", attempts=attempt, began=began)
        logs = {"stdout": Log(), "stderr": Log()}
        self._run.logs[task, attempt] = logs
        self._run.note(record)
        self._observe(TaskStarted(run=self._run.record.name, task=task, step=node.name, width=width, attempt=attempt))
        outputs: dict[str, Any] = {}
        failure: Failure | None = None
        state: TaskState = "succeeded"
        with logs["stdout"].captured(logs["stderr"]), keep_outputs(outputs):
            try:
                function = self._function(node)
                result = function(**check_parameters(function, _copy(parameters), who=who))
                outputs[RESULT] = _copy(check_result(function, result, who=who))
            except KeyboardInterrupt:
                self._run.stop, state = True, "stopped"
                failure = Failure(summary="stopped")
            except BaseException:  # noqa: BLE001  whatever a user's function raises is how its step ended
                text = traceback.format_exc()
                sys.stderr.write(text)
                state = "failed"
                failure = failure_from_text(text, summary="raised", own_folder=_OWN_FOLDER)
        if failure is None:
            self._run.outputs[task] = outputs
        return record.model_copy(
            update={"state": state, "seconds": max(0.0, self._clock() - began), "failure": failure}
        )

    def _end(self, record: TaskRecord, width: int, left: int, *, retry_in_s: float | None = None) -> None:
        self._run.note(record)
        self._observe(
            TaskEnded(run=self._run.record.name, record=record, width=width, left=left, retry_in_s=retry_in_s)
        )

    def _function(self, node: Executor) -> Callable[..., Any]:
        assert node.target is not None
        if node.target.call is not None:
            return node.target.call
        return load_function(str(node.target), self._places.function_file(node.target, node.name))

    def _condition_holds(self, node: Executor) -> bool:
        if node.when is None:
            return True
        left = node.when.left
        return node.when.holds(self._lookup(left.step or "", left.output))

    def _lookup(self, step: str, output: str) -> Any:
        if self._progress.was_skipped(step):
            return None
        found = [pick_output(self._run.outputs[task], output, step) for task in self._tasks[step]]
        return found if step in self._fans else found[0]


def _copy(value: Any) -> Any:
    """Return a copy, so that steps share nothing; what cannot be copied is shared."""
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  a class of the user's may refuse in its own way
        return value
