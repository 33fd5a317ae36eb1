"""The part of a service's record that follows from what is wanted and what was counted, on every backend. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from scanflow.backends.service_decisions import RevisionStats
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_metrics import MetricsWindow
from scanflow.backends.service_records import InstanceRecord, RevisionRecord, ServiceRecord, ServiceState, quantile
from scanflow.wire import Revision


def report(
    desired: DesiredState,
    window: MetricsWindow,
    *,
    state: ServiceState,
    url: str,
    grpc: str | None,
    count: int,
    ready: int,
    instances: Sequence[InstanceRecord],
    revisions: Sequence[RevisionRecord],
    problem: str | None,
) -> ServiceRecord:
    """Return a service's record, without details of its backend.

    Args:
        desired: What is wanted of it.
        window: What was counted.
        state: How it stands.
        url: Where callers reach it.
        grpc: The same for gRPC; None: there is none.
        count: How many instances it is to have now.
        ready: How many of them answer.
        instances: All that it has.
        revisions: All that are served.
        problem: What is wrong with an instance, told where no change failed.
    """
    definition, failed = desired.definition, desired.failed
    polling_s = 15.0 if definition.scaling is None else cast("float", definition.scaling.polling)
    return ServiceRecord(
        name=desired.name,
        app=definition.app,
        team=definition.team,
        state=state,
        url=url,
        grpc=grpc,
        generation=desired.generation,
        settled=desired.settled,
        shape=definition.shape.model_copy(update={"instances": count}),
        previous=desired.previous is not None or definition.canary is not None,
        tracker=definition.tracker_uri,
        backup=definition.serving.backup,
        ready=ready,
        instances=tuple(instances),
        revisions=tuple(revisions),
        scaling=definition.scaling,
        load=window.load(ready, polling_s),
        source=definition.source,
        created=desired.created,
        recorded=int(window.totals.recorded),
        dropped=int(window.totals.dropped),
        error=failed.reason if failed is not None else problem,
    )


def report_revision(revision: Revision, place: int, window: MetricsWindow, latencies: RevisionStats) -> RevisionRecord:
    """Return the record of the revision at that place; ``latencies``: what its quantiles are of."""
    whole = window.totals.of(revision.id)
    return RevisionRecord(
        id=revision.id,
        models=revision.models,
        weight=revision.weight,
        shadow=revision.shadow,
        role="current" if place == 0 else "shadow" if revision.shadow else "canary",
        requests=int(whole.requests),
        errors=int(whole.errors),
        rps=window.rps(revision.id),
        p50_s=quantile(latencies.buckets, 0.5),
        p95_s=quantile(latencies.buckets, 0.95),
        buckets=tuple((limit, int(count)) for limit, count in sorted(whole.buckets.items()) if math.isfinite(limit)),
    )
