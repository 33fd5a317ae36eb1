"""The controller of runs: enters, drives and stops requested runs, and records their end."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scanflow.backends.run_records import Waiting
from scanflow.deployer.masked_deployer import mask_problem
from scanflow.errors import InternalError, ScanflowError, UnavailableError, UsageError
from scanflow.files.private import create_private_folder
from scanflow.http.problems import build_problem
from scanflow.names import RunName
from scanflow.processes.background_jobs import MAX_STARTS, Job, Lines, Processes
from scanflow.text.masking import Masker
from scanflow_server.control.job_queue import JobQueue
from scanflow_server.controller_loop import IDLE_S, POLL_S, ErrorIsolation
from scanflow_server.run_requests import ensure_entered
from scanflow_server.server_context import ServerContext, make_driver_command
from scanflow_server.store import event_store, run_store
from scanflow_server.store.run_store import Drive, RequestedRun

_log = logging.getLogger(__name__)
MAX_NEW = 50
"""How many queued runs are entered in a tick, where a server finds many that it has not entered itself."""

_MAX_REASON_LENGTH = 500


@dataclass(frozen=True, slots=True)
class _LookedRun:
    drive: Drive
    job: Job
    alive: bool = False
    begun: bool = False
    """Whether its process was started at least once."""

    queued: bool = False


class RunsController:
    def __init__(self, context: ServerContext, processes: Processes | None = None) -> None:
        """``processes``: starts the runs' drivers. None: as processes of their own."""
        self._context = context
        self._processes = Processes(context.work_notifier.notify) if processes is None else processes
        self._isolation = ErrorIsolation()
        self._queue = JobQueue(context.deployer)
        self._queued = set[tuple[str, int]]()
        """Drives that were entered, and which only this controller can start: until their turn nothing is done."""

    def tick(self) -> float:
        began = time.monotonic()
        with self._context.store.read() as connection:
            drives = run_store.list_active(connection)
        self._queued &= {(drive.name, drive.number) for drive in drives}
        looked = self._look(drives)
        # All live processes count before any is started, as a run that resumes may be older than those.
        free = self._context.settings.max_runs - sum(run.alive for run in looked)
        waits = self._queue.list_waiting([(run.drive.name, run.begun) for run in looked])
        for run in looked:
            with self._isolation.isolate(f"The run {run.drive.name!r}"):
                what = waits.get(run.drive.name)
                may_start = free > 0 and what is None
                is_told = not what or (run.queued and run.job.lines.exists())
                if may_start or run.drive.stop or not (is_told and (run.alive or run.queued)):
                    free -= self._advance(run, what, may_start=may_start)
        # So that a long queue takes a tenth of a core at most.
        return max(POLL_S, 10 * (time.monotonic() - began)) if drives else IDLE_S

    def _look(self, drives: Sequence[Drive]) -> list[_LookedRun]:
        """Look at the processes of drives. Of those that are new in the queue only the first are looked at."""
        looked, new = list[_LookedRun](), 0
        for drive in drives:
            job = self._context.get_run_job(drive.name, drive.number)
            if (drive.name, drive.number) in self._queued:
                looked.append(_LookedRun(drive, job, queued=True))
                continue
            with self._isolation.isolate(f"The process of the run {drive.name!r}"):
                alive = job.alive
                run = _LookedRun(drive, job, alive=alive, begun=alive or job.starts > 0)
                new += not run.begun
                if run.begun or drive.stop or new <= MAX_NEW:
                    looked.append(run)
        return looked

    def _tell_waiting(self, run: RequestedRun, job: Job, what: str | None) -> None:
        """Record once in a job's lines that it is queued, and what it waits for."""
        if not what or job.lines.exists():
            return
        create_private_folder(job.path)
        Lines(job.lines).append(Waiting(run=RunName(run.name), what=what).model_dump_json())

    def _advance(self, looked: _LookedRun, what: str | None, *, may_start: bool) -> bool:
        """Do the next step of a run, or end it; return whether a process was started. ``what``: it waits for that."""
        drive, job = looked.drive, looked.job
        with self._context.store.read() as connection:
            run = run_store.find(connection, drive.name)
        if run is None or not run.active or run.drive != drive.number:
            return False
        self._tell_waiting(run, job, what)
        started = self._try_continue(run, job, alive=looked.alive, may_start=may_start)
        if started:
            self._queued.discard((drive.name, drive.number))
        elif not (looked.begun or run.stop or job.result is not None):
            self._queued.add((drive.name, drive.number))
        return started

    def _try_continue(self, run: RequestedRun, job: Job, *, alive: bool, may_start: bool) -> bool:
        try:
            return self._continue(run, job, alive=alive, may_start=may_start)
        except UnavailableError:  # it may be transient
            raise
        except ScanflowError as error:  # it can never be entered
            problem = mask_problem(build_problem(error)[1], Masker(run.definition, run.asked.application))
            _log.warning("The run %r cannot be executed: %s", run.name, problem["detail"])
            job.end_without_process({"record": None, "problem": problem})
            return False

    def _continue(self, run: RequestedRun, job: Job, *, alive: bool, may_start: bool) -> bool:
        if not alive and (result := job.result) is not None:
            self._record_end(run, job, result)
            return False
        ensure_entered(self._context, run)
        if run.stop:
            self._stop(run, job, alive=alive)
            return False
        if alive:
            return False
        if job.starts >= MAX_STARTS:
            self._give_up(run, job)
            return False
        if not may_start:
            return False
        if self._context.deployer.show(run.name).state == "running" and run.asked.action != "resume":
            return False  # another process drives it: wait for its end
        order: dict[str, Any] = {"what": "run", "run": run.name, "team": run.team}
        order |= run.asked.model_dump(include={"action", "application", "functions"})
        job.prepare({**order, "settings": self._context.child_settings})
        return self._processes.start(job, self._context.environ, command=make_driver_command(job))

    def _stop(self, run: RequestedRun, job: Job, *, alive: bool) -> None:
        # Repeated at each tick: a drive that was just starting may have missed it.
        try:
            record = self._context.deployer.stop(run.name)
        except UsageError:
            record = self._context.deployer.show(run.name)  # it has ended
        # An interrupted one died between two ticks, and is stopped at the next.
        if not alive and record.state not in {"running", "interrupted"}:
            job.end_without_process({"record": record.model_dump(mode="json"), "problem": None})

    def _give_up(self, run: RequestedRun, job: Job) -> None:
        error = InternalError(
            f"The run {run.name!r} was started {job.starts} times, and its process died each time. "
            f"See its log: {job.log}"
        )
        record = self._context.deployer.batch.give_up(run.name, str(error))
        job.end_without_process({"record": record.model_dump(mode="json"), "problem": build_problem(error)[1]})

    def _record_end(self, run: RequestedRun, job: Job, result: dict[str, Any]) -> None:
        record = result.get("record") or {"state": "failed"}
        problem = result.get("problem")
        outcome = "failed" if problem is not None and record["state"] != "stopped" else str(record["state"])
        data = {
            "workflow": run.workflow,
            "drive": run.drive,
            "action": run.asked.action,
            "seconds": record.get("seconds"),
            "error": problem["detail"] if problem else record.get("error") or describe_first_failure(record),
        }
        with self._context.store.write() as connection:
            if run_store.record_end(connection, run.name, run.drive, outcome=outcome, problem=problem):
                at = self._context.clock()
                event_store.record(
                    connection, f"run.{outcome}", f"run/{run.name}", at=at, app=run.app, team=run.team, data=data
                )
        self._processes.forget(job)


def describe_first_failure(record: Mapping[str, Any]) -> str | None:
    """Return the first task of a run that failed, with the last line of its cause."""
    for task in record.get("tasks") or ():
        if failure := task.get("failure"):
            cause = str(failure.get("cause") or "").strip().rpartition("\n")[2]
            return f"{task['task']}: {cause or failure['summary']}"[:_MAX_REASON_LENGTH]
    return None
