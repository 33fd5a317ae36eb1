"""The loop that drives one run: start ready tasks, wait for exits, schedule what follows.

It is level-triggered: its state is in the journal and the attempts' folders, so a run that was interrupted at any
instant is resumed by calling it again. Finished tasks are kept and running attempts are adopted; whether an attempt of
unknown state starts is decided by the process that claims it first (see ``shim.py``).
"""

from __future__ import annotations

import heapq
import queue
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from scanflow.app.executor import Executor
from scanflow.backends.journal import Journal, JournalRun
from scanflow.backends.local.batch.function_threads import (
    FunctionOutcome,
    StepEnvironment,
    capture_streams,
    choose_turn,
    run_function,
)
from scanflow.backends.local.batch.launch import Launcher
from scanflow.backends.local.batch.outcomes import (
    build_task_record,
    describe_function_failure,
    describe_process_failure,
    describe_refusal,
)
from scanflow.backends.local.batch.step_devices import DeviceQueue, StepDevices
from scanflow.backends.local.batch.step_programs import Python, can_fork
from scanflow.backends.local.layout import RunFolder
from scanflow.backends.local.python_environments import Patience, is_ready, make_environment
from scanflow.backends.run_records import (
    EnvironmentReady,
    Observer,
    RunState,
    TaskEnded,
    TaskRecord,
    TaskStarted,
    Waiting,
)
from scanflow.backends.step_schedule import Budget, Share, StepProgress
from scanflow.backends.task_parameters import NO_ITEM, Resolved
from scanflow.backends.tasks import build_empty_record, group_by_step
from scanflow.backends.values import copy_value, describe_missing_result
from scanflow.errors import ScanflowError
from scanflow.files.disk import build_disk_error
from scanflow.names import RunName, StepName
from scanflow.processes.shims import Exit, Shims, stop_attempt

if TYPE_CHECKING:  # most runs cache nothing
    from scanflow.backends.local.batch.local_step_cache import TaskCache

WARM_IMPORTS = "scanflow.backends.local.batch.warm_imports"
STOP_POLL_S = 0.5  # how often requests to stop by other processes are checked


@dataclass(slots=True)
class _Task:
    name: StepName
    node: Executor
    item: Resolved
    share: Share
    attempt: int = 0
    failures: int = 0
    """Failed attempts during this drive."""

    was_stop_requested: bool = False
    """Whether a stop was requested before this drive adopted it: resuming runs it again."""


@dataclass(slots=True)
class _Step:
    node: Executor
    width: int
    unfinished: int


