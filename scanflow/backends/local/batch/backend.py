"""The embedded backend: submits, drives, stops and shows the runs of one home folder."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from scanflow.accelerators.visible import is_driver_loaded
from scanflow.app.application import Application
from scanflow.app.mpi import MPIProfile
from scanflow.app.plan import Plan, plan_workflow
from scanflow.app.workflow import Workflow
from scanflow.backends.backend_port import Environment
from scanflow.backends.definition import describe_edited, enter_run, read_definition, redefine_run
from scanflow.backends.function_store import delete_unused_functions, save_function
from scanflow.backends.journal import DamagedJournalError, Journal, JournalRun
from scanflow.backends.local.batch import step_devices
from scanflow.backends.local.batch.launch import Launcher
from scanflow.backends.local.batch.run_files import build_rebuilt_error, open_journal, write_run_file
from scanflow.backends.local.batch.run_loop import RunEngine
from scanflow.backends.local.batch.step_programs import PreparedRun, StepPrograms, check_supported, list_ignored_fields
from scanflow.backends.local.layout import Home, RunFolder
from scanflow.backends.local.mpi.job_step import is_job
from scanflow.backends.log_files import FileLogs
from scanflow.backends.log_reader import Stream
from scanflow.backends.output_files import OutputFiles, OutputFilesReader
from scanflow.backends.pickles import read_home_key
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import (
    FINAL_STATES,
    Observer,
    RunEnded,
    RunRecord,
    RunStarted,
    RunState,
    StepFile,
    TaskRecord,
)
from scanflow.backends.step_files import list_step_files
from scanflow.backends.step_schedule import Budget, Share
from scanflow.backends.tasks import (
    OutputsT,
    add_details,
    add_pending_tasks,
    arrange_outputs,
    cut_down,
    get_logged_task,
    list_output_tasks,
    list_spin_inputs,
    reset_changed_tasks,
    select_current_tasks,
    select_running_tasks,
    select_tasks,
    split_task,
)
from scanflow.backends.values import Outputs
from scanflow.errors import AlreadyRunningError, UnavailableError, UnsupportedError, UsageError
from scanflow.files.disk import build_disk_error
from scanflow.files.private import create_private_folder, open_home
from scanflow.names import RunName, StepName
from scanflow.placement.available_cpus import read_this_machine
from scanflow.placement.sysfs import read_topology
from scanflow.processes.shared_files import hold_driver_lock, is_locked
from scanflow.processes.shims import stop_attempt
from scanflow.settings import Settings

if TYPE_CHECKING:  # most runs are no MPI jobs, and have no GPUs
    from scanflow.accelerators.accelerator_port import Accelerators
    from scanflow.backends.device_claims import HomeDevices
    from scanflow.placement.mpi.groups import ClusterNode
    from scanflow.placement.mpi.job_plan import MPIPlan

BEGIN_S = 5.0
"""Longest wait for the start of a task that is to be stopped."""

POLL_S = 0.01


class LocalBackend:
    """Runs batch workflows and MPI jobs on this machine.

    It holds nothing open between calls; any process may call it for any run.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        rng: random.Random | None = None,
        accelerators: Callable[[], Accelerators] | None = None,
    ) -> None:
        self._settings = settings
        self._home = Home(settings.home.expanduser().absolute())
        self._accelerators = accelerators
        self._is_checked = False
        self._shown: tuple[JournalRun, RunRecord] | None = None
        """The run that ended by itself and was shown last: a page asks for its log, outputs and files by its name."""

        self._rng = rng or random.Random()  # noqa: S311  names for people, not secrets

    def enter(self, definition: RunDefinition, name: RunName | None = None) -> RunRecord:
        prepared = self.prepare(definition)
        reduced, inputs = prepared.programs.definition, prepared.inputs
        parent = self._home.runs_folder(reduced.app.name, reduced.app.team)
        with self._journal() as journal:
            run_name = name
            if reduced.past is not None:
                run_name = name or journal.free_name(self._rng)
                past = journal.run(reduced.past)
                _link_inputs(inputs, _get_folder(past), RunFolder(parent / run_name))
            saved = prepared.programs.saved
            run = enter_run(journal, reduced, parent=parent, rng=self._rng, name=run_name, tasks=inputs, saved=saved)
            with _translate_disk_errors(folder := _get_folder(run).path):
                create_private_folder(folder)
                if not (folder / "run.json").exists():
                    write_run_file(journal, run.record.name)
            return self._add_pending_tasks(journal, run)

    def keep_function(self, pickled: bytes) -> str:
        with _translate_disk_errors(self._home.functions):
            return save_function(self._home.functions, pickled, read_home_key(open_home(self._home.path)))

    def forget_functions(self, before: float, needed: Collection[str] = ()) -> int:
        with self._journal() as journal:
            return delete_unused_functions(self._home.functions, before, needed, journal.iterate_definitions())

    def free_name(self) -> RunName:
        with self._journal() as journal:
            return journal.free_name(self._rng)

    def give_up(self, name: str, why: str) -> RunRecord:
        """Mark a run without a driver as failed, with the reason, and stop its remaining tasks."""
        with self._journal() as journal:
            run = journal.run(name)
            if self._get_state(run.record) == "interrupted":
                self._stop_leftover_tasks(journal, run)
                journal.set_run(run, "failed", seconds=run.record.seconds, error=why)
                _record_end(journal, name)
            return self._add_pending_tasks(journal, journal.run(name))

    def check(self, definition: RunDefinition) -> None:
        self.prepare(definition)

    def prepare(self, definition: RunDefinition) -> PreparedRun:
        if isinstance(definition, PreparedRun):
            return definition
        reduced = cut_down(self._as_batch(definition))
        check_supported(reduced.workflow)
        step_devices.check_devices(reduced.workflow, lambda: self._devices)
        programs = StepPrograms(reduced, self._home)
        programs.check()
        return PreparedRun.create(definition, programs, self._list_inputs(reduced))

    def _as_batch(self, definition: RunDefinition) -> RunDefinition:
        if definition.workflow.type != "mpi":
            return definition
        from scanflow.backends.local.mpi.job import as_batch

        return as_batch(definition, self._home.path)

    def _list_inputs(self, reduced: RunDefinition) -> list[TaskRecord]:
        if reduced.past is None:
            return []
        with self._journal() as journal:
            return list_spin_inputs(reduced, self._add_pending_tasks(journal, journal.run(reduced.past)))

    def _open_step_devices(self, run: RunName, workflow: Workflow) -> step_devices.StepDevices:
        if not step_devices.names_devices(workflow) and self._accelerators is None and not is_driver_loaded():
            return step_devices.NoStepDevices()
        from scanflow.backends.local.batch.task_devices import TaskDevices

        return TaskDevices(self._devices, run, workflow)

    @cached_property
    def _devices(self) -> HomeDevices:
        from scanflow.backends.device_claims import HomeDevices

        return HomeDevices(self._home.path, self._accelerators)

    def plan(self, app: Application, workflow: Workflow) -> Plan:
        machine = read_this_machine()
        if workflow.type == "mpi":
            from scanflow.backends.local.mpi.job import plan_workload

            batch = self._as_batch(RunDefinition(app, workflow)).workflow
            step_devices.check_devices(batch, lambda: self._devices)
            plan = plan_workload(app, workflow, home=self._home.path, machine_memory_bytes=machine.memory_bytes)
            return step_devices.plan_devices(plan, batch, lambda: self._devices)
        self.prepare(RunDefinition(app, workflow))
        cores = self._settings.slots or machine.cores
        plan = plan_workflow(workflow, machine_cores=cores, machine_memory_bytes=machine.memory_bytes)
        return step_devices.plan_devices(plan, workflow, lambda: self._devices)

    @property
    def queue(self) -> str:
        return "a queue of the server: first come, first served, while other jobs use the cores"

    def job_nodes(self, app: Application, workflow: Workflow) -> list[ClusterNode]:
        from scanflow.backends.local.mpi.job import resolve_job
        from scanflow.placement.mpi.local_plan import build_local_node

        resolve_job(app, workflow)
        return [build_local_node(read_topology())]

    def job_plan(self, app: Application, workflow: Workflow) -> MPIPlan:
        from scanflow.backends.local.mpi.claims import list_neighbours
        from scanflow.backends.local.mpi.job import resolve_job
        from scanflow.placement.mpi.local_plan import plan_local_job

        return plan_local_job(resolve_job(app, workflow)[0], neighbours=list_neighbours(self._home.path))

    def job_share(self, run: str) -> Share | None:
        workflow = self.definition(run).workflow
        if not is_job(workflow):
            return None
        resources = workflow.steps[0].resources
        return Share(resources.cores or 1.0, resources.memory_bytes or 0)

    def job_capacity(self) -> Share:
        machine = read_this_machine()
        return Share(float(self._settings.slots or machine.cores), machine.memory_bytes)

    def measure_job(self, app: Application, workflow: Workflow) -> tuple[MPIProfile | None, str]:
        from scanflow.backends.local.mpi.job import measure_here

        with TemporaryDirectory(prefix="scanflow-mpi-") as folder:
            profile = measure_here(app, workflow, Path(folder))
        return profile.profile, str(profile)

    def drive(
        self, name: str, definition: RunDefinition | None = None, *, environment: Environment, observe: Observer
    ) -> RunRecord:
        with self._journal() as journal:
            run = journal.run(name)
            programs = self.prepare(definition or read_definition(run)).programs
            workflow = programs.definition.workflow
            if self._get_state(run.record) == "running":
                raise AlreadyRunningError(
                    f"The run {run.record.name!r} is running. Watch it: scanflow show {run.record.name}"
                )
            folder, name, began = _get_folder(run), run.record.name, time.monotonic()
            launcher = Launcher(programs, folder, max_fan_out=self._settings.max_fan_out, tracking=environment)
            started = _redefine(journal, run, launcher)
            with _translate_disk_errors(folder.path, then=f"scanflow resume {name}"):
                create_private_folder(folder.path)
                with hold_driver_lock(folder.lock, name):
                    journal.set_run(run, "running", seconds=run.record.seconds)
                    write_run_file(journal, name)
                    observe(started)
                    machine = read_this_machine()
                    cores = self._settings.slots or machine.cores
                    budget = Budget(cores, machine.memory_bytes)
                    devices = self._open_step_devices(name, workflow)
                    engine = RunEngine(journal, run, launcher, budget, devices, workers=cores, observe=observe)
                    journal.set_run(run, engine.drive(), seconds=(run.record.seconds or 0.0) + time.monotonic() - began)
                    _record_end(journal, name)
            record = self._add_pending_tasks(journal, journal.run(name))
        observe(RunEnded(run=record.name, record=record))
        return record

    def stop(self, name: str) -> RunRecord:
        """Request a run to stop; it can be resumed. A run without a driver is stopped here."""
        with self._journal() as journal:
            run = journal.run(name)
            if run.record.state in FINAL_STATES:
                raise UsageError(
                    f"The run {run.record.name!r} has {run.record.state} already; there is nothing to stop."
                )
            journal.request_stop(run)
            # Checked after the request: the driver may have died before reading it.
            if self._get_state(run.record) == "interrupted":
                with suppress(AlreadyRunningError):  # another process drives it now, and reads the request
                    self._stop_leftover_tasks(journal, run)
            return self._add_pending_tasks(journal, journal.run(run.record.name))

    def stop_task(self, name: str, task: str) -> RunRecord:
        with self._journal() as journal:
            run = journal.run(name)
            record, steps = self._add_pending_tasks(journal, run), read_definition(run).workflow.by_name
            running = select_running_tasks(record, task)
            if threads := [task.task for task in running if getattr(steps[task.step], "in_process", False)]:
                raise UnsupportedError(
                    f"The task {threads[0]!r} cannot be stopped alone: its step is in_process, a thread of the "
                    f"process that drives the run. Stop the run: scanflow stop {record.name}"
                )
            with _translate_disk_errors(Path(record.folder)):
                for running_task in running:
                    _stop_attempt(
                        _get_folder(run).get_attempt_folder(running_task.task, running_task.attempts), running_task.task
                    )
            return self._add_pending_tasks(journal, journal.run(record.name))

    def show(self, name: str) -> RunRecord:
        with self._journal() as journal:
            run = journal.run(name)
            if self._shown is not None and self._shown[0] == run:
                return self._shown[1]
            record = self._add_pending_tasks(journal, run)
            if run.record.state in {"succeeded", "failed"}:  # ranks of one that was stopped may still end
                self._shown = run, record
            # A run that ends between reading the journal and checking the lock seems interrupted: read it again.
            return self._add_pending_tasks(journal, journal.run(name)) if record.state == "interrupted" else record

    def follow(self, name: str, since: int = -1) -> tuple[RunRecord, int]:
        with self._journal() as journal:
            run = journal.run(name)
            # The state first: a task that ends in between is then reported once more.
            state = self._with_current_state(run.record)
            tasks, last = journal.read_changed_tasks(run, since)
            return state.model_copy(update={"tasks": tuple(tasks)}), last

    def _has_task_ended(self, name: str, task: str) -> bool:
        with self._journal() as journal:
            run = journal.run(name)
            record = journal.read_task(run, task)
            return self._get_state(run.record) != "running" or (record is not None and record.state != "running")

    def definition(self, name: str) -> RunDefinition:
        with self._journal() as journal:
            return read_definition(journal.run(name))

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
        with self._journal() as journal:
            records = journal.runs(limit=limit, offset=offset, app=app, team=team, workflow=workflow, state=state)
            return [self._with_current_state(record) for record in records]

    def outputs(self, name: str, step: str) -> dict[str, Any] | list[dict[str, Any]]:
        return self._read_outputs(name, step, lambda folder, key: dict(Outputs(folder, key)))

    def output_files(self, name: str, step: str, *, max_bytes: int | None = None) -> OutputFiles | list[OutputFiles]:
        return self._read_outputs(name, step, OutputFilesReader(max_bytes).read)

    def _read_outputs(self, name: str, step: str, read: Callable[[Path, bytes], OutputsT]) -> OutputsT | list[OutputsT]:
        record = self.show(name)
        tasks = list_output_tasks(record, step)
        folder, key = RunFolder(Path(record.folder)), read_home_key(self._home.path)
        return arrange_outputs(step, tasks, [read(folder.get_outputs_folder(task.task), key) for task in tasks])

    def files(self, name: str, step: str | None = None) -> list[StepFile]:
        record = self.show(name)
        folder, names = RunFolder(Path(record.folder)), {task.task for task in record.tasks}
        return [
            file
            for task in select_tasks(record, step)
            if task.task == task.step or task.step not in names  # a job's ranks write into its own folder
            for file in list_step_files(task.task, folder.get_outputs_folder(task.task))
        ]

    def logs(self, name: str, task: str, *, stream: Stream = "both", attempt: int | None = None) -> FileLogs:
        record = self.show(name)
        task_record = get_logged_task(record, task)
        folder = RunFolder(Path(record.folder)).get_attempt_folder(task_record.task, attempt or task_record.attempts)
        files = [("stdout", folder / "stdout.log"), ("stderr", folder / "stderr.log")]
        step, rank = split_task(task)
        if rank is not None and is_job(self.definition(record.name).workflow):
            from scanflow.backends.rank_files import list_rank_logs

            files = list_rank_logs(RunFolder(Path(record.folder)).get_outputs_folder(StepName(step)), rank)
        files = [file for file in files if stream in {file[0], "both"}]
        return FileLogs(lambda: (files, self._has_task_ended(record.name, task)))

    def _stop_leftover_tasks(self, journal: Journal, run: JournalRun) -> None:
        folder = _get_folder(run)
        with hold_driver_lock(folder.lock, run.record.name):
            if journal.run(run.record.name).record.state != "running":
                return  # it ended between reading the journal and taking the lock
            for record in journal.read_tasks(run).values():
                if record.state == "running":
                    attempt = folder.get_attempt_folder(record.task, record.attempts)
                    if (attempt / "alive").exists():
                        stop_attempt(attempt)
            journal.set_run(run, "stopped", seconds=run.record.seconds)
            _record_end(journal, run.record.name)

    def _add_pending_tasks(self, journal: Journal, run: JournalRun) -> RunRecord:
        """Return a run with all its tasks, pending ones included."""
        workflow = read_definition(run).workflow
        record = self._with_current_state(run.record)
        tasks = add_pending_tasks(workflow, journal.read_tasks(run).values(), is_driven=record.state == "running")
        if record.state == "stopped":  # without a driver; one that resumes the run reads how they ended
            tasks = tuple(
                task.model_copy(update={"state": "stopped"}) if task.state == "running" else task for task in tasks
            )
        if is_job(workflow):
            from scanflow.backends.job_times import MPI
            from scanflow.backends.rank_files import build_rank_tasks

            tasks = (*build_rank_tasks(_get_folder(run).get_outputs_folder(tasks[0].task), tasks[0]), *tasks)
            record = record.with_details(type=MPI)
        return add_details(record, workflow, tasks)

    def _with_current_state(self, record: RunRecord) -> RunRecord:
        state = self._get_state(record)
        return record if state == record.state else record.model_copy(update={"state": state})

    def _get_state(self, record: RunRecord) -> RunState:
        if record.state == "running" and not is_locked(RunFolder(Path(record.folder)).lock):
            return "interrupted"
        return record.state

    @contextmanager
    def _journal(self) -> Iterator[Journal]:
        with _translate_disk_errors(self._home.path):
            open_home(self._home.path)
            journal = open_journal(self._home, check=not self._is_checked)
            self._is_checked = True
        try:
            yield journal
        except DamagedJournalError as error:
            if (rebuilt := build_rebuilt_error(self._home, journal)) is None:
                raise
            raise rebuilt from error
        finally:
            journal.close()


