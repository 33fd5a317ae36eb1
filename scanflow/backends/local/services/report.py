"""From what a supervisor knows to the record that people and programs get. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable

from scanflow.backends.local.services.figures import Conducted, quantile
from scanflow.backends.local.services.instance import Instance
from scanflow.backends.local.services.layout import ServiceFolder
from scanflow.backends.local.services.pulse import Pulse
from scanflow.backends.local.services.stored import Stored
from scanflow.backends.service_records import InstanceRecord, RevisionRecord, ServiceRecord, ServiceState
from scanflow.wire import Revision

__all__ = ["record_of"]


def record_of(
    stored: Stored,
    folder: ServiceFolder,
    *,
    count: int,
    instances: Iterable[Instance] = (),
    pulse: Pulse | None = None,
    backup_active: bool = False,
    recorded: int = 0,
) -> ServiceRecord:
    """Return a service's record. ``count``: instances there should be now."""
    definition = stored.definition
    known = sorted(instances, key=lambda one: (len(one.name), one.name))
    failed = stored.failed
    errors = [one.error for one in known if one.error and one.phase in {"waiting", "failed"}]
    return ServiceRecord(
        name=stored.name,
        app=definition.app,
        team=definition.team,
        state=_state(stored, known, count, backup_active=backup_active),
        url=f"http://{stored.host}:{stored.port}",
        grpc=f"{stored.host}:{stored.grpc_port}" if stored.grpc_port else None,
        folder=str(folder.path),
        generation=stored.generation,
        settled=stored.settled,
        shape=definition.shape.model_copy(update={"instances": count}),
        previous=stored.previous is not None or definition.trial is not None,
        backup=definition.backup,
        instances=tuple(_instance(one, stored.name) for one in known),
        revisions=tuple(_revision(one, place, pulse) for place, one in enumerate(definition.revisions)),
        source=definition.source,
        created=stored.created,
        recorded=recorded or int(pulse.totals.recorded if pulse else 0),
        dropped=int(pulse.totals.dropped) if pulse else 0,
        error=failed.reason if failed is not None else (errors[0] if errors else None),
    )


def _state(stored: Stored, known: list[Instance], count: int, *, backup_active: bool) -> ServiceState:
    if stored.hopeless:
        return "failed"
    if backup_active:
        return "backup"
    ready = sum(one.phase == "ready" for one in known)
    if count == 0 and not any(one.alive for one in known):
        return "idle"
    if ready >= count > 0:
        return "ready"
    if ready:
        return "degraded" if stored.settled else "starting"
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
        pid=one.pid,
        began=time.time() - (now - one.began) if one.alive else None,
        restarts=one.restarts,
        cpus=one.cpus,
        memory_nodes=tuple(one.state.get("memory_nodes") or one.mold.grant.memory_nodes),
        cores=one.mold.cores,
        threads=_whole(one.state.get("threads")) or (one.usage.threads if one.usage else None),
        rss_bytes=one.usage.rss_bytes if one.usage else None,
        cpu_share=None if one.cpu_share is None else round(one.cpu_share, 3),
        in_flight=_whole(one.state.get("in_flight")) or 0,
        error=error,
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _revision(revision: Revision, place: int, pulse: Pulse | None) -> RevisionRecord:
    whole = pulse.totals.revisions.get(revision.id, Conducted()) if pulse else Conducted()
    lately = pulse.lately(revision.id) if pulse else Conducted()
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
        rps=pulse.rps(revision.id) if pulse else None,
        p50_s=quantile(lately.buckets, 0.5),
        p95_s=quantile(lately.buckets, 0.95),
    )
