"""Derive the state of an MPI job from its object and its pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from scanflow.backends.kubernetes.api_times import parse_optional_time
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.mpi.mpi_objects import ROLE
from scanflow.backends.kubernetes.pods import Pending, explain_pending
from scanflow.backends.run_records import TaskState

STOPPED_ANNOTATION: Final = "scanflow.dev/stopped"
"""An annotation of a job that was asked to stop."""

ENDED_FOR_ANNOTATION: Final = "scanflow.dev/ended-for"
"""An annotation of a job: why the driving process ended it."""

_FINISHED_PHASES: Final = {"Aborted", "Completed", "Failed", "Succeeded", "Terminated"}
"""Final phases of Volcano's Job and conditions of an MPIJob."""

_SUCCEEDED_PHASES: Final = {"Completed", "Succeeded"}
GANG_REASONS: Final = ("Schedulable", "Undetermined")
"""Volcano's reasons of pods that wait for others of their job: they have room, or were not tried."""

QUEUE_REASONS: Final = ("Queued", "Unschedulable", "FailedScheduling", "Pending", *GANG_REASONS)
"""Reasons for which a job may wait without limit: no free resources."""

_QUEUED_REASON: Final = "its queue has no room for all of its pods yet"


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """The observed state of a job."""

    state: TaskState
    is_final: bool
    """Whether it is in a final phase, with no processes left."""

    end_reason: str | None
    """Why the driving process ended it."""

    launcher: str | None
    """The pod that runs ``mpirun``."""

    on_node: bool
    """Whether the launcher is scheduled to a node."""

    began: float | None
    ended: float | None
    """When ``mpirun`` ended, in seconds since the epoch."""

    exit_code: int | None
    reason: str
    """The kubelet's reason for the launcher's end: ``OOMKilled``, ``DeadlineExceeded``; empty: by itself."""

    nodes: Mapping[str, str]
    """The node of each pod that has one."""

    waiting: Pending | None
    """Why it is pending; None: it is not."""

    lost_workers: Mapping[str, str]
    """Workers that have failed, each with the reason."""

    workers: Mapping[str, str]
    """The names of running workers' pods, by uid."""

    pods: frozenset[str]
    """The names of its pods."""


def observe_job(manifest: Manifest, pods: Iterable[Manifest], events: Iterable[Manifest] = ()) -> ObservedJob:
    """Return the observed state of a job.

    Args:
        manifest: A Job of Volcano, or an MPIJob.
        pods: Its own.
        events: Of its namespace.
    """
    job_pods = list(pods)
    annotations = manifest["metadata"].get("annotations") or {}
    launcher = next((pod for pod in job_pods if _read_role(pod) == "launcher"), None)
    workers = [pod for pod in job_pods if _read_role(pod) == "worker"]
    phase = _derive_phase(manifest)
    container = _get_terminated(launcher)
    state = _derive_state(phase, launcher, asked=STOPPED_ANNOTATION in annotations)
    waiting = None
    if state == "pending":
        reasons = [pending for pod in job_pods if (pending := explain_pending(pod, events)) is not None]
        telling = sorted((pending for pending in reasons if pending.message or pending.remedy), key=_rank_reason)
        waiting = next(iter(telling or reasons), Pending("Queued", _QUEUED_REASON, "") if not job_pods else None)
    return ObservedJob(
        state=state,
        is_final=phase in _FINISHED_PHASES,
        end_reason=annotations.get(ENDED_FOR_ANNOTATION),
        launcher=None if launcher is None else str(launcher["metadata"]["name"]),
        on_node=launcher is not None and bool(launcher["spec"].get("nodeName")),
        began=parse_optional_time(container.get("startedAt") or _get_running(launcher).get("startedAt")),
        ended=parse_optional_time(container.get("finishedAt")),
        exit_code=container.get("exitCode"),
        reason=_derive_reason(launcher, container),
        nodes={pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in job_pods if pod["spec"].get("nodeName")},
        waiting=waiting,
        lost_workers={
            str(pod["metadata"]["name"]): _derive_reason(pod, _get_terminated(pod)) or "it failed"
            for pod in workers
            if pod.get("status", {}).get("phase") == "Failed"
        },
        workers={
            str(pod["metadata"].get("uid")): str(pod["metadata"]["name"])
            for pod in workers
            if pod.get("status", {}).get("phase") == "Running"
        },
        pods=frozenset(str(pod["metadata"]["name"]) for pod in job_pods),
    )


def _rank_reason(pending: Pending) -> tuple[bool, bool]:
    """Return a sort key: first what no free resources would end, last pods that only wait for others."""
    return pending.reason in QUEUE_REASONS, pending.reason in GANG_REASONS


def _read_role(pod: Manifest) -> str:
    return str((pod["metadata"].get("labels") or {}).get(ROLE, ""))


def _derive_phase(manifest: Manifest) -> str:
    """Return the phase of a Volcano Job, or the last true condition of an MPIJob."""
    status = manifest.get("status") or {}
    if manifest["kind"] == "Job":
        return str((status.get("state") or {}).get("phase", ""))
    true_conditions = [
        condition["type"] for condition in status.get("conditions") or () if condition.get("status") == "True"
    ]
    return next(
        (name for name in true_conditions if name in _FINISHED_PHASES),
        str(true_conditions[-1]) if true_conditions else "",
    )


def _derive_state(phase: str, launcher: Manifest | None, *, asked: bool) -> TaskState:
    pod = "" if launcher is None else str(launcher.get("status", {}).get("phase", ""))
    if pod == "Succeeded" or phase in _SUCCEEDED_PHASES:
        return "succeeded"
    if pod == "Failed" or phase in _FINISHED_PHASES:
        return "stopped" if asked else "failed"
    return "running" if pod == "Running" else "pending"


def _read_statuses(pod: Manifest | None) -> list[Manifest]:
    statuses: list[Manifest] = [] if pod is None else pod.get("status", {}).get("containerStatuses") or []
    return statuses


def _get_terminated(pod: Manifest | None) -> Manifest:
    return next(
        (status["state"]["terminated"] for status in _read_statuses(pod) if "terminated" in status.get("state", {})), {}
    )


def _get_running(pod: Manifest | None) -> Manifest:
    return next(
        (status["state"]["running"] for status in _read_statuses(pod) if "running" in status.get("state", {})), {}
    )


def _derive_reason(pod: Manifest | None, container: Manifest) -> str:
    of_pod = "" if pod is None else str(pod.get("status", {}).get("reason") or "")
    of_container = str(container.get("reason") or "")
    return of_pod or ("" if of_container in {"Completed", "Error"} else of_container)