def _redefine(journal: Journal, run: JournalRun, launcher: Launcher) -> RunStarted:
    """Make what is driven now the definition of a run; return what is kept of an earlier drive, and what is not."""
    definition, folder, tasks = launcher.programs.definition, _get_folder(run), journal.read_tasks(run)
    workflow = definition.workflow
    if changed := reset_changed_tasks(read_definition(run).workflow, workflow, tasks.values()):
        tasks |= changed
        journal.replace_tasks(run, tasks.values())
    current = select_current_tasks(workflow, tasks.values())
    finished = [task for task in current if task.state == "succeeded"]
    kept = [task for task in finished if folder.has_outputs(task.task)]
    edited = redefine_run(journal, run, definition, kept, launcher.programs.saved)
    if kept:
        edited += launcher.keys.list_edited_files(kept)
    return RunStarted(
        run=run.record.name,
        steps=len(workflow.nodes),
        kept=len(kept),
        gone=tuple(task.task for task in finished if task not in kept),
        changed=tuple(changed),
        edited=describe_edited(edited),
        ignored=list_ignored_fields(workflow),
    ).with_details(folder=str(folder.path))


def _record_end(journal: Journal, name: str) -> None:
    """Write a run's end into its folder, too. A full disk does not make another end of it: the journal has it."""
    with suppress(UnavailableError):
        write_run_file(journal, name)


