"""Service records from a supervisor's state. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from scanflow.backends.local.services.service_layout import ServiceFolder
from scanflow.backends.local.services.supervisor.instance import Instance
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_metrics import MetricsWindow
from scanflow.backends.service_records import InstanceRecord, ServiceRecord, ServiceState
from scanflow.backends.service_reports import report, report_revision


def build_record(
    desired: DesiredState,
    folder: ServiceFolder,
    *,
    count: int,
    instances: Iterable[Instance] = (),
    waits: Mapping[str, str] | None = None,
    window: MetricsWindow | None = None,
    backup_active: bool = False,
) -> ServiceRecord:
    """Return a service's record. ``waits``: what the instances wait for that cannot be started, by name."""
    window, waits = window or MetricsWindow(0.0), waits or {}
    ordered = sorted(instances, key=lambda instance: (len(instance.name), instance.name))
    errors = [instance.error for instance in ordered if instance.error and instance.phase in {"waiting", "failed"}]
    return report(
        desired,
        window,
        state=_compute_state(desired, ordered, count, backup_active=backup_active),
        url=desired.url,
        grpc=desired.grpc_address,
        count=count,
        ready=sum(instance.phase == "ready" for instance in ordered),
        instances=[
            *(_build_instance_record(instance, desired.name, waits.get(instance.name)) for instance in ordered),
            *(
                InstanceRecord(instance=name, state="waiting", waits_for=why)
                for name, why in waits.items()
                if all(instance.name != name for instance in ordered)
            ),
        ],
        revisions=[
            report_revision(revision, place, window, window.compute_recent_stats(revision.id))
            for place, revision in enumerate(desired.definition.revisions)
        ],
        problem=errors[0] if errors else None,
    ).with_details(folder=str(folder.path))


def _compute_state(
    desired: DesiredState, instances: list[Instance], count: int, *, backup_active: bool
) -> ServiceState:
    if desired.hopeless:
        return "failed"
    if backup_active:
        return "backup"
    ready = sum(instance.phase == "ready" for instance in instances)
    if count == 0 and not any(instance.alive for instance in instances):
        return "idle"
    if ready >= count > 0:
        return "ready"
    if ready:
        return "degraded" if desired.settled else "starting"
    if instances and all(instance.phase == "failed" for instance in instances):
        return "failed"
    restarting = any(instance.phase == "waiting" or instance.restarts for instance in instances)
    return "degraded" if restarting else "starting"


def _build_instance_record(instance: Instance, service: str, waits_for: str | None) -> InstanceRecord:
    error = None
    if instance.error is not None:
        error = f"{instance.error}. Its log: scanflow logs {service} --instance {instance.name}"
    elif problem := instance.state.get("unwell"):
        error = str(problem)
    now = time.monotonic()
    return InstanceRecord(
        instance=instance.name,
        state=instance.phase,
        began=round(time.time() - (now - instance.began), 1) if instance.alive else None,
        restarts=instance.restarts,
        cores=instance.cores,
        threads=_parse_integer(instance.state.get("threads")) or (instance.usage.threads if instance.usage else None),
        rss_bytes=instance.usage.rss_bytes if instance.usage else None,
        cpu_share=None if instance.cpu_share is None else round(instance.cpu_share, 2),
        in_flight=_parse_integer(instance.state.get("in_flight")) or 0,
        error=error,
        waits_for=waits_for,
    ).with_details(
        pid=instance.pid,
        cpus=list(instance.cpus),
        memory_nodes=list(instance.state.get("memory_nodes") or instance.template.grant.memory_nodes),
        **(
            {
                "devices": [use.model_dump() for use in instance.describe_devices()],
                "unused_device_bytes": _parse_integer(instance.state.get("unused_device_bytes")),
            }
            if instance.devices
            else {}
        ),
    )


def _parse_integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
