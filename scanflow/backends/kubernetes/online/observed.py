"""Sort the objects of services, and interpret the status of their pods. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import REVISION, SERVICE
from scanflow.backends.kubernetes.online.pods import TEMPLATE
from scanflow.backends.kubernetes.pods import explain_pending
from scanflow.backends.kubernetes.times import parse_epoch_s
from scanflow.backends.service_records import InstanceState

Key: TypeAlias = tuple[str, str]
"""Namespace and name."""

CONFIGURATION: Final = 78
"""The exit code of an instance with an invalid configuration."""

_RESTARTS: Final = 3
_LOST_AFTER_S: Final = 30.0
_HOPELESS: Final = {
    "CreateContainerConfigError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "RunContainerError",
}


def index_by_name(manifests: Iterable[Manifest]) -> dict[Key, Manifest]:
    return {(manifest["metadata"]["namespace"], manifest["metadata"]["name"]): manifest for manifest in manifests}


def group_by_service(manifests: Iterable[Manifest]) -> dict[Key, list[Manifest]]:
    """Return pods by the namespace and name of their service."""
    pods_by_service: dict[Key, list[Manifest]] = {}
    for pod in manifests:
        pods_by_service.setdefault((pod["metadata"]["namespace"], pod["metadata"]["labels"][SERVICE]), []).append(pod)
    return pods_by_service


def get_revision(pod: Manifest) -> str:
    revision: str = pod["metadata"].get("labels", {}).get(REVISION, "")
    return revision


def get_pod_template_hash(pod: Manifest) -> str:
    digest: str = pod["metadata"].get("annotations", {}).get(TEMPLATE, "")
    return digest


def is_terminating(pod: Manifest) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_finished(pod: Manifest) -> bool:
    """Return whether a pod has ended for good."""
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def is_lost(pod: Manifest, now: float) -> bool:
    """Return whether a pod is long past its deletion: its node does not respond.

    Only a person can tell that the node is dead.

    Args:
        pod: From the API server.
        now: Seconds since the epoch.
    """
    deadline = pod["metadata"].get("deletionTimestamp")  # includes the grace period
    return deadline is not None and now - parse_epoch_s(deadline) > _LOST_AFTER_S


def is_ready(pod: Manifest) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return not is_terminating(pod) and any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )


def compute_instance_state(pod: Manifest) -> InstanceState:
    """Return the state of an instance."""
    if is_terminating(pod):
        return "draining"
    if is_ready(pod):
        return "ready"
    if find_fatal_reason(pod) is not None or is_finished(pod):
        return "failed"
    status = get_container_status(pod)
    return "waiting" if status.get("restartCount", 0) and "running" not in status.get("state", {}) else "starting"


def find_fatal_reason(pod: Manifest) -> str | None:
    """Return why a pod will never become ready; None: it may."""
    status = get_container_status(pod)
    waiting = status.get("state", {}).get("waiting") or {}
    ended = status.get("state", {}).get("terminated") or status.get("lastState", {}).get("terminated") or {}
    if waiting.get("reason") in _HOPELESS:
        return explain_startup_delay(pod) or str(waiting["reason"])
    if ended.get("exitCode") == CONFIGURATION or (ended and status.get("restartCount", 0) >= _RESTARTS):
        return explain_termination(ended)
    return None


def explain_startup_delay(pod: Manifest, events: Iterable[Manifest] = ()) -> str | None:
    """Return what keeps a pod from starting; None: no known reason."""
    pending = explain_pending(pod, events)
    return str(pending) if pending is not None and pending.message else None


def get_last_error(pod: Manifest) -> str | None:
    """Return why a pod's container ended the last time; None: it never did."""
    status = get_container_status(pod)
    ended = status.get("state", {}).get("terminated") or status.get("lastState", {}).get("terminated")
    return explain_termination(ended) if ended else None


def explain_termination(ended: Mapping[str, Any]) -> str:
    """Return why a container ended, in one line: its own message, else the kernel's or the kubelet's reason."""
    lines = str(ended.get("message") or "").strip().splitlines()
    message = next((line for line in reversed(lines) if line.strip()), "").strip()
    message = re.sub(r"^[\d-]+ [\d:,]+ ERROR ", "", message)
    if ended.get("reason") == "OOMKilled":
        return "it exceeded its memory limit (OOMKilled). Raise it: resources=sf.Resources(memory='2Gi')"
    return message[:500] or f"it ended with {ended.get('exitCode')} ({ended.get('reason', 'Error')})"


def count_restarts(pod: Manifest) -> int:
    return int(get_container_status(pod).get("restartCount", 0))


def count_if_all_ready(deployment: Manifest, replicas: int | None) -> int | None:
    """Return the number of pods of a Deployment if all are ready; None: they have to be listed.

    Args:
        deployment: From the API server.
        replicas: How many there should be; None: its autoscaler decides.
    """
    status = deployment.get("status", {})
    if status.get("observedGeneration", 0) < deployment["metadata"].get("generation", 0):
        return None
    count = int(status.get("replicas", 0))
    return count if status.get("readyReplicas", 0) == count and replicas in {None, count} else None


def get_instance_container(pod: Manifest) -> str:
    """Return the name of the container that is the instance: the first one."""
    name: str = pod["spec"]["containers"][0]["name"]
    return name


def get_container_status(pod: Manifest) -> Mapping[str, Any]:
    statuses: list[Mapping[str, Any]] = pod.get("status", {}).get("containerStatuses") or []
    return next((status for status in statuses if status["name"] == get_instance_container(pod)), {})
