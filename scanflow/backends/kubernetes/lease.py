"""Leader election by a Lease of the cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from scanflow.backends.kubernetes.api_errors import ConflictError
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest, build_manifest
from scanflow.errors import NotFoundError

LEADER: Final = "scanflow.dev/leader"
"""A label: the server's pod that its Service selects."""


class _Record(NamedTuple):
    holder: str
    renewed: str
    version: str


class KubernetesLease:
    """See :class:`~scanflow.backends.backend_port.Lease`.

    As in client-go, only this process' clock is trusted. A lease expires when its record has not changed for
    ``duration_s``, counted from when the change was observed here; each write names the version that it replaces, so
    that of two concurrent writes one is refused.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        holder: str,
        *,
        duration_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``holder``: where it is a pod of that namespace, it is labelled as the leader while it holds the lease."""
        self._cluster, self._namespace, self._name, self._holder = cluster, namespace, name, holder
        self._duration_s, self._clock = duration_s, clock
        self._record: _Record | None = None
        self._changed = 0.0
        self._labelled: bool | None = None

    def take(self) -> bool:
        held = self._take() or self._take()  # again, where another wrote meanwhile: the record says who holds it now
        self._update_labels(held)
        return held

    def release(self) -> None:
        self._update_labels(False)
        lease = self._cluster.get("Lease", self._name, self._namespace)
        if lease is not None and lease["spec"].get("holderIdentity") == self._holder:
            self._write(lease, {"holderIdentity": "", "leaseDurationSeconds": 1})

    def _take(self) -> bool:
        lease = self._cluster.get("Lease", self._name, self._namespace)
        if lease is None:
            return self._create()
        spec = lease["spec"]
        record = _Record(
            spec.get("holderIdentity") or "", str(spec.get("renewTime")), lease["metadata"]["resourceVersion"]
        )
        if record != self._record:
            self._record, self._changed = record, self._clock()
        lasts_s = float(spec.get("leaseDurationSeconds") or self._duration_s)
        if record.holder not in {"", self._holder} and self._clock() - self._changed < lasts_s:
            return False
        changes: dict[str, Any] = {"holderIdentity": self._holder, "leaseDurationSeconds": round(self._duration_s)}
        if record.holder != self._holder:
            changes |= {"acquireTime": _format_now(), "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1}
        return self._write(lease, changes)

    def _create(self) -> bool:
        spec = {
            "holderIdentity": self._holder,
            "leaseDurationSeconds": round(self._duration_s),
            "acquireTime": _format_now(),
            "renewTime": _format_now(),
            "leaseTransitions": 0,
        }
        metadata = {"name": self._name, "namespace": self._namespace}
        try:
            self._cluster.create(build_manifest("Lease", metadata, spec=spec))
        except ConflictError:
            return False
        return True

    def _write(self, lease: Manifest, changes: dict[str, Any]) -> bool:
        version = {"resourceVersion": lease["metadata"]["resourceVersion"]}
        patch = {"metadata": version, "spec": {**changes, "renewTime": _format_now()}}
        try:
            self._cluster.patch("Lease", self._name, self._namespace, patch)
        except (ConflictError, NotFoundError):
            return False
        return True

    def _update_labels(self, held: bool) -> None:
        if held == self._labelled:
            return
        try:
            label = {"metadata": {"labels": {LEADER: "true" if held else None}}}
            self._cluster.patch("Pod", self._holder, self._namespace, label)
        except NotFoundError:
            pass  # it is no pod
        self._labelled = held


def _format_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
