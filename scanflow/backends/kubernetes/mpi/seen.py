"""How an MPI job stands, from its object and its pods as the API server has them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.mpi.job import ROLE
from scanflow.backends.kubernetes.pods import Pending, why_pending
from scanflow.backends.kubernetes.times import epoch_s
from scanflow.backends.records import TaskState

STOPPED: Final = "scanflow.dev/stopped"
"""An annotation of a job: that it was asked to stop."""

ENDED_FOR: Final = "scanflow.dev/ended-for"
"""An annotation of a job: why it was ended by whoever watches it."""

_OVER: Final = {"Aborted", "Completed", "Failed", "Succeeded", "Terminated"}
"""Phases of Volcano's Job and conditions of an MPIJob after which nothing changes."""

_WELL: Final = {"Completed", "Succeeded"}
_QUEUED: Final = "its queue has no room for all of its pods yet"


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A job, read."""

    state: TaskState
    over: bool
    """Whether its engine is done with it, so that its processes are gone."""

    why: str | None
    """Why it was ended by whoever watched it."""

    launcher: str | None
    """The pod that runs ``mpirun``."""

    on_node: bool
    """Whether the launcher has a node."""

    began: float | None
    ended: float | None
    """Of ``mpirun``, in seconds since the epoch."""

    exit_code: int | None
    reason: str
    """Why the launcher ended, in the kubelet's word: ``OOMKilled``, ``DeadlineExceeded``; nothing: by itself."""

    nodes: Mapping[str, str]
    """The node of each pod that has one."""

    waiting: Pending | None
    """What it waits for; None: for nothing, or it has ended."""

    lost: Mapping[str, str]
    """Workers that have failed, each with the reason."""

    workers: frozenset[str]
    """Workers that run, by the ids of their pods."""


def see(manifest: Manifest, pods: Iterable[Manifest], events: Iterable[Manifest] = ()) -> JobSeen:
    """Read a job.

    Args:
        manifest: A Job of Volcano, or an MPIJob.
        pods: Its own.
        events: Of its namespace.
    """
    own = list(pods)
    annotations = manifest["metadata"].get("annotations") or {}
    launcher = next((one for one in own if _role(one) == "launcher"), None)
    workers = [one for one in own if _role(one) == "worker"]
    phase = _phase(manifest)
    container = _terminated(launcher)
    state = _state(phase, launcher, asked=STOPPED in annotations)
    waiting = None
    if state == "pending":
        reasons = [why for one in own if (why := why_pending(one, events)) is not None]
        telling = [one for one in reasons if one.message or one.remedy]
        waiting = next(iter(telling or reasons), Pending("Queued", _QUEUED, "") if not own else None)
    return JobSeen(
        state=state,
        over=phase in _OVER,
        why=annotations.get(ENDED_FOR),
        launcher=None if launcher is None else str(launcher["metadata"]["name"]),
        on_node=launcher is not None and bool(launcher["spec"].get("nodeName")),
        began=_time(container.get("startedAt") or _running(launcher).get("startedAt")),
        ended=_time(container.get("finishedAt")),
        exit_code=container.get("exitCode"),
        reason=_reason(launcher, container),
        nodes={one["metadata"]["name"]: one["spec"]["nodeName"] for one in own if one["spec"].get("nodeName")},
        waiting=waiting,
        lost={
            str(one["metadata"]["name"]): _reason(one, _terminated(one)) or "it failed"
            for one in workers
            if one.get("status", {}).get("phase") == "Failed"
        },
        workers=frozenset(
            str(one["metadata"].get("uid")) for one in workers if one.get("status", {}).get("phase") == "Running"
        ),
    )


def _role(pod: Manifest) -> str:
    return str((pod["metadata"].get("labels") or {}).get(ROLE, ""))


def _phase(manifest: Manifest) -> str:
    """Return Volcano's phase, or the last condition of an MPIJob that holds."""
    status = manifest.get("status") or {}
    if manifest["kind"] == "Job":
        return str((status.get("state") or {}).get("phase", ""))
    held = [one["type"] for one in status.get("conditions") or () if one.get("status") == "True"]
    return next((one for one in held if one in _OVER), str(held[-1]) if held else "")


def _state(phase: str, launcher: Manifest | None, *, asked: bool) -> TaskState:
    pod = "" if launcher is None else str(launcher.get("status", {}).get("phase", ""))
    if pod == "Succeeded" or phase in _WELL:
        return "succeeded"
    if pod == "Failed" or phase in _OVER:
        return "stopped" if asked else "failed"
    return "running" if pod == "Running" else "pending"


def _statuses(pod: Manifest | None) -> list[Manifest]:
    found: list[Manifest] = [] if pod is None else pod.get("status", {}).get("containerStatuses") or []
    return found


def _terminated(pod: Manifest | None) -> Manifest:
    return next((one["state"]["terminated"] for one in _statuses(pod) if "terminated" in one.get("state", {})), {})


def _running(pod: Manifest | None) -> Manifest:
    return next((one["state"]["running"] for one in _statuses(pod) if "running" in one.get("state", {})), {})


def _reason(pod: Manifest | None, container: Manifest) -> str:
    of_pod = "" if pod is None else str(pod.get("status", {}).get("reason") or "")
    of_container = str(container.get("reason") or "")
    return of_pod or ("" if of_container in {"Completed", "Error"} else of_container)


def _time(text: str | None) -> float | None:
    return None if not text else epoch_s(text)
