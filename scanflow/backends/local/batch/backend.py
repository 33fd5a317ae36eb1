"""The embedded backend itself: runs, resumed, spun, stopped and looked at, below one home folder."""

from __future__ import annotations

import hashlib
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scanflow.app.application import Application
from scanflow.app.plan import Plan, plan_workflow
from scanflow.app.workflow import Workflow
from scanflow.backends.local.batch.definition import KeptDefinition, check_supported, ignored_fields
from scanflow.backends.local.batch.engine import RunEngine
from scanflow.backends.local.batch.journal import Journal, JournalRun
from scanflow.backends.local.batch.launch import Launcher
from scanflow.backends.local.batch.pickles import home_key, write_signed
from scanflow.backends.local.batch.values import Outputs
from scanflow.backends.local.layout import Home, RunFolder
from scanflow.backends.local.log_files import FileLogs
from scanflow.backends.port import Environment, RunDefinition, Stream
from scanflow.backends.records import Observer, RunEnded, RunRecord, RunStarted, RunState, TaskRecord
from scanflow.backends.schedule import Budget
from scanflow.backends.tasks import cut_down, inputs_of_spin, outputs_kept, running_tasks, with_pending
from scanflow.disk import disk_error
from scanflow.errors import (
    AlreadyRunningError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    did_you_mean,
)
from scanflow.names import RunName, StepName
from scanflow.placement.available_cpus import this_machine
from scanflow.private import open_home, private_folder
from scanflow.processes.files import is_locked, only_driver
from scanflow.processes.shims import stop_attempt
from scanflow.settings import Settings

BEGIN_S = 5.0
"""Longest wait for a task to begin that is to be stopped."""

POLL_S = 0.01


