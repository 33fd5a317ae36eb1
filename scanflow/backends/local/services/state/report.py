"""From what a supervisor knows to the record that people and programs get. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import cast

from scanflow.backends.local.services.layout import ServiceFolder
from scanflow.backends.local.services.state.desired import DesiredState
from scanflow.backends.local.services.supervisor.instance import Instance
from scanflow.backends.local.services.supervisor.metrics import MetricsWindow
from scanflow.backends.service_records import InstanceRecord, RevisionRecord, ServiceRecord, ServiceState, quantile
from scanflow.wire import Revision


def record_of(
    desired: DesiredState,
    folder: ServiceFolder,
    *,
    count: int,
    instances: Iterable[Instance] = (),
    window: MetricsWindow | None = None,
    backup_active: bool = False,
) -> ServiceRecord:
    definition, window = desired.definition, window or MetricsWindow(0.0)
    known = sorted(instances, key=lambda one: (len(one.name), one.name))
    failed = desired.failed
    errors = [one.error for one in known if one.error and one.phase in {"waiting", "failed"}]
    return ServiceRecord(
        name=desired.name,
        app=definition.app,
        team=definition.team,
        state=_state(desired, known, count, backup_active=backup_active),
        url=f"http://{desired.host}:{desired.port}",
        grpc=f"{desired.host}:{desired.grpc_port}" if desired.grpc_port else None,
        generation=desired.generation,
        settled=desired.settled,
        shape=definition.shape.model_copy(update={"instances": count}),
        previous=desired.previous is not None or definition.canary is not None,
        tracker=definition.tracker_uri,
        backup=definition.serving.backup,
        instances=tuple(_instance(one, desired.name) for one in known),
        revisions=tuple(_revision(one, place, window) for place, one in enumerate(definition.revisions)),
        scaling=definition.scaling,
        load=window.load(
            sum(one.phase == "ready" for one in known),
            15.0 if definition.scaling is None else cast("float", definition.scaling.polling),
        ),
        source=definition.source,
        created=desired.created,
        recorded=int(window.totals.recorded),
        dropped=int(window.totals.dropped),
        error=failed.reason if failed is not None else (errors[0] if errors else None),
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
        began=time.time() - (now - one.began) if one.alive else None,
        restarts=one.restarts,
        cores=one.cores,
        threads=_whole(one.state.get("threads")) or (one.usage.threads if one.usage else None),
        rss_bytes=one.usage.rss_bytes if one.usage else None,
        cpu_share=None if one.cpu_share is None else round(one.cpu_share, 3),
        in_flight=_whole(one.state.get("in_flight")) or 0,
        error=error,
    ).with_details(
        pid=one.pid,
        cpus=list(one.cpus),
        memory_nodes=list(one.state.get("memory_nodes") or one.template.grant.memory_nodes),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _revision(revision: Revision, place: int, window: MetricsWindow) -> RevisionRecord:
    whole, lately = window.totals.of(revision.id), window.lately(revision.id)
    return RevisionRecord(
        id=revision.id,
        models={
            node.name: f"models:/{node.model.name}/{node.model.version}"
            for node in revision.nodes
            if node.model is not None
        },
        weight=revision.weight,
        shadow=revision.shadow,
        role="current" if place == 0 else "shadow" if revision.shadow else "canary",
        requests=int(whole.requests),
        errors=int(whole.errors),
        rps=window.rps(revision.id),
        p50_s=quantile(lately.buckets, 0.5),
        p95_s=quantile(lately.buckets, 0.95),
        buckets=tuple((limit, int(count)) for limit, count in sorted(whole.buckets.items()) if math.isfinite(limit)),
    )
