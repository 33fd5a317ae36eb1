"""Failover to backups and canary analysis for the services of a cluster, which have no supervisor. A server calls it
each second; without a server, nothing does.

All state between two calls is in the cluster, so that any server may make the next one: how long an instance has been
ready is in its pod's status; which backup is active, and the counters at the start of a canary, are annotations of the
service's ConfigMap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import time
from typing import Final

from pydantic import BaseModel

from scanflow.backends.canary_analysis import RevisionStats, Verdict, analyse, subtract_stats
from scanflow.backends.failover import Failover, update_failover
from scanflow.backends.kubernetes.api_errors import ConflictError
from scanflow.backends.kubernetes.api_times import parse_epoch_s
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest, get_condition
from scanflow.backends.kubernetes.object_labels import REVISION, SERVICE
from scanflow.backends.kubernetes.online import observed_objects
from scanflow.backends.kubernetes.online.service_store import ServiceConfigMap, ServiceStore
from scanflow.backends.kubernetes.online.traffic_switch import TrafficSwitch
from scanflow.backends.service_change import ServiceChange
from scanflow.backends.service_metrics import Totals
from scanflow.backends.service_records import CanaryPolicy, ServiceRecord

CANARY_START: Final = "scanflow.dev/canary"
"""An annotation of a service's ConfigMap: the counters when its canary began."""

CHECK_S: Final = 2.0
"""The interval of readiness checks, which ``hand_back_after`` counts."""


class CanaryBeginning(BaseModel):
    """The counters when the analysis of a canary began."""

    revision: str
    began: float
    before: dict[str, RevisionStats]


def should_backup_answer(
    *, backup_active: bool, ready_s: Sequence[float], wanted: int, backup_ready: bool, hand_back_after: int
) -> bool:
    """Return whether the backup should serve requests. Pure.

    Args:
        backup_active: Whether it does so now.
        ready_s: How long each ready instance has been ready, in seconds.
        wanted: How many instances there should be; 0: the service sleeps.
        backup_ready: Whether the backup has a ready instance.
        hand_back_after: How many consecutive checks an instance must pass before the service fails back.
    """
    passed = int(max(ready_s, default=0.0) / CHECK_S)
    before = Failover("backup" if backup_active else "primary", max(0, passed - 1))
    after = update_failover(
        before, ready=len(ready_s), wanted=wanted, backup=backup_ready or backup_active, hand_back_after=hand_back_after
    )
    return after.active == "backup"


def analyse_canary(
    policy: CanaryPolicy, beginning: CanaryBeginning, *, current: str, totals: Mapping[str, RevisionStats], now: float
) -> Verdict:
    """Return the verdict on a canary, from the metrics of both revisions since it began. Pure."""
    revisions = (current, beginning.revision)
    own, canary = (
        subtract_stats(beginning.before.get(revision, RevisionStats()), totals[revision]) for revision in revisions
    )
    return analyse(policy, current=own, canary=canary, elapsed_s=now - beginning.began)


ReadTotals = Callable[[str], Totals]
"""Returns the totals of a service's instances, by revision."""