def _stop_attempt(attempt: Path, task: str) -> None:
    """Stop an attempt that the journal lists as running, once it has started."""
    deadline = time.monotonic() + BEGIN_S
    while not (attempt / "started").exists():
        if time.monotonic() > deadline:
            raise UnavailableError(f"The task {task!r} is about to start, and cannot be stopped yet. Try again.")
        time.sleep(POLL_S)
    stop_attempt(attempt)


def _link_inputs(inputs: Iterable[TaskRecord], past: RunFolder, folder: RunFolder) -> None:
    """Link a spin's inputs from its past run, before it is entered: then its driver must find them."""
    with _translate_disk_errors(folder.path):
        create_private_folder(folder.outputs)
        for step in {record.step for record in inputs if record.state == "succeeded"}:
            if not (folder.outputs / step).is_symlink():
                target = os.path.relpath(past.outputs / step, folder.outputs)  # a home may be moved
                (folder.outputs / step).symlink_to(target, target_is_directory=True)


def _get_folder(run: JournalRun) -> RunFolder:
    return RunFolder(Path(run.record.folder))


@contextmanager
def _translate_disk_errors(folder: Path, then: str = "") -> Iterator[None]:
    """Translate disk errors into ours; the run keeps its state in the journal, and can be resumed."""
    try:
        yield
    except OSError as error:
        if isinstance(error, ConnectionError | InterruptedError):
            raise
        raise build_disk_error(error, folder, then=then) from error
