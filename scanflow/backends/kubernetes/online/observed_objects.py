"""Interpret what a cluster reports of services: the status of their pods, and the records that clients get. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from scanflow.app.quantities import parse_cpu
from scanflow.backends.canary_analysis import RevisionStats
from scanflow.backends.kubernetes.api_times import parse_epoch_s, parse_optional_time
from scanflow.backends.kubernetes.kinds import Manifest, get_condition
from scanflow.backends.kubernetes.object_labels import REVISION, SERVICE
from scanflow.backends.kubernetes.online.instance_pods import TEMPLATE
from scanflow.backends.kubernetes.online.instance_status import InstanceStatus
from scanflow.backends.kubernetes.pods import explain_pending
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_metrics import MetricsWindow
from scanflow.backends.service_records import InstanceRecord, InstanceState, ServiceRecord, ServiceState
from scanflow.backends.service_reports import report, report_revision

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
    return not is_terminating(pod) and get_condition(pod.get("status"), "Ready").get("status") == "True"


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


def find_last_error(pod: Manifest) -> str | None:
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


def build_service_record(
    state: DesiredState,
    pods: Iterable[Manifest] | None,
    statuses: Mapping[str, InstanceStatus],
    window: MetricsWindow,
    *,
    namespace: str,
    url: str,
    grpc: str | None,
    instances: int,
    active_backup: str | None = None,
    denial: str | None = None,
) -> ServiceRecord:
    """Return a service's record.

    Args:
        state: Its desired state.
        pods: All its pods; None: they were not listed, since all its instances are ready.
        statuses: The state that each pod reports, by name.
        window: Its recent metrics.
        namespace: The namespace of its objects.
        url: Its HTTP address.
        grpc: Its gRPC address.
        instances: How many instances its current revision should have now.
        active_backup: The backup, while it serves requests.
        denial: Why its pods are not created, if so.
    """
    definition = state.definition
    live_pods = [pod for pod in pods or () if not is_finished(pod)]
    live_pods.sort(key=lambda pod: str(pod["metadata"]["name"]))
    records = tuple(build_instance_record(pod, statuses.get(pod["metadata"]["name"]), state.name) for pod in live_pods)
    own = [
        record
        for pod, record in zip(live_pods, records, strict=True)
        if get_revision(pod) == definition.current.id and record.state != "draining"
    ]
    ready = instances if pods is None else sum(record.state == "ready" for record in own)
    errors = [record.error for record in records if record.error and record.state in {"starting", "waiting", "failed"}]
    return report(
        state,
        window,
        state="backup" if active_backup is not None else _compute_state(state, own, ready, instances),
        url=url,
        grpc=grpc,
        count=instances,
        ready=ready,
        instances=records,
        revisions=[
            report_revision(revision, number, window, _select_stats(revision.id, window))
            for number, revision in enumerate(definition.revisions)
        ],
        problem=denial or next(iter(errors), None),
    ).with_details(namespace=namespace)


def build_instance_record(pod: Manifest, report: InstanceStatus | None, service: str) -> InstanceRecord:
    """Return one instance's record, with its requested and its allocated resources."""
    metadata, status = pod["metadata"], pod.get("status", {})
    name, state = metadata["name"], compute_instance_state(pod)
    resources = pod["spec"]["containers"][0].get("resources") or {}
    cores = (resources.get("limits") or resources.get("requests") or {}).get("cpu")
    error = None if report is None else report.problem or None
    if (termination := find_last_error(pod)) is not None:
        error = f"{termination.rstrip('.')}. Its log: scanflow logs {service} --instance {name}"
    elif state != "ready" and (reason := explain_startup_delay(pod)) is not None:
        error = reason
    return InstanceRecord(
        instance=name,
        state=state,
        place=pod["spec"].get("nodeName"),
        began=parse_optional_time(status.get("startTime")),
        restarts=count_restarts(pod),
        cores=None if cores is None else parse_cpu(cores),
        threads=None if report is None else report.threads,
        rss_bytes=None if report is None else report.rss_bytes,
        in_flight=0 if report is None else report.in_flight,
        error=error,
    ).with_details(
        revision=get_revision(pod),
        qos=status.get("qosClass"),
        requested=dict(resources.get("requests") or {}),
        granted=_read_allocated_resources(get_container_status(pod)),
        cpus=[] if report is None else list(report.cpus),
        **({"devices": list(report.devices)} if report is not None and report.devices else {}),
    )


def _compute_state(state: DesiredState, own: Sequence[InstanceRecord], ready: int, count: int) -> ServiceState:
    if state.hopeless:
        return "failed"
    if count == 0 and not own:
        return "idle"
    if ready >= count > 0:
        return "ready"
    if ready:
        return "degraded" if state.settled else "starting"
    if own and all(record.state == "failed" for record in own):
        return "failed"
    return "degraded" if state.settled or any(record.restarts for record in own) else "starting"


def _select_stats(revision: str, window: MetricsWindow) -> RevisionStats:
    """Return the recent stats of a revision, or its totals while there are none, as after a single query."""
    recent = window.compute_recent_stats(revision)
    return recent if recent.requests else window.totals.get_revision(revision)


def _read_allocated_resources(status: Mapping[str, Any]) -> dict[str, str]:
    """Return the resources that the kubelet reports as allocated to a container."""
    allocated = status.get("allocatedResources") or (status.get("resources") or {}).get("requests") or {}
    return dict(allocated)