class ServiceReconciler:
    """The failover and canary controller of one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        store: ServiceStore,
        switch: TrafficSwitch,
        read_totals: ReadTotals,
        *,
        clock: Callable[[], float] = time,
    ) -> None:
        self._cluster, self._store, self._switch = cluster, store, switch
        self._read_totals, self._clock = read_totals, clock

    def reconcile(self, record: ServiceRecord) -> ServiceChange | None:
        """Fail a service over or back if necessary, and return the change that its canary calls for."""
        canary = next((revision for revision in record.revisions if revision.role != "current"), None)
        if canary is None and (record.state == "ready" or (record.backup is None and record.state != "backup")):
            return None  # all its instances are ready, or it has no backup
        stored = self._store.find(record.name, (record.model_extra or {}).get("namespace"))
        if stored is None or stored.state.deleted or not stored.state.in_effect:
            return None  # a rollout is in progress
        try:
            if record.backup is not None or stored.active_backup is not None:
                stored = self._fail_over(stored, stored.state.definition.serving.backup)
            return self._decide_canary_change(stored)
        except ConflictError:
            return None  # it was changed since it was read: the next call reads it again

    def _fail_over(self, stored: ServiceConfigMap, backup: str | None) -> ServiceConfigMap:
        """Fail over to the backup, or back; return the updated service.

        It may be interrupted at any point: the next call resumes. A former backup stays active until the service or
        its new backup is ready.

        Raises:
            ConflictError: the service was changed since it was read.
        """
        backup_service = None if backup is None else self._store.find(backup, stored.namespace)
        if stored.active_backup is not None and stored.active_backup != backup:
            return self._take_over(stored, backup_service)
        if backup_service is None:
            return stored
        definition, backup_active = stored.state.definition, stored.active_backup == backup
        pods, scaling = self._list_pods(stored), definition.scaling
        asleep = scaling is not None and scaling.min == 0 and not pods
        to_backup = should_backup_answer(
            backup_active=backup_active,
            ready_s=[self._compute_ready_s(pod) for pod in pods if observed_objects.is_ready(pod)],
            wanted=definition.shape.instances if scaling is None else int(not asleep),
            backup_ready=any(observed_objects.is_ready(pod) for pod in self._list_pods(backup_service)),
            hand_back_after=definition.serving.hand_back_after,
        )
        if to_backup and not backup_active:
            stored = self._store.note_active_backup(stored, backup)
        elif backup_active and not self._store.is_unchanged(stored):
            raise ConflictError(f"The service {stored.state.name!r} was changed since it was read.")
        if to_backup:
            self._switch.route_traffic(self._switch.render_routes(definition, backup=backup_service.state.definition))
        elif backup_active:
            self._switch.route_traffic(self._switch.render_routes(definition))
            stored = self._store.note_active_backup(stored, None)
        return stored

    def _take_over(self, stored: ServiceConfigMap, backup: ServiceConfigMap | None) -> ServiceConfigMap:
        """Replace a former backup by the service itself, or by its new backup, if one of them is ready."""
        definition = stored.state.definition
        if any(observed_objects.is_ready(pod) for pod in self._list_pods(stored)):
            self._switch.route_traffic(self._switch.render_routes(definition))
            return self._store.note_active_backup(stored, None)
        if backup is not None and any(observed_objects.is_ready(pod) for pod in self._list_pods(backup)):
            self._switch.route_traffic(self._switch.render_routes(definition, backup=backup.state.definition))
            return self._store.note_active_backup(stored, backup.state.name)
        return stored

    def _decide_canary_change(self, stored: ServiceConfigMap) -> ServiceChange | None:
        definition, now = stored.state.definition, self._clock()
        canary, policy = definition.canary, definition.policy
        if canary is None or policy is None:
            return None
        service_totals = self._read_totals(stored.state.name)
        totals = {revision: service_totals.get_revision(revision) for revision in (definition.current.id, canary.id)}
        beginning = self._ensure_beginning(stored, canary.id, totals, now)
        verdict = analyse_canary(policy, beginning, current=definition.current.id, totals=totals, now=now)
        if verdict.decision == "wait":
            return None
        return ServiceChange(promote=True) if verdict.decision == "promote" else ServiceChange(rollback=True)

    def _ensure_beginning(
        self, stored: ServiceConfigMap, canary: str, totals: Mapping[str, RevisionStats], now: float
    ) -> CanaryBeginning:
        if (text := stored.annotations.get(CANARY_START)) is not None:
            beginning = CanaryBeginning.model_validate_json(text)
            if beginning.revision == canary:
                return beginning
        beginning = CanaryBeginning(revision=canary, began=now, before=dict(totals))
        self._store.annotate(stored, canary=beginning.model_dump_json())
        return beginning

    def _list_pods(self, stored: ServiceConfigMap) -> list[Manifest]:
        current = stored.state.definition.current.id
        labels = f"{SERVICE}={stored.state.name},{REVISION}={current}"
        return self._cluster.find("Pod", stored.namespace, labels=labels)[0]

    def _compute_ready_s(self, pod: Manifest) -> float:
        since = get_condition(pod["status"], "Ready").get("lastTransitionTime")
        return 0.0 if since is None else max(0.0, self._clock() - parse_epoch_s(since))
