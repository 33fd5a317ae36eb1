"""Read an MPI job's object, pods and launcher log into this home."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from scanflow.app.mpi import MPIWorkload
from scanflow.app.quantities import round_memory
from scanflow.backends.journal import Journal, JournalRun
from scanflow.backends.kubernetes.batch.batch_home import RunHome
from scanflow.backends.kubernetes.batch.pod_layout import format_workflow_name
from scanflow.backends.kubernetes.batch.workflow_facts import read_drive, write_outputs
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import JOB_KINDS, MPIEngine
from scanflow.backends.kubernetes.mpi.launcher_log import ObservedRanks, RankOutput
from scanflow.backends.kubernetes.mpi.observed_job import (
    ENDED_FOR_ANNOTATION,
    STOPPED_ANNOTATION,
    ObservedJob,
    observe_job,
)
from scanflow.backends.kubernetes.object_labels import build_selector
from scanflow.backends.kubernetes.pod_logs import read_lines_since
from scanflow.backends.rank_files import RANKS, describe_first_failure, describe_running_ranks
from scanflow.backends.run_records import FINAL_STATES, TaskRecord
from scanflow.backends.task_parameters import RESULT
from scanflow.names import StepName
from scanflow.text.failures import Failure

MAX_OUTPUT_BYTES: Final = 256 * 1024 * 1024
"""Limit of the output of all ranks, which would otherwise fill this disk."""

_TAIL: Final = 2_000
_NOT_THERE: Final = ("not found", "No such file or directory")
_OWN_IMAGE_HINT: Final = (
    "A job with image='...' has the files of that image, and none of the application's folder. Put the program into "
    "the image, or name no image and set SCANFLOW_KUBERNETES_MPI_IMAGE, which gets the folder."
)
"""What to do about a program that an image of the job's own does not have."""


