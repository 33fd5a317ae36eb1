"""What is known of an MPI job: its object, its pods and its launcher's log, read into this home."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from scanflow.app.mpi import MPIWorkload
from scanflow.app.quantities import round_memory
from scanflow.backends.journal import Journal, JournalRun
from scanflow.backends.kubernetes.batch.facts import read_drive, write_outputs
from scanflow.backends.kubernetes.batch.home import RunHome
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import selector
from scanflow.backends.kubernetes.mpi.output import RankOutput
from scanflow.backends.kubernetes.mpi.seen import ENDED_FOR, STOPPED, JobSeen, see
from scanflow.backends.kubernetes.pod_logs import read_lines_since
from scanflow.backends.parameters import RESULT
from scanflow.backends.rank_files import RANKS, first_failure, still_running
from scanflow.backends.records import TaskRecord
from scanflow.failures import Failure
from scanflow.names import StepName

MAX_OUTPUT_BYTES: Final = 256 * 1024 * 1024
"""Most that all ranks may write; one that floods its output would fill this disk."""

_TAIL: Final = 2_000


class JobFacts:
    """Reads how a job stands, and writes it down."""

    def __init__(
        self, cluster: Cluster, namespace: str, journal: Journal, run: JournalRun, home: RunHome, workload: MPIWorkload
    ) -> None:
        self._cluster, self._namespace = cluster, namespace
        self._journal, self._run, self._home, self.workload = journal, run, home, workload

    @property
    def task(self) -> StepName:
        return StepName(self.workload.name)

    def last(self, kinds: tuple[str, ...]) -> Manifest | None:
        """Return the last object of the run, of any of these kinds."""
        found = [
            one
            for kind in kinds
            for one in self._cluster.find(kind, self._namespace, labels=selector(run=self._run.record.name))[0]
        ]
        return max(found, key=read_drive, default=None)

    @property
    def is_done(self) -> bool:
        """Whether the job ended well before."""
        known = self._journal.tasks(self._run).get(self.task)
        return known is not None and known.state == "succeeded"

    def seen(self, manifest: Manifest) -> JobSeen:
        """Return how a job stands."""
        pods, _ = self._cluster.find("Pod", self._namespace, labels=selector(run=self._run.record.name))
        own = [one for one in pods if _is_of(one, manifest)]
        waits = any(not one["spec"].get("nodeName") or one["status"].get("phase") == "Pending" for one in own)
        events = self._cluster.find("Event", self._namespace)[0] if waits else []
        return see(manifest, own, events)

    def look(self, manifest: Manifest) -> JobSeen:
        """Read how a job stands: what its ranks wrote is added to their files, and its task is written down."""
        seen = self.seen(manifest)
        drive = read_drive(manifest)
        output = self.output(drive)
        if seen.launcher is not None and seen.began is not None:
            before = output.read().until
            output.add(read_lines_since(self._cluster, self._namespace, seen.launcher, before), over=seen.over)
            output.place(seen.nodes)
        self.note(self.record(seen, drive, output))
        return seen

    def output(self, drive: int) -> RankOutput:
        return RankOutput(self._home.locate_outputs(self.task) / RANKS, self._home.attempt(self.task, drive))

    def record(self, seen: JobSeen, drive: int, output: RankOutput) -> TaskRecord:
        """Return the job's task."""
        ended = seen.state in {"succeeded", "failed", "stopped"}
        failure = self._failure(seen, output) if ended and seen.state != "succeeded" else None
        took = None if seen.began is None or seen.ended is None else seen.ended - seen.began
        if seen.state == "succeeded":
            result = {"seconds": output.read().seconds, "ranks": output.n_tasks, "flavor": "openmpi"}
            write_outputs(self._home, self.task, {RESULT: json.dumps(result)})
        return TaskRecord(
            task=self.task,
            step=self.workload.name,
            state=seen.state,
            attempts=drive,
            began=seen.began,
            seconds=took,
            exit_code=seen.exit_code,
            failure=failure,
        )

    def note(self, record: TaskRecord) -> None:
        """Write the job's task down, where it changed. What was known of one that has ended stays when pods go."""
        known = self._journal.tasks(self._run).get(record.task)
        if known == record or (known is None and record.state == "pending"):
            return
        if known is not None and known.attempts == record.attempts and record.began is None:
            kept = {name: getattr(known, name) for name in ("began", "seconds", "exit_code", "failure")}
            record = record.model_copy(update=kept)
        self._journal.set_task(self._run, record)

    def stop(self, manifest: Manifest, seen: JobSeen, *, why: str | None = None) -> bool:
        """Have a job end, for a reason or because somebody wants it to; return whether its object stays.

        ``mpirun`` is ended by its node, so that its log stays. A job whose launcher has no node is deleted.
        """
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        told = {STOPPED: "true"} if why is None else {ENDED_FOR: why}
        self._cluster.patch(kind, name, self._namespace, {"metadata": {"annotations": told}})
        if seen.launcher is not None and seen.on_node and not seen.over:
            self._cluster.patch("Pod", seen.launcher, self._namespace, {"spec": {"activeDeadlineSeconds": 1}})
            return True
        return not self._cluster.delete(kind, name, self._namespace)

    def deleted(self, *, asked: bool, why: str | None) -> str | None:
        """Write down that a job's object is gone, and return the run's error."""
        new = TaskRecord(task=self.task, step=self.workload.name, state="pending", attempts=1)
        known = self._journal.tasks(self._run).get(self.task, new)
        if known.state in {"running", "pending"}:
            failure = None if why is None else Failure(summary="failed", cause=why)
            state = "stopped" if why is None else "failed"
            self._journal.set_task(self._run, known.model_copy(update={"state": state, "failure": failure}))
        if asked or why is not None:
            return None
        return (
            f"The job of the run in the namespace {self._namespace!r} was deleted by somebody, and so stopped. Start "
            f"it again: scanflow resume {self._run.record.name}"
        )

    def _failure(self, seen: JobSeen, output: RankOutput) -> Failure:
        name, folder = self.workload.name, self._home.locate_outputs(self.task) / RANKS
        if seen.state == "stopped":
            return Failure(summary="stopped")
        summary = "failed" if seen.exit_code is None else f"exit code {seen.exit_code}"
        if seen.why is not None:
            return Failure(summary=summary, cause=seen.why)
        if seen.reason == "DeadlineExceeded" and self.workload.timeout_s is not None:
            said = still_running(name, output.n_tasks, self.workload.timeout_s, folder)
            return Failure(summary="timed out", cause=said)
        ended = sorted(output.read().ended.items(), key=lambda one: one[1][0])
        in_order = [(rank, code) for rank, (_, code) in ended]
        said = first_failure(name, in_order, folder) or self._of_mpirun(seen, output)
        if seen.lost:
            said = f"{_lost(seen.lost)} {said}"
        if seen.reason == "OOMKilled":
            said += " Its pod was killed because it used more memory than it may: raise resources_per_task."
        return Failure(summary=summary, cause=said)

    def _of_mpirun(self, seen: JobSeen, output: RankOutput) -> str:
        how = f" ({seen.reason})" if seen.reason else ""
        text = output.own_lines(_TAIL)
        return (
            f"mpirun of {self.workload.name!r} failed{how} before one of its {output.n_tasks} ranks did. {text}".strip()
        )


def flooded(size: int, name: str) -> str:
    """Return why a job is ended whose ranks wrote too much."""
    return (
        f"The ranks of {name!r} wrote {round_memory(size)}, more than {round_memory(MAX_OUTPUT_BYTES)}. Write "
        "results into files, and fewer lines."
    )


def _lost(workers: Mapping[str, str]) -> str:
    names = ", ".join(f"{name} ({why})" for name, why in sorted(workers.items()))
    return f"Workers were lost: {names}."


def _is_of(pod: Manifest, manifest: Manifest) -> bool:
    """Return whether a pod is of this drive's job: its name begins with the job's."""
    return str(pod["metadata"]["name"]).startswith(f"{manifest['metadata']['name']}-")
