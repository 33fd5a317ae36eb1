"""From what a supervisor knows to the record that people and programs get. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable

from scanflow.backends.local.services.layout import ServiceFolder
from scanflow.backends.local.services.supervisor.instance import Instance
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_metrics import MetricsWindow
from scanflow.backends.service_records import InstanceRecord, ServiceRecord, ServiceState
from scanflow.backends.service_reports import report, report_revision


def record_of(
    desired: DesiredState,
    folder: ServiceFolder,
    *,
    count: int,
    instances: Iterable[Instance] = (),
    window: MetricsWindow | None = None,
    backup_active: bool = False,
) -> ServiceRecord:
    window = window or MetricsWindow(0.0)
    known = sorted(instances, key=lambda one: (len(one.name), one.name))
    errors = [one.error for one in known if one.error and one.phase in {"waiting", "failed"}]
    return report(
        desired,
        window,
        state=_state(desired, known, count, backup_active=backup_active),
        url=f"http://{desired.host}:{desired.port}",
        grpc=f"{desired.host}:{desired.grpc_port}" if desired.grpc_port else None,
        count=count,
        ready=sum(one.phase == "ready" for one in known),
        instances=[_instance(one, desired.name) for one in known],
        revisions=[
            report_revision(one, place, window, window.lately(one.id))
            for place, one in enumerate(desired.definition.revisions)
        ],
        problem=errors[0] if errors else None,
    ).with_details(folder=str(folder.path))


def _state(desired: DesiredState, known: list[Instance], count: int, *, backup_active: bool) -> ServiceState:
    if desired.hopeless:
        return "failed"
    if backup_active:
        return "backup"
    ready = sum(one.phase == "ready" for one in known)
    if count == 0 and not any(one.alive for one in known):
        return "idle"
    if ready >= count > 0:
        return "ready"
    if ready:
        return "degraded" if desired.settled else "starting"
    if known and all(one.phase == "failed" for one in known):
        return "failed"
    restarting = any(one.phase == "waiting" or one.restarts for one in known)
    return "degraded" if restarting else "starting"


def _instance(one: Instance, service: str) -> InstanceRecord:
    error = None
    if one.error is not None:
        error = f"{one.error}. Its log: scanflow logs {service} --instance {one.name}"
    elif unwell := one.state.get("unwell"):
        error = str(unwell)
    now = time.monotonic()
    return InstanceRecord(
        instance=one.name,
        state=one.phase,
        began=round(time.time() - (now - one.began), 1) if one.alive else None,
        restarts=one.restarts,
        cores=one.cores,
        threads=_whole(one.state.get("threads")) or (one.usage.threads if one.usage else None),
        rss_bytes=one.usage.rss_bytes if one.usage else None,
        cpu_share=None if one.cpu_share is None else round(one.cpu_share, 2),
        in_flight=_whole(one.state.get("in_flight")) or 0,
        error=error,
    ).with_details(
        pid=one.pid,
        cpus=list(one.cpus),
        memory_nodes=list(one.state.get("memory_nodes") or one.template.grant.memory_nodes),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