class JobFacts:
    """Observes a job and records its state."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        journal: Journal,
        run: JournalRun,
        home: RunHome,
        workload: MPIWorkload,
        engine: MPIEngine,
    ) -> None:
        self._cluster, self._namespace, self._kind = cluster, namespace, JOB_KINDS[engine]
        self._journal, self._run, self._home, self.workload = journal, run, home, workload

    @property
    def task(self) -> StepName:
        return StepName(self.workload.name)

    def find_last(self) -> Manifest | None:
        """Return the run's last job, of either engine: the cluster may lack the other one, or forbid its jobs."""
        labels = build_selector(run=self._run.record.name)
        manifests, _ = self._cluster.find(self._kind, self._namespace, labels=labels)
        for kind in JOB_KINDS.values():
            if kind != self._kind:
                manifests += self._cluster.list_optional(kind, self._namespace, labels=labels)
        return max(manifests, key=read_drive, default=None)

    @property
    def is_done(self) -> bool:
        """Whether the job has succeeded before."""
        record = self._journal.read_tasks(self._run).get(self.task)
        return record is not None and record.state == "succeeded"

    def observe(self, manifest: Manifest) -> ObservedJob:
        """Return the observed state of a job."""
        pods, _ = self._cluster.find("Pod", self._namespace, labels=build_selector(run=self._run.record.name))
        job_pods = [pod for pod in pods if _belongs_to_job(pod, manifest)]
        has_pending = any(
            not pod["spec"].get("nodeName") or pod["status"].get("phase") == "Pending" for pod in job_pods
        )
        events = self._cluster.find("Event", self._namespace)[0] if has_pending else []
        return observe_job(manifest, job_pods, events)

    def refresh(self, manifest: Manifest) -> ObservedJob:
        """Observe a job, append its ranks' output to their files, and record its task."""
        observed = self.observe(manifest)
        drive = read_drive(manifest)
        self._home.record_drive(drive)
        output = self.open_output(drive)
        if observed.launcher is not None and observed.began is not None:
            before = output.read().until
            output.add(
                read_lines_since(self._cluster, self._namespace, observed.launcher, before), over=observed.is_final
            )
            output.record_nodes(observed.nodes)
        self.note(self.build_record(observed, drive, output))
        return observed

    def open_output(self, drive: int) -> RankOutput:
        return RankOutput(self._home.locate_outputs(self.task) / RANKS, self._home.locate_attempt(self.task, drive))

    def build_record(self, observed: ObservedJob, drive: int, output: RankOutput) -> TaskRecord:
        """Return the record of the job's task."""
        has_ended = observed.state in FINAL_STATES
        failure = self._build_failure(observed, output) if has_ended and observed.state != "succeeded" else None
        seconds = None if observed.began is None or observed.ended is None else observed.ended - observed.began
        if observed.state == "succeeded":
            result = {"seconds": output.read().seconds, "ranks": output.n_tasks, "flavor": "openmpi"}
            write_outputs(self._home, self.task, {RESULT: json.dumps(result)})
        return TaskRecord(
            task=self.task,
            step=self.workload.name,
            state=observed.state,
            attempts=drive,
            began=observed.began,
            seconds=seconds,
            exit_code=observed.exit_code,
            failure=failure,
        )

    def note(self, record: TaskRecord) -> None:
        """Record the job's task where it changed. An ended task keeps its times and failure without its pods."""
        previous = self._journal.read_tasks(self._run).get(record.task)
        if previous == record or (previous is None and record.state == "pending"):
            return
        if previous is not None and previous.attempts == record.attempts and record.began is None:
            previous_fields = {name: getattr(previous, name) for name in ("began", "seconds", "exit_code")}
            record = record.model_copy(update={**previous_fields, "failure": previous.failure or record.failure})
        self._journal.set_task(self._run, record)

    def stop(self, manifest: Manifest, observed: ObservedJob, *, why: str | None = None) -> bool:
        """End a job, for a reason or on request; return whether its object is kept.

        ``mpirun`` is ended by its node, so that its log is kept. A job whose launcher has no node is deleted.
        """
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        annotations = {STOPPED_ANNOTATION: "true"} if why is None else {ENDED_FOR_ANNOTATION: why}
        self._cluster.patch(kind, name, self._namespace, {"metadata": {"annotations": annotations}})
        if observed.launcher is not None and observed.on_node and not observed.is_final:
            self._cluster.patch("Pod", observed.launcher, self._namespace, {"spec": {"activeDeadlineSeconds": 1}})
            return True
        return not self._cluster.delete(kind, name, self._namespace)

    def record_deletion(self, *, asked: bool, why: str | None) -> str | None:
        """Record that a job's object was deleted, and return the run's error."""
        initial = TaskRecord(task=self.task, step=self.workload.name, state="pending", attempts=1)
        previous = self._journal.read_tasks(self._run).get(self.task, initial)
        if previous.state in {"running", "pending"}:
            failure = None if why is None else Failure(summary="failed", cause=why)
            state = "stopped" if why is None else "failed"
            self._journal.set_task(self._run, previous.model_copy(update={"state": state, "failure": failure}))
        if asked or why is not None:
            return None
        name = format_workflow_name(self._run.record.name, self._home.read_drive())
        return (
            f"The job {name!r} of the namespace {self._namespace!r} was deleted by another client, which stopped it. "
            f"Start it again: scanflow resume {self._run.record.name}"
        )

    def _build_failure(self, observed: ObservedJob, output: RankOutput) -> Failure:
        name, folder = self.workload.name, self._home.locate_outputs(self.task) / RANKS
        if observed.state == "stopped":
            return Failure(summary="stopped")
        summary = "failed" if observed.exit_code is None else f"exit code {observed.exit_code}"
        if observed.end_reason is not None:
            return Failure(summary=summary, cause=observed.end_reason)
        if observed.reason == "DeadlineExceeded" and self.workload.timeout_s is not None:
            cause = describe_running_ranks(name, output.n_tasks, self.workload.timeout_s, folder)
            return Failure(summary="timed out", cause=cause)
        ranks = output.read()
        rank_ends = sorted(ranks.ended.items(), key=lambda rank_end: rank_end[1][0])
        exit_codes = [(rank, code) for rank, (_, code) in rank_ends]
        rank_failure = describe_first_failure(name, exit_codes, observed.exit_code, folder)
        cause = rank_failure or self._describe_mpirun_failure(observed, output)
        if rank_failure is None and ranks.began and (gone := _list_deleted_pods(ranks, observed)):
            cause = f"{_describe_deleted(gone)} {cause}"
        if self.workload.image is not None and any(words in cause for words in _NOT_THERE):
            cause += f" {_OWN_IMAGE_HINT}"
        if observed.lost_workers:
            cause = f"{_describe_lost(observed.lost_workers)} {cause}"
        if observed.reason == "OOMKilled":
            cause += " Its pod was killed because it exceeded its memory limit: raise resources_per_task."
        return Failure(summary=summary, cause=cause)

    def _describe_mpirun_failure(self, observed: ObservedJob, output: RankOutput) -> str:
        reason = f" ({observed.reason})" if observed.reason else ""
        text = output.read_own_lines(_TAIL)
        failure = f"mpirun of {self.workload.name!r} failed{reason}"
        return f"{failure} before one of its {output.n_tasks} ranks did. {text}".strip()


def describe_excess_output(size: int, name: str) -> str:
    """Return the error of a job whose ranks wrote too much."""
    return (
        f"The ranks of {name!r} wrote {round_memory(size)}, more than {round_memory(MAX_OUTPUT_BYTES)}. Write results "
        "into files, and print fewer lines."
    )


def _list_deleted_pods(ranks: ObservedRanks, observed: ObservedJob) -> list[str]:
    """Return the pods that ran and are gone. Without its launcher an engine ends a job's other pods itself."""
    gone = sorted(ranks.nodes.keys() - observed.pods - observed.lost_workers.keys())
    launchers = [pod for pod in gone if "-launcher" in pod] if observed.launcher is None else []
    return launchers or gone


def _describe_deleted(pods: list[str]) -> str:
    are = "The pods {} are" if len(pods) > 1 else "The pod {} is"
    return f"{are.format(', '.join(pods))} gone: deleted by another client, or with the node."


def _describe_lost(workers: Mapping[str, str]) -> str:
    names = ", ".join(f"{name} ({why})" for name, why in sorted(workers.items()))
    return f"Workers were lost: {names}."


def _belongs_to_job(pod: Manifest, manifest: Manifest) -> bool:
    """Return whether a pod belongs to this drive's job, whose name is the prefix of its own."""
    return str(pod["metadata"]["name"]).startswith(f"{manifest['metadata']['name']}-")
