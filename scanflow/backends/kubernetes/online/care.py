"""What is due for a service on a cluster, where no supervisor sees to it: its backup is let answer and hands back, and
a canary is judged. A server asks for it each second; without one, nobody does.

Nothing is remembered between two looks but in the cluster, so that any server may take the next one: for how long an
instance has been ready is in its pod's status; who answers, and where the counters stood when the canary began, are
annotations of the object that the service is kept in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import time
from typing import Final

from pydantic import BaseModel

from scanflow.backends.kubernetes.cluster import Cluster, ConflictError
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import REVISION, SERVICE
from scanflow.backends.kubernetes.online import observed
from scanflow.backends.kubernetes.online.store import KeptService, ServiceStore
from scanflow.backends.kubernetes.online.switch import Switch
from scanflow.backends.kubernetes.times import epoch_s
from scanflow.backends.service_change import ServiceChange
from scanflow.backends.service_decisions import Failover, RevisionStats, Verdict, analyse, between, look
from scanflow.backends.service_metrics import Totals
from scanflow.backends.service_records import CanaryPolicy, ServiceRecord

BEGAN: Final = "scanflow.dev/canary"
"""An annotation of a service's object: where the counters stood when its canary began."""

CHECK_S: Final = 2.0
"""How often a pod's readiness is looked at: ``hand_back_after`` counts these."""


class CanaryBeginning(BaseModel):
    """Where the counters stood when the analysis of a canary began."""

    revision: str
    began: float
    before: dict[str, RevisionStats]


def backup_answers(
    *, now_backup: bool, ready_s: Sequence[float], wanted: int, backup_ready: bool, hand_back_after: int
) -> bool:
    """Return whether the backup is to answer. Pure.

    Args:
        now_backup: Whether it does.
        ready_s: For each instance that is ready, how long it has been, in seconds.
        wanted: How many instances there should be; 0: the service sleeps.
        backup_ready: Whether the backup has an instance that is ready.
        hand_back_after: How many checks in a row an instance must have passed before it answers again.
    """
    passed = int(max(ready_s, default=0.0) / CHECK_S)
    before = Failover("backup" if now_backup else "primary", max(0, passed - 1))
    after = look(
        before, ready=len(ready_s), wanted=wanted, backup=backup_ready or now_backup, hand_back_after=hand_back_after
    )
    return after.active == "backup"


def canary_verdict(
    policy: CanaryPolicy, beginning: CanaryBeginning, *, current: str, totals: Mapping[str, RevisionStats], now: float
) -> Verdict:
    """Return what becomes of a canary, from what both revisions did since it began. Pure."""
    names = (current, beginning.revision)
    own, canary = (between(beginning.before.get(one, RevisionStats()), totals[one]) for one in names)
    return analyse(policy, current=own, canary=canary, elapsed_s=now - beginning.began)


TotalsOf = Callable[[str], Totals]
"""From a service to what its instances have counted until now, by revision."""


class Care:
    """For one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        store: ServiceStore,
        switch: Switch,
        totals_of: TotalsOf,
        *,
        clock: Callable[[], float] = time,
    ) -> None:
        self._cluster, self._store, self._switch = cluster, store, switch
        self._totals_of, self._clock = totals_of, clock

    def reconcile(self, record: ServiceRecord) -> ServiceChange | None:
        """Do what is due for a service, and return the change of it that is due."""
        canary = next((one for one in record.revisions if one.role != "current"), None)
        if canary is None and (record.state == "ready" or (record.backup is None and record.state != "backup")):
            return None  # all its instances answer, or nobody may for it
        stored = self._store.find(record.name)
        if stored is None or stored.state.deleted or not stored.state.in_effect:
            return None  # whoever changes it brings it to an end
        try:
            if record.backup is not None or stored.answered_by is not None:
                stored = self._fail_over(stored, stored.state.definition.serving.backup)
            return self._canary_change(stored)
        except ConflictError:
            return None  # it was changed since it was read, and is looked at again at once

    def _fail_over(self, stored: KeptService, backup: str | None) -> KeptService:
        """Let the backup answer, or hand back; return the service as it then is. Whatever moment this is ended at, the
        next look goes on.

        One that answers and is its backup no more goes on until somebody else can.

        Raises:
            ConflictError: the service was changed since it was read.
        """
        other = None if backup is None else self._store.find(backup)
        if stored.answered_by is not None and stored.answered_by != backup:
            return self._take_over(stored, other)
        if other is None:
            return stored
        definition, now_backup = stored.state.definition, stored.answered_by == backup
        pods, scaling = self._pods(stored), definition.scaling
        asleep = scaling is not None and scaling.min == 0 and not pods
        to_backup = backup_answers(
            now_backup=now_backup,
            ready_s=[self._ready_s(pod) for pod in pods if observed.is_ready(pod)],
            wanted=definition.shape.instances if scaling is None else int(not asleep),
            backup_ready=any(observed.is_ready(pod) for pod in self._pods(other)),
            hand_back_after=definition.serving.hand_back_after,
        )
        if to_backup and not now_backup:
            stored = self._store.note(stored, answers=backup)
        elif now_backup and not self._store.is_as_it_was(stored):
            raise ConflictError(f"The service {stored.state.name!r} was changed since it was read.")
        if to_backup:
            self._switch.point(definition, backup=other.state.definition)
        elif now_backup:
            self._switch.point(definition)
            stored = self._store.note(stored, answers=None)
        return stored

    def _take_over(self, stored: KeptService, backup: KeptService | None) -> KeptService:
        """Let the service itself answer, or its new backup, instead of the one that it had."""
        definition = stored.state.definition
        if any(observed.is_ready(pod) for pod in self._pods(stored)):
            self._switch.point(definition)
            return self._store.note(stored, answers=None)
        if backup is not None and any(observed.is_ready(pod) for pod in self._pods(backup)):
            self._switch.point(definition, backup=backup.state.definition)
            return self._store.note(stored, answers=backup.state.name)
        return stored

    def _canary_change(self, stored: KeptService) -> ServiceChange | None:
        definition, now = stored.state.definition, self._clock()
        canary, policy = definition.canary, definition.policy
        if canary is None or policy is None:
            return None
        seen = self._totals_of(stored.state.name)
        totals = {one: seen.of(one) for one in (definition.current.id, canary.id)}
        beginning = self._beginning(stored, canary.id, totals, now)
        verdict = canary_verdict(policy, beginning, current=definition.current.id, totals=totals, now=now)
        if verdict.decision == "wait":
            return None
        return ServiceChange(promote=True) if verdict.decision == "promote" else ServiceChange(rollback=True)

    def _beginning(
        self, stored: KeptService, canary: str, totals: Mapping[str, RevisionStats], now: float
    ) -> CanaryBeginning:
        if (text := stored.notes.get(BEGAN)) is not None:
            beginning = CanaryBeginning.model_validate_json(text)
            if beginning.revision == canary:
                return beginning
        beginning = CanaryBeginning(revision=canary, began=now, before=dict(totals))
        self._store.note(stored, canary=beginning.model_dump_json())
        return beginning

    def _pods(self, stored: KeptService) -> list[Manifest]:
        current = stored.state.definition.current.id
        labels = f"{SERVICE}={stored.state.name},{REVISION}={current}"
        return self._cluster.find("Pod", stored.namespace, labels=labels)[0]

    def _ready_s(self, pod: Manifest) -> float:
        ready = next(one for one in pod["status"]["conditions"] if one["type"] == "Ready")
        since = ready.get("lastTransitionTime")
        return 0.0 if since is None else max(0.0, self._clock() - epoch_s(since))
