"""From what is wanted of a service, and its pods, to the record that people and programs get. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scanflow.app.quantities import parse_cpu
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.online import observed
from scanflow.backends.kubernetes.online.looks import InstanceLook
from scanflow.backends.kubernetes.times import epoch_s
from scanflow.backends.service_decisions import RevisionStats
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_metrics import MetricsWindow
from scanflow.backends.service_records import InstanceRecord, ServiceRecord, ServiceState
from scanflow.backends.service_reports import report, report_revision


def service_record(
    state: DesiredState,
    pods: Iterable[Manifest] | None,
    looks: Mapping[str, InstanceLook],
    window: MetricsWindow,
    *,
    namespace: str,
    url: str,
    grpc: str | None,
    instances: int,
    answered_by: str | None = None,
    denied: str | None = None,
) -> ServiceRecord:
    """Return a service's record.

    Args:
        state: What is wanted of it.
        pods: All that it has; None: they were not asked for, since all its instances are ready.
        looks: What they say of themselves, by name.
        window: What was counted lately.
        namespace: Where it is.
        url: Where callers reach it.
        grpc: The same for gRPC.
        instances: How many its current revision is to have now.
        answered_by: The backup, while it answers.
        denied: Why its pods are not made, if that is so.
    """
    definition = state.definition
    known = [pod for pod in pods or () if not observed.is_over(pod)]
    known.sort(key=lambda pod: str(pod["metadata"]["name"]))
    records = tuple(instance_record(pod, looks.get(pod["metadata"]["name"]), state.name) for pod in known)
    own = [
        record
        for pod, record in zip(known, records, strict=True)
        if observed.revision_of(pod) == definition.current.id and record.state != "draining"
    ]
    ready = instances if pods is None else sum(one.state == "ready" for one in own)
    errors = [one.error for one in records if one.error and one.state in {"starting", "waiting", "failed"}]
    return report(
        state,
        window,
        state="backup" if answered_by is not None else _state(state, own, ready, instances),
        url=url,
        grpc=grpc,
        count=instances,
        ready=ready,
        instances=records,
        revisions=[
            report_revision(one, place, window, _latencies(one.id, window))
            for place, one in enumerate(definition.revisions)
        ],
        problem=denied or next(iter(errors), None),
    ).with_details(namespace=namespace)


def instance_record(pod: Manifest, look: InstanceLook | None, service: str) -> InstanceRecord:
    """Return one instance's record: what it asked for beside what it was granted."""
    metadata, status = pod["metadata"], pod.get("status", {})
    name, stands = metadata["name"], observed.instance_state(pod)
    asked = pod["spec"]["containers"][0].get("resources") or {}
    cores = (asked.get("limits") or asked.get("requests") or {}).get("cpu")
    error = None if look is None else look.unwell or None
    if (ended := observed.last_error(pod)) is not None:
        error = f"{ended.rstrip('.')}. Its log: scanflow logs {service} --instance {name}"
    elif stands != "ready" and (waits := observed.waits_for(pod)) is not None:
        error = waits
    return InstanceRecord(
        instance=name,
        state=stands,
        place=pod["spec"].get("nodeName"),
        began=_seconds(status.get("startTime")),
        restarts=observed.restarts(pod),
        cores=None if cores is None else parse_cpu(cores),
        threads=None if look is None else look.threads,
        rss_bytes=None if look is None else look.rss_bytes,
        in_flight=0 if look is None else look.in_flight,
        error=error,
    ).with_details(
        revision=observed.revision_of(pod),
        qos=status.get("qosClass"),
        requested=dict(asked.get("requests") or {}),
        granted=_allocated(observed.instance_status(pod)),
        cpus=[] if look is None else list(look.cpus),
    )


def _state(state: DesiredState, own: Sequence[InstanceRecord], ready: int, count: int) -> ServiceState:
    if state.hopeless:
        return "failed"
    if count == 0 and not own:
        return "idle"
    if ready >= count > 0:
        return "ready"
    if ready:
        return "degraded" if state.settled else "starting"
    if own and all(one.state == "failed" for one in own):
        return "failed"
    return "degraded" if state.settled or any(one.restarts for one in own) else "starting"


def _latencies(revision: str, window: MetricsWindow) -> RevisionStats:
    """Return what was counted lately, else since the beginning: who looks once has not counted twice."""
    lately = window.lately(revision)
    return lately if lately.requests else window.totals.of(revision)


def _allocated(status: Mapping[str, Any]) -> dict[str, str]:
    """Return the resources that the kubelet gave the container, as it says."""
    found = status.get("allocatedResources") or (status.get("resources") or {}).get("requests") or {}
    return dict(found)


def _seconds(text: str | None) -> float | None:
    return None if text is None else epoch_s(text)
