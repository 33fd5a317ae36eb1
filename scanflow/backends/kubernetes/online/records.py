"""Build the record of a service, which clients get, from its desired state and its pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scanflow.app.quantities import parse_cpu
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.online import observed
from scanflow.backends.kubernetes.online.instance_status import InstanceStatus
from scanflow.backends.kubernetes.times import parse_epoch_s
from scanflow.backends.service_decisions import RevisionStats
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_metrics import MetricsWindow
from scanflow.backends.service_records import InstanceRecord, ServiceRecord, ServiceState
from scanflow.backends.service_reports import report, report_revision


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
    live_pods = [pod for pod in pods or () if not observed.is_finished(pod)]
    live_pods.sort(key=lambda pod: str(pod["metadata"]["name"]))
    records = tuple(build_instance_record(pod, statuses.get(pod["metadata"]["name"]), state.name) for pod in live_pods)
    own = [
        record
        for pod, record in zip(live_pods, records, strict=True)
        if observed.get_revision(pod) == definition.current.id and record.state != "draining"
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
    name, state = metadata["name"], observed.compute_instance_state(pod)
    resources = pod["spec"]["containers"][0].get("resources") or {}
    cores = (resources.get("limits") or resources.get("requests") or {}).get("cpu")
    error = None if report is None else report.problem or None
    if (termination := observed.get_last_error(pod)) is not None:
        error = f"{termination.rstrip('.')}. Its log: scanflow logs {service} --instance {name}"
    elif state != "ready" and (reason := observed.explain_startup_delay(pod)) is not None:
        error = reason
    return InstanceRecord(
        instance=name,
        state=state,
        place=pod["spec"].get("nodeName"),
        began=_parse_time(status.get("startTime")),
        restarts=observed.count_restarts(pod),
        cores=None if cores is None else parse_cpu(cores),
        threads=None if report is None else report.threads,
        rss_bytes=None if report is None else report.rss_bytes,
        in_flight=0 if report is None else report.in_flight,
        error=error,
    ).with_details(
        revision=observed.get_revision(pod),
        qos=status.get("qosClass"),
        requested=dict(resources.get("requests") or {}),
        granted=_read_allocated_resources(observed.get_container_status(pod)),
        cpus=[] if report is None else list(report.cpus),
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


def _parse_time(text: str | None) -> float | None:
    return None if text is None else parse_epoch_s(text)