class RunEngine:
    """Drives one run in the calling thread. For one drive only."""

    def __init__(
        self,
        journal: Journal,
        run: JournalRun,
        launcher: Launcher,
        budget: Budget,
        devices: StepDevices,
        *,
        workers: int,
        observe: Observer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal, self._run, self._workflow = journal, run, launcher.programs.definition.workflow
        self._launcher, self._programs, self._budget = launcher, launcher.programs, budget
        self._devices, self._workers = devices, workers
        self._inputs, self._observe, self._clock = launcher.inputs, observe, clock
        self._folder = RunFolder(Path(run.record.folder))
        self._known: Mapping[StepName, TaskRecord] = journal.read_tasks(run)
        self._recorded = group_by_step(self._known.values())
        self._progress = StepProgress(self._workflow.parents)
        self._steps: dict[str, _Step] = {}
        self._queue: deque[_Task] = deque()
        self._retries: list[tuple[float, int, _Task]] = []
        self._parked: dict[Path, list[_Task]] = {}
        self._waiting: DeviceQueue[_Task] = DeviceQueue(devices)
        self._announced = set[str]()  # steps of which it was said that they wait for a device
        self._shown_waits: dict[
            str, tuple[StepName, str]
        ] = {}  # of each step the first task that waits for one, and why
        self._running: dict[Path, _Task] = {}
        self._threads: dict[StepName, _Task] = {}
        self._done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._patiences: dict[Path, Patience] = {}
        self._failed = self._stopping = self._task_stopped = False
        self._next_poll = 0.0

    def drive(self) -> RunState:
        with ExitStack() as stack:
            warm = any(can_fork(node) for node in self._workflow.steps)
            self._shims = stack.enter_context(Shims(warm=WARM_IMPORTS if warm else None))
            self._shims.warm_up()
            self._pool = stack.enter_context(ThreadPoolExecutor(self._workers, thread_name_prefix="scanflow-wait"))
            # Functions take turns (function_threads.py): more threads would only contend for the interpreter.
            stack.callback(self._waiting.close)
            self._functions = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="scanflow-step"))
            if any(node.in_process for node in self._workflow.steps):
                self._turn, self._log_to = choose_turn(), stack.enter_context(capture_streams())
            while self._advance():
                try:
                    self._wait()
                except KeyboardInterrupt:
                    if self._stopping:
                        raise  # the second Ctrl-C: the steps run on; resume will adopt them
                    self._stop()
        if self._stopping or (self._task_stopped and not self._failed):
            return "stopped"
        return "succeeded" if self._progress.finished else "failed"

    def _advance(self) -> bool:
        """Start all ready tasks; return whether there is anything to wait for. What needs no failed step goes on."""
        while not self._stopping:
            while (step := self._progress.take_next_ready()) is not None:
                self._open(step)
            self._requeue_due()
            waiting = self._waiting.find_next()
            task = waiting or (self._queue[0] if self._queue else None)
            if task is None or not self._budget.take(task.share):
                if waiting is not None:
                    self._waiting.pause(waiting.name)
                break
            (self._queue.popleft if waiting is None else self._waiting.pop_next)()
            self._begin(task)  # one at a time: a cached task makes others ready at once
        busy = bool(self._running or self._threads or self._parked)
        return busy or (not self._stopping and bool(self._retries or self._queue or self._waiting))

    def _wait(self) -> None:
        now = self._clock()
        due = self._retries[0][0] - now if self._retries else STOP_POLL_S
        for folder, exit_ in self._shims.wait(max(0.0, min(due, STOP_POLL_S))):
            self._end_process(self._running.pop(folder), folder, exit_)
        while not self._done.empty():
            self._done.get()()
        if now >= self._next_poll and not self._stopping:
            self._next_poll = now + STOP_POLL_S
            self._waiting.retry()  # another run may have given one back
            for folder in self._devices.watch():
                stop_attempt(folder)
            for folder in self._devices.list_growth():
                self._record_use(folder)
            if self._journal.is_stop_requested(self._run):
                self._stop()

    def _record_use(self, folder: Path) -> None:
        """Record the memory that a running attempt was seen to hold of its devices; how busy they are changes."""
        record = self._journal.read_task(self._run, self._running[folder].name) if folder in self._running else None
        if record is not None:
            uses = [
                use.model_copy(update={"busy_share": None, "power_w": None}) for use in self._devices.describe(folder)
            ]
            self._journal.set_task(self._run, record.model_copy(update={"devices": tuple(uses)}))

    def _stop(self) -> None:
        self._stopping = True
        for patience in self._patiences.values():
            patience.cancel()
        for folder in self._running:
            stop_attempt(folder)
        for task in self._threads:
            why = "it runs in this process, where it cannot be stopped"
            self._observe(Waiting(run=self._run.record.name, what=task, why=why))

    # From a ready step to its tasks

    def _open(self, step: str) -> None:
        node = self._workflow.by_name[step]
        assert isinstance(node, Executor)
        try:
            if self._progress.should_skip(step) or not self._inputs.is_condition_met(node):
                self._skip(node)
                return
            tasks = self._inputs.expand_tasks(node)
        except ScanflowError as error:
            self._steps[step] = _Step(node, 1, 1)
            failed = _Task(StepName(step), node, NO_ITEM, Share())
            self._end(failed, build_task_record(step, StepName(step), describe_refusal(error)))
            return
        self._steps[step] = _Step(node, len(tasks), len(tasks))
        current = {name for name, _ in tasks} or {StepName(step)}
        for name in self._recorded.get(step, set()) - current:
            if self._known[name].attempts:
                self._launcher.delete_task(name)
            self._journal.delete_task(self._run, name)  # its list of items has changed since, or has become known
        share = Share(node.resources.cores or 1.0, node.resources.memory_bytes or 0)
        if not tasks:
            self._note_without_attempt(build_empty_record(step))
            self._progress.end(step, "ran")
        for name, item in tasks:
            self._enter(_Task(name, node, item, share))

    def _skip(self, node: Executor) -> None:
        self._inputs.skip(node.name)
        self._note_without_attempt(TaskRecord(task=StepName(node.name), step=node.name, state="skipped"))
        self._progress.end(node.name, "skipped")

    def _note_without_attempt(self, record: TaskRecord) -> None:
        """Record and report that a step was skipped or had no items."""
        before = self._known.get(record.task)
        if before is None or before.state != record.state:
            self._journal.set_task(self._run, record)
        self._observe(TaskEnded(run=self._run.record.name, record=record, width=1))

    def _enter(self, task: _Task) -> None:
        """Count, adopt or queue a task, by its state in the journal."""
        record = self._known.get(task.name)
        task.attempt = record.attempts if record else 0
        if record is not None and record.state == "succeeded" and self._folder.has_outputs(task.name):
            self._count_finished(task)
        elif record is not None and record.state == "running" and not task.node.in_process:
            self._adopt(task)
        else:
            self._queue.append(task)

    def _adopt(self, task: _Task) -> None:
        folder = self._folder.get_attempt_folder(task.name, task.attempt)
        exit_ = self._shims.adopt(folder) if (folder / "alive").exists() else Exit(None, reason="void")
        if exit_ is not None and not exit_.succeeded:
            self._queue.append(task)  # it failed before this drive: resuming means to run it again
            return
        task.was_stop_requested = (folder / "stop").exists()
        self._budget.hold(task.share)
        self._devices.adopt(task.name, folder)
        if exit_ is not None:
            self._end_process(task, folder, exit_)
            return
        self._running[folder] = task
        self._report_start(task, adopted=True)

    # From a task to an attempt

    def _begin(self, task: _Task) -> None:
        try:
            parameters = self._inputs.resolve_parameters(task.node, task.item)
            python = self._programs.choose_python(task.node)
            if python.requirements is not None and not is_ready(python.path):
                self._park(task, python)
                return
            if task.node.cache and (origin := self._cache.reuse(task.node, task.name, parameters)) is not None:
                self._end_reused(task, origin)
                return
            if self._devices.find_demand(task.node) is not None and not self._take_devices(task):
                return
            task.attempt += 1
            began = TaskRecord(
                task=task.name,
                step=task.node.name,
                state="running",
                attempts=task.attempt,
                began=time.time(),
                devices=self._devices.describe(self._locate_attempt(task)),
            )
            self._journal.set_task(self._run, began)
            if task.node.in_process:
                self._begin_in_thread(task, parameters)
            else:
                variables = self._devices.build_variables(task.node, self._locate_attempt(task))
                folder = self._launcher.prepare(task.node, task.name, task.attempt, parameters, devices=variables)
                self._running[folder] = task
                self._shims.start(folder)
        except ScanflowError as error:
            self._budget.release(task.share)
            self._waiting.pause(task.name)
            self._devices.release(self._locate_attempt(task))
            self._end(
                task, build_task_record(task.node.name, task.name, describe_refusal(error), attempts=task.attempt)
            )
            return
        self._report_start(task)

    def _take_devices(self, task: _Task) -> bool:
        folder = self._folder.get_attempt_folder(task.name, task.attempt + 1)
        why, step = self._waiting.take(task, task.node, task.name, folder), task.node.name
        first, last_why = self._shown_waits.get(step, (task.name, ""))
        if not why:
            if first == task.name:
                self._shown_waits.pop(step, None)
            return True
        self._budget.release(task.share)
        if first == task.name and why != last_why:
            self._shown_waits[step] = first, why
            waiting = TaskRecord(task=first, step=step, state="pending", attempts=task.attempt)
            self._journal.set_task(self._run, waiting.model_copy(update={"waits_for": f"a GPU: {why}"}))
        if step not in self._announced:
            self._announced.add(step)
            self._observe(Waiting(run=self._run.record.name, what=f"a GPU for {task.name}", why=why))
        return False

    def _locate_attempt(self, task: _Task) -> Path:
        return self._folder.get_attempt_folder(task.name, task.attempt)

    def _begin_in_thread(self, task: _Task, parameters: Resolved) -> None:
        function = self._programs.load_target(task.node)
        outputs = self._launcher.clean_outputs(task.name, task.attempt)
        self._threads[task.name] = task

        environment = StepEnvironment(
            output_dir=outputs,
            cwd=self._programs.app_dir,
            env=self._launcher.build_env(task.node, task.name, outputs),
            log_folder=self._folder.get_attempt_folder(task.name, task.attempt),
            log_to=self._log_to,
            turn=self._turn,
        )
        parameters = Resolved(copy_value(parameters.value), parameters.exact)

        def work() -> None:
            who = f"Step {task.node.name!r}"
            outcome = run_function(function, parameters, environment, who=who, key=self._programs.key)
            self._submit_callback(lambda: self._end_thread(task, outcome))

        self._functions.submit(work)

    def _park(self, task: _Task, python: Python) -> None:
        """Park a task until its environment is created; tasks of other environments continue meanwhile."""
        self._budget.release(task.share)
        first = python.path not in self._parked
        self._parked.setdefault(python.path, []).append(task)
        if not first:
            return
        self._observe(Waiting(run=self._run.record.name, what=f"the environment of {task.node.name}"))
        began, patience = self._clock(), Patience()
        self._patiences[python.path] = patience

        def work() -> None:
            error: ScanflowError | None = None
            try:
                make_environment(python.path, python.requirements or (), base=python.base, patience=patience)
            except ScanflowError as caught:
                error = caught
            except OSError as caught:
                error = build_disk_error(caught, python.path, then=f"scanflow resume {self._run.record.name}")
            self._submit_callback(lambda: self._unpark(python.path, self._clock() - began, error))

        self._pool.submit(work)

    def _unpark(self, python: Path, seconds: float, error: ScanflowError | None) -> None:
        tasks = self._parked.pop(python)
        if error is None:
            what = f"the environment of {tasks[0].node.name}"
            self._observe(EnvironmentReady(run=self._run.record.name, what=what, seconds=seconds))
            self._queue.extendleft(reversed(tasks))
            return
        for task in tasks if not self._stopping else ():
            self._end(
                task, build_task_record(task.node.name, task.name, describe_refusal(error), attempts=task.attempt)
            )

    # From an attempt's end to what follows

    @cached_property
    def _cache(self) -> TaskCache:
        from scanflow.backends.local.batch.local_step_cache import TaskCache

        return TaskCache(self._journal, self._run.record, self._launcher.keys)

    def _end_reused(self, task: _Task, origin: RunName) -> None:
        self._budget.release(task.share)
        record = build_task_record(task.node.name, task.name, None, attempts=task.attempt)
        self._end(task, record.model_copy(update={"seconds": 0.0, "origin": origin}))

    def _end_process(self, task: _Task, folder: Path, exit_: Exit) -> None:
        self._budget.release(task.share)
        before, is_over = self._known.get(task.name), self._devices.is_over_share(folder)
        earlier = before.devices if before is not None and before.attempts == task.attempt else ()
        devices = self._devices.describe(folder) or earlier  # an adopted one's claim may be gone with its process
        failure = None if exit_.succeeded else describe_process_failure(exit_, folder, task.node.timeout_s)
        failure = None if failure is None else self._devices.explain_failure(folder, failure)
        if self._devices.release(folder):
            self._waiting.retry()
        if is_over and exit_.reason == "stopped":
            exit_ = replace(exit_, reason=None)  # it failed: nobody asked for it to be stopped
        if exit_.reason == "void" or (exit_.reason == "stopped" and task.was_stop_requested and not self._stopping):
            # It never started, or it was stopped before this drive: neither is a failure.
            if not self._stopping:
                self._queue.appendleft(task)
            return
        if failure is None and task.node.target is not None:
            failure = describe_missing_result(self._folder.get_outputs_folder(task.name))
        record = build_task_record(task.node.name, task.name, failure, attempts=task.attempt, exit_=exit_)
        self._finish_attempt(task, record.model_copy(update={"devices": devices}) if devices else record)

    def _end_thread(self, task: _Task, outcome: FunctionOutcome) -> None:
        del self._threads[task.name]
        self._budget.release(task.share)
        failure = None if outcome.error is None else describe_function_failure(outcome.error)
        self._finish_attempt(
            task, build_task_record(task.node.name, task.name, failure, attempts=task.attempt, seconds=outcome.seconds)
        )

    def _finish_attempt(self, task: _Task, record: TaskRecord) -> None:
        retry = task.node.retry
        if record.state == "failed" and task.failures < retry.limit and not self._stopping:
            task.failures += 1
            wait_s = retry.wait_s(task.failures)
            heapq.heappush(self._retries, (self._clock() + wait_s, id(task), task))
            self._journal.set_task(self._run, record)
            self._observe(self._build_end_event(record, retry_in_s=wait_s))
            return
        note = None
        if task.node.cache:
            if record.state == "succeeded":
                self._cache.keep(task.node, task.name)
            note = self._cache.find_note(task.name)
        self._end(task, record.model_copy(update={"cache_note": note}) if note else record)

    def _end(self, task: _Task, record: TaskRecord) -> None:
        if record.state == "succeeded":
            self._folder.record_outputs_list(task.name)
        self._journal.set_task(self._run, record)
        if record.state == "succeeded":
            self._count_finished(task)
        elif record.state == "failed":
            self._failed = True
        elif record.state == "stopped":
            self._task_stopped = True
        self._observe(self._build_end_event(record))

    def _count_finished(self, task: _Task) -> None:
        step = self._steps[task.node.name]
        step.unfinished -= 1
        if step.unfinished == 0:
            self._progress.end(step.node.name, "ran")

    def _requeue_due(self) -> None:
        while self._retries and self._retries[0][0] <= self._clock():
            self._queue.append(heapq.heappop(self._retries)[2])

    def _submit_callback(self, result: Callable[[], None]) -> None:
        """Queue a callback for the driving thread; called by worker threads."""
        self._done.put(result)
        self._shims.wake()

    def _report_start(self, task: _Task, *, adopted: bool = False) -> None:
        width = self._steps[task.node.name].width
        self._observe(
            TaskStarted(
                run=self._run.record.name,
                task=task.name,
                step=task.node.name,
                width=width,
                attempt=task.attempt,
                adopted=adopted,
            )
        )

    def _build_end_event(self, record: TaskRecord, *, retry_in_s: float | None = None) -> TaskEnded:
        step = self._steps[record.step]
        return TaskEnded(
            run=self._run.record.name, record=record, width=step.width, left=step.unfinished, retry_in_s=retry_in_s
        )
