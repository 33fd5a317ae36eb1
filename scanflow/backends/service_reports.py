"""Service records from desired state and metrics, for every backend. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from scanflow.backends.canary_analysis import RevisionStats
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_metrics import MetricsWindow
from scanflow.backends.service_records import (
    InstanceRecord,
    RevisionRecord,
    ServiceRecord,
    ServiceState,
    compute_quantile,
    mask_errors,
)
from scanflow.instance_messages import Revision
from scanflow.text.masking import Masker


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
    """Return a service's record, without backend-specific details; its secrets are masked in errors.

    Args:
        desired: The desired state.
        window: The metrics.
        state: The observed state.
        url: The address for HTTP.
        grpc: The address for gRPC; None: there is none.
        count: The desired number of instances.
        ready: The number of ready instances.
        instances: All instances.
        revisions: All served revisions.
        problem: The error of an instance, reported if no change failed.
    """
    definition, failed = desired.definition, desired.failed
    polling_s = 15.0 if definition.scaling is None else cast("float", definition.scaling.polling)
    record = ServiceRecord(
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
        previous_models=_list_previous_models(desired),
        policy=definition.policy,
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
        failed_change=None if failed is None else failed.generation,
    )
    if record.error is None and all(instance.error is None for instance in instances):
        return record
    return mask_errors(record, Masker(definition.model_dump(mode="json")))  # an instance's last words may quote them


def _list_previous_models(desired: DesiredState) -> dict[str, str]:
    """Return the models that would be served after a rollback; empty: there is nothing to roll back to."""
    definition = desired.previous if desired.definition.canary is None else desired.definition
    return {} if definition is None else definition.current.models


def report_revision(revision: Revision, place: int, window: MetricsWindow, latencies: RevisionStats) -> RevisionRecord:
    """Return the record of the revision at that position; its quantiles are computed from ``latencies``."""
    whole = window.totals.get_revision(revision.id)
    return RevisionRecord(
        id=revision.id,
        models=revision.models,
        weight=revision.weight,
        shadow=revision.shadow,
        role="current" if place == 0 else "shadow" if revision.shadow else "canary",
        requests=int(whole.requests),
        errors=int(whole.errors),
        invalid=int(whole.invalid),
        rps=window.compute_rps(revision.id),
        error_share=latencies.error_share if latencies.valid else None,
        p50_s=compute_quantile(latencies.buckets, 0.5),
        p95_s=compute_quantile(latencies.buckets, 0.95),
        nodes=window.compute_node_traffic(revision.id),
        buckets=tuple((limit, int(count)) for limit, count in sorted(whole.buckets.items()) if math.isfinite(limit)),
    )
