"""How the pods of a service stand. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import REVISION
from scanflow.backends.kubernetes.online.pods import TEMPLATE
from scanflow.backends.kubernetes.pods import why_pending
from scanflow.backends.kubernetes.times import epoch_s
from scanflow.backends.service_records import InstanceState

CONFIGURATION: Final = 78
"""The exit code of an instance that cannot be started with its configuration."""

_RESTARTS: Final = 3
_LOST_S: Final = 30.0
_HOPELESS: Final = {
    "CreateContainerConfigError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
}


def revision_of(pod: Manifest) -> str:
    found: str = pod["metadata"].get("labels", {}).get(REVISION, "")
    return found


def template_of(pod: Manifest) -> str:
    found: str = pod["metadata"].get("annotations", {}).get(TEMPLATE, "")
    return found


def is_leaving(pod: Manifest) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_over(pod: Manifest) -> bool:
    """Say whether nothing of it runs or will run."""
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def is_lost(pod: Manifest, now: float) -> bool:
    """Say whether a pod should have ended long ago: its node does not answer.

    Only a person can say that the node is dead.

    Args:
        pod: As the API server has it.
        now: Seconds since the epoch.
    """
    ends = pod["metadata"].get("deletionTimestamp")  # its grace period is in it
    return ends is not None and now - epoch_s(ends) > _LOST_S


def is_ready(pod: Manifest) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return not is_leaving(pod) and any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def instance_state(pod: Manifest) -> InstanceState:
    """Return how an instance stands."""
    if is_leaving(pod):
        return "draining"
    if is_ready(pod):
        return "ready"
    if hopeless(pod) is not None or is_over(pod):
        return "failed"
    status = instance_status(pod)
    return "waiting" if status.get("restartCount", 0) and "running" not in status.get("state", {}) else "starting"


def hopeless(pod: Manifest) -> str | None:
    """Return why a pod will not become ready whatever is waited; None: it may."""
    status = instance_status(pod)
    waiting = status.get("state", {}).get("waiting") or {}
    ended = status.get("state", {}).get("terminated") or status.get("lastState", {}).get("terminated") or {}
    if waiting.get("reason") in _HOPELESS:
        return waits_for(pod) or str(waiting["reason"])
    if ended.get("exitCode") == CONFIGURATION or (ended and status.get("restartCount", 0) >= _RESTARTS):
        return why_ended(ended)
    return None


def waits_for(pod: Manifest, events: Iterable[Manifest] = ()) -> str | None:
    """Return what keeps a pod from starting; None: nothing that is known."""
    pending = why_pending(pod, events)
    return str(pending) if pending is not None and pending.message else None


def last_error(pod: Manifest) -> str | None:
    """Return why its container ended the last time; None: it never did."""
    status = instance_status(pod)
    ended = status.get("state", {}).get("terminated") or status.get("lastState", {}).get("terminated")
    return why_ended(ended) if ended else None


def why_ended(ended: Mapping[str, Any]) -> str:
    """Return in one line why a container ended: what it said itself, else the kernel's or the kubelet's reason."""
    lines = str(ended.get("message") or "").strip().splitlines()
    said = next((line for line in reversed(lines) if line.strip()), "").strip()
    said = re.sub(r"^[\d-]+ [\d:,]+ ERROR ", "", said)
    if ended.get("reason") == "OOMKilled":
        return "it took more memory than it was given (OOMKilled). Give it more: resources=sf.Resources(memory='2Gi')"
    return said[:500] or f"it ended with {ended.get('exitCode')} ({ended.get('reason', 'Error')})"


def restarts(pod: Manifest) -> int:
    return int(instance_status(pod).get("restartCount", 0))


def all_ready(deployment: Manifest, wanted: int | None) -> int | None:
    """Return how many pods a Deployment has, where all of them are ready and there are as many as wanted; None: they
    have to be looked at. ``wanted`` None: as many as its autoscaler lets it have."""
    status = deployment.get("status", {})
    if status.get("observedGeneration", 0) < deployment["metadata"].get("generation", 0):
        return None
    count = int(status.get("replicas", 0))
    return count if status.get("readyReplicas", 0) == count and wanted in {None, count} else None


def ready_of(pods: Iterable[Manifest], revision: str, template: str) -> list[Manifest]:
    """Return the pods of a revision that are ready, and as its template says."""
    return [pod for pod in pods if revision_of(pod) == revision and template_of(pod) == template and is_ready(pod)]


def canary_instances(instances: int, weight: float) -> int:
    """Return how many instances a canary needs beside ``instances`` of the current revision, so that connections
    spread evenly give it that share of them, as nearly as whole instances can."""
    if weight >= 1:
        return max(instances, 1)
    return max(1, round(weight * max(instances, 1) / (1 - weight)))


def share_by_instances(instances: int, canary: int) -> float:
    return canary / (instances + canary) if canary else 0.0


def canary_behind_gateway(instances: int, weight: float) -> int:
    """Return how many instances a canary needs where the Gateway keeps its share."""
    return max(1, math.ceil(round(instances * weight, 6)))


def instance_of(pod: Manifest) -> str:
    """Return the name of the container that is the instance: the first, whatever else there is beside it."""
    found: str = pod["spec"]["containers"][0]["name"]
    return found


def instance_status(pod: Manifest) -> Mapping[str, Any]:
    found: list[Mapping[str, Any]] = pod.get("status", {}).get("containerStatuses") or []
    return next((one for one in found if one["name"] == instance_of(pod)), {})
