"""The embedded backend itself: runs, resumed, spun, stopped and looked at, below one home folder."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from scanflow.app.application import Application
from scanflow.app.workflow import Workflow
from scanflow.backends.local.definition import Definition, check_supported, only_step
from scanflow.backends.local.engine import Engine
from scanflow.backends.local.journal import Journal, StoredRun
from scanflow.backends.local.launch import Launcher
from scanflow.backends.local.layout import Home, RunFolder, split_task
from scanflow.backends.local.locks import is_held, only_driver
from scanflow.backends.local.schedule import Budget
from scanflow.backends.local.shims import stop_attempt
from scanflow.backends.local.tasks import Tracking
from scanflow.backends.local.values import read_outputs
from scanflow.backends.records import Observer, RunEnded, RunRecord, RunStarted, RunState, TaskRecord
from scanflow.errors import AlreadyRunningError, NotFoundError, UnavailableError, UsageError, did_you_mean
from scanflow.names import RunName, StepName
from scanflow.placement.granted import this_machine
from scanflow.settings import Settings

__all__ = ["LocalBackend"]

Stream = Literal["stdout", "stderr"]


class LocalBackend:
    """Runs batch workflows on this machine. It holds nothing open between calls; any process may call for any run."""

    def __init__(self, settings: Settings, *, rng: random.Random | None = None) -> None:
        self._settings = settings
        self._home = Home(settings.home.expanduser().absolute())
        self._rng = rng or random.Random()  # noqa: S311  names for people, not secrets

    def run(
        self,
        app: Application,
        workflow: Workflow,
        *,
        parameters: Mapping[str, Any],
        source: Path | None,
        tracking: Tracking,
        observe: Observer,
    ) -> RunRecord:
        """Run a workflow that :meth:`check` has accepted, from its beginning to its end, and return how it ended."""
        definition = Definition.of(app, workflow, parameters=parameters)
        with self._journal() as journal:
            run = self._enter(journal, app, workflow, definition, source)
            return self._drive(journal, run, app, workflow, tracking, observe)

    def enter(
        self,
        app: Application,
        workflow: Workflow,
        *,
        parameters: Mapping[str, Any],
        source: Path | None,
        name: RunName | None = None,
    ) -> RunRecord:
        """Enter a run that :meth:`check` has accepted, and leave it to :meth:`resume`, by whatever process, to drive
        it. With a name it may be asked for again: the run is entered once.

        Raises:
            InvalidError: another run has that name.
        """
        definition = Definition.of(app, workflow, parameters=parameters)
        with self._journal() as journal:
            run = self._enter(journal, app, workflow, definition, source, name=name)
            folder = RunFolder(Path(run.record.folder)).path
            with _disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            return self._complete(journal, run)

    def free_name(self) -> RunName:
        """Return a name for a run that none has at this moment."""
        with self._journal() as journal:
            return journal.free_name(self._rng)

    def give_up(self, name: str, why: str) -> RunRecord:
        """Note that a run which nobody drives has failed, and why; nothing of it runs on."""
        with self._journal() as journal:
            run = journal.run(name)
            if self._state(run.record) == "interrupted":
                self._stop_orphans(journal, run)
                journal.set_run(run, "failed", seconds=run.record.seconds, error=why)
            return self._complete(journal, journal.run(name))

    def check(self, app: Application, workflow: Workflow) -> None:
        """Refuse at once what would fail later: a field that cannot be honoured here, a file that is not there.

        Raises:
            UnsupportedError: names the field.
            NotFoundError: names the file and where it was looked for.
        """
        check_supported(workflow)
        self._launcher(RunName(""), RunFolder(self._home.path), app, workflow, lambda _: {}).check()

    def resume(
        self, name: str, *, app: Application | None, workflow: Workflow | None, tracking: Tracking, observe: Observer
    ) -> RunRecord:
        """Go on with a run where it stands: finished tasks are kept, running ones adopted, failed ones run again.

        ``app`` and ``workflow`` are what its file says now; None: go on with what it was started with.

        Raises:
            AlreadyRunningError: somebody drives it at this moment.
        """
        with self._journal() as journal:
            run = journal.run(name)
            definition = Definition.model_validate_json(run.definition)
            if app is None or workflow is None:
                app, workflow = definition.read()
            else:
                if definition.spun:
                    workflow = only_step(workflow, definition.spun)
                definition = Definition.of(app, workflow, parameters=definition.parameters, spun=definition.spun)
            self.check(app, workflow)
            if self._state(run.record) == "running":
                raise AlreadyRunningError(
                    f"The run {run.record.name!r} is running. Watch it: scanflow show {run.record.name}"
                )
            journal.redefine(run, definition.model_dump_json())
            return self._drive(journal, run, app, workflow, tracking, observe)

    def spin(
        self,
        name: str,
        step: str,
        *,
        app: Application,
        workflow: Workflow,
        parameters: Mapping[str, Any],
        source: Path | None,
        tracking: Tracking,
        observe: Observer,
    ) -> RunRecord:
        """Run one step anew on the inputs that a past run gave it, as a run of its own.

        Raises:
            NotFoundError: no such run or step.
            UsageError: what the step needs did not finish in that run.
        """
        with self._journal() as journal:
            cut, run = self._enter_spin(journal, name, step, app, workflow, parameters, source)
            return self._drive(journal, run, app, cut, tracking, observe)

    def check_spin(self, past: str, step: str, *, app: Application, workflow: Workflow) -> None:
        """Refuse what :meth:`spin` would."""
        cut = only_step(workflow, step)
        self.check(app, cut)
        with self._journal() as journal:
            self._inputs_of_spin(journal, journal.run(past), cut, step)

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
        """Enter what :meth:`spin` would run, and leave it to :meth:`resume` to drive it. See :meth:`enter`."""
        with self._journal() as journal:
            _, run = self._enter_spin(journal, past, step, app, workflow, parameters, source, name=name)
            return self._complete(journal, run)

    def _enter_spin(
        self,
        journal: Journal,
        past_name: str,
        step: str,
        app: Application,
        workflow: Workflow,
        parameters: Mapping[str, Any],
        source: Path | None,
        name: RunName | None = None,
    ) -> tuple[Workflow, StoredRun]:
        cut = only_step(workflow, step)
        self.check(app, cut)
        definition = Definition.of(app, cut, parameters=parameters, spun=step)
        past = journal.run(past_name)
        inputs = self._inputs_of_spin(journal, past, cut, step)
        chosen = name or journal.free_name(self._rng)
        folder = RunFolder(self._home.runs_of(app.name, app.team) / chosen)
        past_folder = RunFolder(Path(past.record.folder))
        with _disk_errors(folder.path):
            # The folder first: once the run is entered, whoever drives it must find its inputs.
            folder.outputs.mkdir(parents=True, exist_ok=True)
            for other in {record.step for record in inputs if record.state == "succeeded"}:
                if not (folder.outputs / other).is_symlink():
                    (folder.outputs / other).symlink_to(past_folder.outputs / other, target_is_directory=True)
            if past_folder.functions.is_dir():
                shutil.copytree(past_folder.functions, folder.functions, dirs_exist_ok=True)
        tasks = [record.model_copy(update={"origin": past.record.name}) for record in inputs]
        return cut, self._enter(journal, app, cut, definition, source, name=chosen, tasks=tasks)

    def stop(self, name: str) -> RunRecord:
        """Stop a run: its steps are asked to end, and it can be resumed. A run nobody drives is stopped here."""
        with self._journal() as journal:
            run = journal.run(name)
            state = self._state(run.record)
            if state in {"succeeded", "failed", "stopped"}:
                raise UsageError(f"The run {run.record.name!r} has {state} already; there is nothing to stop.")
            journal.request_stop(run)
            if state == "interrupted":
                self._stop_orphans(journal, run)
            return self._complete(journal, journal.run(run.record.name))

    def show(self, name: str) -> RunRecord:
        """Return a run with its tasks; ``@latest`` is the newest."""
        with self._journal() as journal:
            return self._complete(journal, journal.run(name))

    def definition(self, name: str) -> tuple[RunRecord, Definition]:
        """Return a run, and what it is made of."""
        with self._journal() as journal:
            run = journal.run(name)
        return self._shown(run.record), Definition.model_validate_json(run.definition)

    def runs(
        self, *, limit: int, app: str | None = None, team: str | None = None, workflow: str | None = None
    ) -> list[RunRecord]:
        """Return the newest runs first, without their tasks; of one application, team or workflow where it is named."""
        with self._journal() as journal:
            found = journal.runs(limit=limit, app=app, team=team, workflow=workflow)
            return [self._shown(record) for record in found]

    def outputs(self, name: str, step: str) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the named outputs of a step in a run; of a fanned-out step, a list in the order of its items.

        Raises:
            NotFoundError: no such run, or the step did not finish in it.
        """
        record = self.show(name)
        tasks = [task for task in record.tasks if task.step == step]
        if not tasks or any(task.state != "succeeded" for task in tasks):
            done = {task.step for task in record.tasks if task.state == "succeeded"}
            raise NotFoundError(
                f"The step {step!r} has no outputs in the run {record.name!r}.{did_you_mean(step, done)}"
            )
        folder = RunFolder(Path(record.folder))
        found = [read_outputs(folder.outputs_of(task.task)) for task in tasks]
        return found[0] if split_task(tasks[0].task)[1] is None else found

    def log_files(self, name: str, task: str, *, attempt: int | None = None) -> Mapping[Stream, Path]:
        """Return where a task's output is, of its last attempt unless another is named. The files may not exist yet.

        Raises:
            NotFoundError: no such run, or the task never began in it.
        """
        record = self.show(name)
        known = {one.task: one for one in record.tasks}
        found = known.get(StepName(task))
        if found is None or not found.attempts:
            reused = f" Its outputs came from {found.origin!r}." if found is not None and found.origin else ""
            began = [one.task for one in record.tasks if one.attempts]
            hint = "" if reused else did_you_mean(task, began)
            raise NotFoundError(f"The run {record.name!r} has no log of {task!r}.{reused}{hint}")
        folder = RunFolder(Path(record.folder)).attempt(found.task, attempt or found.attempts)
        return {"stdout": folder / "stdout.log", "stderr": folder / "stderr.log"}

    def _enter(
        self,
        journal: Journal,
        app: Application,
        workflow: Workflow,
        definition: Definition,
        source: Path | None,
        *,
        name: RunName | None = None,
        tasks: Sequence[TaskRecord] = (),
    ) -> StoredRun:
        return journal.create_run(
            app=app.name,
            team=app.team,
            workflow=workflow.name,
            parent=self._home.runs_of(app.name, app.team),
            source=None if source is None else str(source),
            definition=definition.model_dump_json(),
            rng=self._rng,
            name=name,
            tasks=tasks,
        )

    def _drive(
        self,
        journal: Journal,
        run: StoredRun,
        app: Application,
        workflow: Workflow,
        tracking: Tracking,
        observe: Observer,
    ) -> RunRecord:
        folder = RunFolder(Path(run.record.folder))
        began = time.monotonic()
        with _disk_errors(folder.path):
            folder.path.mkdir(parents=True, exist_ok=True)
            with only_driver(folder.lock, run.record.name):
                journal.set_run(run, "running", seconds=run.record.seconds)
                kept = sum(record.state == "succeeded" for record in journal.tasks(run).values())
                name = run.record.name
                observe(RunStarted(run=name, folder=str(folder.path), steps=len(workflow.nodes), kept=kept))
                launcher = self._launcher(name, folder, app, workflow, tracking)
                launcher.keep_functions()
                machine = this_machine()
                cores = self._settings.slots or machine.cores
                engine = Engine(
                    journal=journal,
                    run=run,
                    workflow=workflow,
                    launcher=launcher,
                    budget=Budget(cores, machine.memory_bytes),
                    workers=cores,
                    observe=observe,
                )
                state = engine.drive()
                journal.set_run(run, state, seconds=(run.record.seconds or 0.0) + time.monotonic() - began)
        record = self._complete(journal, journal.run(name))
        observe(RunEnded(run=name, record=record))
        return record

    def _launcher(
        self, run: RunName, folder: RunFolder, app: Application, workflow: Workflow, tracking: Tracking
    ) -> Launcher:
        return Launcher(
            home=self._home,
            run=run,
            folder=folder,
            app=app,
            workflow=workflow,
            tracking=tracking,
            max_fan_out=self._settings.max_fan_out,
        )

    def _inputs_of_spin(self, journal: Journal, past: StoredRun, cut: Workflow, step: str) -> list[TaskRecord]:
        needed = set(cut.by_name) - {step}
        found = [record for record in journal.tasks(past).values() if record.step in needed]
        broken = {record.step for record in found if record.state not in {"succeeded", "skipped"}}
        missing = sorted(needed - {record.step for record in found} | broken)
        if missing:
            raise UsageError(
                f"The step {step!r} needs {', '.join(missing)}, which did not finish in the run {past.record.name!r}. "
                "Name a run in which it did: scanflow runs"
            )
        return found

    def _stop_orphans(self, journal: Journal, run: StoredRun) -> None:
        folder = RunFolder(Path(run.record.folder))
        with only_driver(folder.lock, run.record.name):
            for record in journal.tasks(run).values():
                if record.state == "running":
                    attempt = folder.attempt(record.task, record.attempts)
                    if (attempt / "alive").exists():
                        stop_attempt(attempt)
            journal.set_run(run, "stopped", seconds=run.record.seconds)

    def _complete(self, journal: Journal, run: StoredRun) -> RunRecord:
        """Return a run with all its tasks, those of steps that were never reached included."""
        known = journal.tasks(run)
        _, workflow = Definition.model_validate_json(run.definition).read()
        begun = {record.step for record in known.values()}
        pending = [
            TaskRecord(task=StepName(node.name), step=node.name, state="pending")
            for node in workflow.nodes
            if node.name not in begun
        ]
        position = {name: index for index, name in enumerate(name for level in workflow.levels for name in level)}

        def order(record: TaskRecord) -> tuple[int, int]:
            return position.get(record.step, len(position)), split_task(record.task)[1] or 0

        tasks = tuple(sorted([*known.values(), *pending], key=order))
        return self._shown(run.record).model_copy(update={"tasks": tasks})

    def _shown(self, record: RunRecord) -> RunRecord:
        state = self._state(record)
        return record if state == record.state else record.model_copy(update={"state": state})

    def _state(self, record: RunRecord) -> RunState:
        if record.state == "running" and not is_held(RunFolder(Path(record.folder)).lock):
            return "interrupted"
        return record.state

    @contextmanager
    def _journal(self) -> Iterator[Journal]:
        with _disk_errors(self._home.path):
            journal = Journal(self._home.journal)
        try:
            yield journal
        finally:
            journal.close()


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Turn what a disk says no to into our error; the run stands as the journal has it, and can be resumed."""
    try:
        yield
    except OSError as error:
        if isinstance(error, ConnectionError | InterruptedError):
            raise
        raise UnavailableError(
            f"{str(folder)!r} cannot be used: {error.strerror or error}. Free space or fix its permissions, then: "
            "scanflow resume @latest"
        ) from error