class LocalBackend:
    """Runs batch workflows on this machine. It holds nothing open between calls; any process may call for any run."""

    def __init__(self, settings: Settings, *, rng: random.Random | None = None) -> None:
        self._settings = settings
        self._home = Home(settings.home.expanduser().absolute())
        self._rng = rng or random.Random()  # noqa: S311  names for people, not secrets

    def enter(self, definition: RunDefinition, name: RunName | None = None) -> RunRecord:
        cut = cut_down(definition)
        self._check(cut)
        app = cut.app
        with self._journal() as journal:
            tasks, chosen = [], name
            if cut.past is not None:
                chosen = name or journal.free_name(self._rng)
                tasks = self._inherit(journal, cut, RunFolder(self._home.runs_of(app.name, app.team) / chosen))
            run = journal.create_run(
                app=app.name,
                team=app.team,
                workflow=cut.workflow.name,
                parent=self._home.runs_of(app.name, app.team),
                source=None if cut.source is None else str(cut.source),
                definition=KeptDefinition.of(cut).model_dump_json(),
                rng=self._rng,
                name=chosen,
                tasks=tasks,
            )
            with _disk_errors(folder := _folder(run).path):
                private_folder(folder)
            return self._complete(journal, run)

    def _inherit(self, journal: Journal, cut: RunDefinition, folder: RunFolder) -> list[TaskRecord]:
        """Give a spin what it needs of its past run, and return the tasks that this was left by."""
        past = self._complete(journal, journal.run(cut.past or ""))
        inputs, past_folder = inputs_of_spin(cut, past), RunFolder(Path(past.folder))
        with _disk_errors(folder.path):
            # The folder first: once the run is entered, whoever drives it must find its inputs.
            private_folder(folder.outputs)
            for other in {record.step for record in inputs if record.state == "succeeded"}:
                if not (folder.outputs / other).is_symlink():
                    (folder.outputs / other).symlink_to(past_folder.outputs / other, target_is_directory=True)
            if past_folder.functions.is_dir():
                shutil.copytree(past_folder.functions, folder.functions, dirs_exist_ok=True)
        return inputs

    def keep_function(self, pickled: bytes) -> str:
        name = f"{hashlib.sha256(pickled).hexdigest()}.pickle"
        with _disk_errors(self._home.functions):
            open_home(self._home.path)
            private_folder(self._home.functions)
            write_signed(self._home.functions / name, pickled, home_key(self._home.path))
        return name

    def free_name(self) -> RunName:
        with self._journal() as journal:
            return journal.free_name(self._rng)

    def give_up(self, name: str, why: str) -> RunRecord:
        """Note that a run which nobody drives has failed, and why; nothing of it runs on."""
        with self._journal() as journal:
            run = journal.run(name)
            if self._state(run.record) == "interrupted":
                self._stop_leftover_tasks(journal, run)
                journal.set_run(run, "failed", seconds=run.record.seconds, error=why)
            return self._complete(journal, journal.run(name))

    def check(self, definition: RunDefinition) -> None:
        cut = cut_down(definition)
        self._check(cut)
        if cut.past is not None:
            with self._journal() as journal:
                inputs_of_spin(cut, self._complete(journal, journal.run(cut.past)))

    def _check(self, definition: RunDefinition) -> None:
        check_supported(definition.workflow)
        self._launcher(definition, RunFolder(self._home.path), lambda _: {}).check()

    def plan(self, app: Application, workflow: Workflow) -> Plan:
        self._check(RunDefinition(app, workflow))
        machine = this_machine()
        return plan_workflow(
            workflow, machine_cores=self._settings.slots or machine.cores, machine_memory_bytes=machine.memory_bytes
        )

    def drive(
        self, name: str, definition: RunDefinition | None = None, *, environment: Environment, observe: Observer
    ) -> RunRecord:
        with self._journal() as journal:
            run = journal.run(name)
            made = cut_down(definition or _definition(run))
            self._check(made)
            if self._state(run.record) == "running":
                raise AlreadyRunningError(
                    f"The run {run.record.name!r} is running. Watch it: scanflow show {run.record.name}"
                )
            journal.redefine(run, KeptDefinition.of(made).model_dump_json())
            folder, name, began = _folder(run), run.record.name, time.monotonic()
            launcher = self._launcher(made, folder, environment)
            with _disk_errors(folder.path, then=f"scanflow resume {name}"):
                private_folder(folder.path)
                with only_driver(folder.lock, name):
                    journal.set_run(run, "running", seconds=run.record.seconds)
                    observe(
                        RunStarted(
                            run=name,
                            steps=len(made.workflow.nodes),
                            kept=sum(task.state == "succeeded" for task in journal.tasks(run).values()),
                            ignored=ignored_fields(made.workflow),
                        ).with_details(folder=str(folder.path))
                    )
                    launcher.keep_functions()
                    machine = this_machine()
                    cores = self._settings.slots or machine.cores
                    budget = Budget(cores, machine.memory_bytes)
                    engine = RunEngine(journal, run, made.workflow, launcher, budget, workers=cores, observe=observe)
                    journal.set_run(run, engine.drive(), seconds=(run.record.seconds or 0.0) + time.monotonic() - began)
            record = self._complete(journal, journal.run(name))
        observe(RunEnded(run=record.name, record=record))
        return record

    def stop(self, name: str) -> RunRecord:
        """Stop a run: its steps are asked to end, and it can be resumed. A run nobody drives is stopped here."""
        with self._journal() as journal:
            run = journal.run(name)
            state = self._state(run.record)
            if state in {"succeeded", "failed", "stopped"}:
                raise UsageError(f"The run {run.record.name!r} has {state} already; there is nothing to stop.")
            journal.request_stop(run)
            if state == "interrupted":
                self._stop_leftover_tasks(journal, run)
            return self._complete(journal, journal.run(run.record.name))

    def stop_task(self, name: str, task: str) -> RunRecord:
        with self._journal() as journal:
            run = journal.run(name)
            record, steps = self._complete(journal, run), _definition(run).workflow.by_name
            running = running_tasks(record, task)
            if inside := [one.task for one in running if getattr(steps[one.step], "in_process", False)]:
                raise UnsupportedError(
                    f"The task {inside[0]!r} cannot be stopped alone: its step is in_process, a thread of what drives "
                    f"the run. Stop the run: scanflow stop {record.name}"
                )
            with _disk_errors(Path(record.folder)):
                for one in running:
                    _stop_begun(_folder(run).attempt(one.task, one.attempts), one.task)
            return self._complete(journal, journal.run(record.name))

    def show(self, name: str) -> RunRecord:
        with self._journal() as journal:
            found = self._complete(journal, journal.run(name))
            # One that ended between two looks, at the journal and at the lock, seems to be nobody's.
            return self._complete(journal, journal.run(name)) if found.state == "interrupted" else found

    def follow(self, name: str, since: int = -1) -> tuple[RunRecord, int]:
        with self._journal() as journal:
            run = journal.run(name)
            # The state first: what ends between the two looks is then seen once more.
            state = self._shown(run.record)
            tasks, last = journal.changed_tasks(run, since)
            return state.model_copy(update={"tasks": tuple(tasks)}), last

    def _task_ended(self, name: str, task: str) -> bool:
        with self._journal() as journal:
            run = journal.run(name)
            record = journal.task(run, task)
            return self._state(run.record) != "running" or (record is not None and record.state != "running")

    def definition(self, name: str) -> RunDefinition:
        with self._journal() as journal:
            return _definition(journal.run(name))

    def runs(
        self, *, limit: int, app: str | None = None, team: str | None = None, workflow: str | None = None
    ) -> list[RunRecord]:
        with self._journal() as journal:
            found = journal.runs(limit=limit, app=app, team=team, workflow=workflow)
            return [self._shown(record) for record in found]

    def outputs(self, name: str, step: str) -> dict[str, Any] | list[dict[str, Any]]:
        record = self.show(name)
        tasks = outputs_kept(record, step)
        folder, key = RunFolder(Path(record.folder)), home_key(self._home.path)
        found = [dict(Outputs(folder.outputs_of(task.task), key)) for task in tasks]
        return found[0] if step == tasks[0].task else found

    def logs(self, name: str, task: str, *, stream: Stream = "both", attempt: int | None = None) -> FileLogs:
        record = self.show(name)
        known = {one.task: one for one in record.tasks}
        found = known.get(StepName(task))
        if found is None or not found.attempts:
            reused = f" Its outputs came from {found.origin!r}." if found is not None and found.origin else ""
            began = [one.task for one in record.tasks if one.attempts]
            hint = "" if reused else did_you_mean(task, began)
            raise NotFoundError(f"The run {record.name!r} has no log of {task!r}.{reused}{hint}")
        folder = RunFolder(Path(record.folder)).attempt(found.task, attempt or found.attempts)
        files = [(one, folder / f"{one}.log") for one in ("stdout", "stderr") if stream in {one, "both"}]
        return FileLogs(lambda: (files, self._task_ended(record.name, task)))

    def _launcher(self, definition: RunDefinition, folder: RunFolder, tracking: Environment) -> Launcher:
        most = self._settings.max_fan_out
        return Launcher(definition, folder, home=self._home, max_fan_out=most, tracking=tracking)

    def _stop_leftover_tasks(self, journal: Journal, run: JournalRun) -> None:
        folder = _folder(run)
        with only_driver(folder.lock, run.record.name):
            for record in journal.tasks(run).values():
                if record.state == "running":
                    attempt = folder.attempt(record.task, record.attempts)
                    if (attempt / "alive").exists():
                        stop_attempt(attempt)
            journal.set_run(run, "stopped", seconds=run.record.seconds)

    def _complete(self, journal: Journal, run: JournalRun) -> RunRecord:
        """Return a run with all its tasks, those of steps that were never reached included."""
        tasks = with_pending(_definition(run).workflow, journal.tasks(run).values())
        return self._shown(run.record).model_copy(update={"tasks": tasks})

    def _shown(self, record: RunRecord) -> RunRecord:
        state = self._state(record)
        return record if state == record.state else record.model_copy(update={"state": state})

    def _state(self, record: RunRecord) -> RunState:
        if record.state == "running" and not is_locked(RunFolder(Path(record.folder)).lock):
            return "interrupted"
        return record.state

    @contextmanager
    def _journal(self) -> Iterator[Journal]:
        with _disk_errors(self._home.path):
            journal = Journal(open_home(self._home.path) / self._home.journal.name)
        try:
            yield journal
        finally:
            journal.close()


def _definition(run: JournalRun) -> RunDefinition:
    return KeptDefinition.model_validate_json(run.definition).read(run.record.source)


def _stop_begun(attempt: Path, task: str) -> None:
    """Stop an attempt that the journal says runs: it may be about to begin at this instant."""
    give_up = time.monotonic() + BEGIN_S
    while not (attempt / "started").exists():
        if time.monotonic() > give_up:
            raise UnavailableError(f"The task {task!r} is about to start, and cannot be stopped yet. Try again.")
        time.sleep(POLL_S)
    stop_attempt(attempt)


def _folder(run: JournalRun) -> RunFolder:
    return RunFolder(Path(run.record.folder))


@contextmanager
def _disk_errors(folder: Path, then: str = "") -> Iterator[None]:
    """Turn what a disk says no to into our error; the run stands as the journal has it, and can be resumed."""
    try:
        yield
    except OSError as error:
        if isinstance(error, ConnectionError | InterruptedError):
            raise
        raise disk_error(error, folder, then=then) from error
