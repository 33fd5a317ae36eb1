"""Detect, report and repair drift: objects of a service that others deleted or changed. Additions are left alone.

Objects are read in bulk, with one list or watch of each kind for all services, so that many services cost an API server
no more than few, and a service is compared with its objects again only when one of them has changed. It is repaired
only with the settings that it was deployed with, and only while no rollout is in progress: each object is written at
the resource version that was read before the desired state was confirmed unchanged.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from scanflow.backends.environments import FieldChange
from scanflow.backends.kubernetes.api_errors import ConflictError
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.differences import compute_difference, format_recreation, list_missing_fields
from scanflow.backends.kubernetes.kinds import KINDS, Manifest, get_object_key
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.list_cache import ListCache
from scanflow.backends.kubernetes.object_labels import SERVICE
from scanflow.backends.kubernetes.online.closed_routes import ROUTE_KINDS
from scanflow.backends.kubernetes.online.engines import ENGINES
from scanflow.backends.kubernetes.online.render import (
    DEPLOYED_SETTINGS,
    RenderedRevision,
    extract_settings,
    get_kind_and_name,
)
from scanflow.backends.kubernetes.online.service_definition import list_mounted_objects, rebuild_mounted_object
from scanflow.backends.kubernetes.online.service_store import STATE, ServiceConfigMap, ServiceStore
from scanflow.backends.kubernetes.online.traffic_switch import AUTOSCALER_KINDS, TrafficSwitch
from scanflow.backends.service_spec import ServiceSpec
from scanflow.errors import AccessDeniedError, UnsupportedError

REFRESH_S: Final = 10.0
"""The interval at which the objects of all services are read."""

_MAX_SHOWN: Final = 3
Key = tuple[str, str, str]
"""Kind, namespace and name."""

Versions = tuple[str, str | None, frozenset[tuple[Key, str]]]


class LiveObjects:
    """A cache of the objects of all services; not thread-safe."""

    def __init__(self) -> None:
        self.refreshed_at: float | None = None
        self.objects: dict[Key, Manifest] = {}
        self.services: dict[str, ServiceConfigMap] = {}
        self.checked: set[str] = set()
        """The services that were checked since the last refresh."""

        self.verified: dict[str, Versions] = {}
        """By service: the versions of its objects that needed no repair."""

        self.equivalent: dict[Key, tuple[str, Manifest]] = {}
        """The versions of objects that differ from their manifest in notation only: a quantity that the cluster
        normalized, for instance."""

        self.missing: dict[str, set[Key]] = {}
        """By service: mounted objects that are missing and cannot be recreated; already reported."""

        self.certificates: dict[str, Any] = {}
        """By service: the state of the home's certificates that it was brought up to last."""

        self._versions: dict[tuple[str, str], dict[Key, str]] = {}

    def refresh(
        self, list_cache: ListCache, kinds: Iterable[str], services: Iterable[ServiceConfigMap], now: float
    ) -> None:
        self.objects = {
            get_object_key(manifest): manifest for kind in kinds for manifest in _list_objects(list_cache, kind)
        }
        self.services = {service.state.name: service for service in services}
        self.equivalent = {key: version for key, version in self.equivalent.items() if key in self.objects}
        self.verified = {name: versions for name, versions in self.verified.items() if name in self.services}
        self._versions = {}
        for key, manifest in self.objects.items():
            service_key = manifest["metadata"]["namespace"], manifest["metadata"]["labels"][SERVICE]
            self._versions.setdefault(service_key, {})[key] = get_version(manifest)
        self.refreshed_at, self.checked = now, set()

    def read_versions(self, stored: ServiceConfigMap) -> Versions:
        """Return the versions of a service's desired state and of its objects."""
        backup = self.services.get(stored.active_backup or "")
        own = self._versions.get(stored.key, {})
        return stored.version, None if backup is None else backup.version, frozenset(own.items())


def is_suspicious(
    manifest: Manifest, live: Mapping[Key, Manifest], equivalent: Mapping[Key, tuple[str, Manifest]]
) -> bool:
    """Return whether an object may differ from its manifest. Pure."""
    key = get_object_key(manifest)
    current = live.get(key)
    if current is None:
        return True
    return equivalent.get(key) != (get_version(current), manifest) and bool(list_missing_fields(current, manifest))


def select_comparable(own: Mapping[str, str], applied: Mapping[str, str], live: Collection[str]) -> set[str]:
    """Return which of a service's objects to compare with their manifests. Pure.

    These are the objects whose manifests this version of scanflow writes as they were applied. Of the others, only the
    missing ones: an upgrade must not replace pods.

    Args:
        own: The hash of each manifest as this version writes it.
        applied: The hash of each manifest as it was applied last.
        live: The objects that exist.
    """
    return {name for name, digest in own.items() if name in applied and (applied[name] == digest or name not in live)}


def get_version(manifest: Manifest) -> str:
    """Return a version that changes with the spec and the labels of an object, and not with its status if the server
    counts generations."""
    metadata = manifest["metadata"]
    if (generation := metadata.get("generation")) is None:
        return str(metadata["resourceVersion"])
    return f"{generation} {sorted(metadata.get('labels', {}).items())}"


def format_repair(manifest: Manifest, fields: Iterable[FieldChange], reason: str) -> str:
    """Format what somebody changed in an object, and what was restored."""
    kind, namespace, name = get_object_key(manifest)
    changed = [str(field) for field in fields]
    if not changed:
        return format_recreation(manifest)
    match = re.search(r'conflict with "([^"]+)"', reason)
    more = f" and {len(changed) - _MAX_SHOWN} more" if len(changed) > _MAX_SHOWN else ""
    author = f" ({match[1]})" if match else ""
    shown = "; ".join(changed[:_MAX_SHOWN])
    return f"restored the {kind} {namespace}/{name}, which another client{author} changed: {shown}{more}"


class Drift:
    """The drift repair of one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        settings: KubernetesSettings,
        store: ServiceStore,
        switch: TrafficSwitch,
        live: LiveObjects,
        list_cache: ListCache,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._settings, self._store, self._list_cache = cluster, settings, store, list_cache
        self._switch, self._live, self._clock = switch, live, clock

    def repair(self, name: str, *, ready: bool = True) -> Iterator[str]:
        """Repair a service's objects, and yield a sentence for each repair. Most calls read nothing.

        Mounted objects matter only to pods that are starting: they are checked while a service is not ``ready``.
        """
        live, now = self._live, self._clock()
        if live.refreshed_at is None or now - live.refreshed_at >= REFRESH_S:
            live.refresh(self._list_cache, self._list_kinds(), self._store.list_services(), now)
        if name in live.checked:
            return
        live.checked.add(name)
        stored = live.services.get(name)
        if stored is None or not self._is_steady(stored):
            return
        if ready:
            live.missing.pop(name, None)
        else:
            yield from self._repair_mounted_objects(stored)
        if live.verified.get(name) == (versions := live.read_versions(stored)):
            return
        repairs = 0
        try:
            for repairs, text in enumerate(self._repair_objects(stored), 1):  # noqa: B007  counts
                yield text
        except ConflictError:
            return  # an object, or its status, changed since it was read: the next call compares all again
        if not repairs:
            live.verified[name] = versions

    def _repair_objects(self, stored: ServiceConfigMap) -> Iterator[str]:
        definition = stored.state.definition
        backup = self._live.services.get(stored.active_backup or "")
        rendering = self._switch.render(definition)
        routes = rendering.routes
        if backup is not None:
            routes = self._switch.render_routes(definition, backup=backup.state.definition)
        live = {
            get_kind_and_name(manifest)
            for manifest in rendering.manifests
            if get_object_key(manifest) in self._live.objects
        }
        compared = select_comparable(rendering.hashes, stored.applied_hashes, live)
        for manifest in [*rendering.workloads, *routes]:
            if (
                get_kind_and_name(manifest) in compared
                and is_suspicious(manifest, self._live.objects, self._live.equivalent)
                and (text := self._repair_object(stored, manifest))
            ):
                yield text
        for revision in rendering.revisions:
            if revision.scaler is None and (text := self._repair_replicas(stored, revision)):
                yield text

    def _repair_mounted_objects(self, stored: ServiceConfigMap) -> Iterator[str]:
        missing = self._live.missing.setdefault(stored.state.name, set())
        for kind, name in list_mounted_objects(stored.state.definition):
            key = kind, stored.namespace, name
            if self._cluster.get(kind, name, stored.namespace) is not None:
                missing.discard(key)
            elif (
                manifest := rebuild_mounted_object(stored.state.definition, kind, name)
            ) is not None and self._recreate(stored, manifest):
                yield format_recreation(manifest)
            elif manifest is None and key not in missing:
                missing.add(key)
                yield (
                    f"another client deleted the {kind} {stored.namespace}/{name}, which pods of {stored.state.name!r} "
                    "mount, and its contents are not stored here. Deploy again from the application's folder: "
                    "scanflow deploy"
                )

    def _is_steady(self, stored: ServiceConfigMap) -> bool:
        """Return whether no rollout of a service is in progress, and it was deployed with these settings."""
        state = stored.state
        return (
            not state.deleted
            and state.in_effect
            and _get_settings(state.definition) == extract_settings(self._settings)
        )

    def _repair_object(self, stored: ServiceConfigMap, manifest: Manifest) -> str | None:
        kind, namespace, name = get_object_key(manifest)
        live = self._cluster.get(kind, name, namespace)
        if live is None:
            return format_recreation(manifest) if self._recreate(stored, manifest) else None
        diff = compute_difference(self._cluster, manifest)
        if not diff.fields and diff.change in {"none", "conflict"}:  # somebody has just written the same
            self._live.equivalent[get_object_key(manifest)] = get_version(live), manifest
            return None
        if not self._store.is_unchanged(stored):
            return None
        version = {"resourceVersion": live["metadata"]["resourceVersion"]}
        self._cluster.apply({**manifest, "metadata": {**manifest["metadata"], **version}}, force=True)
        return format_repair(manifest, diff.fields, diff.why)

    def _recreate(self, stored: ServiceConfigMap, manifest: Manifest) -> bool:
        """Create a missing object, unless the desired state has changed; return whether it was created."""
        if not self._store.is_unchanged(stored):
            return False
        self._cluster.apply(manifest, force=True)
        if (now := self._store.find(stored.state.name, stored.namespace)) is None or now.state.deleted:
            kind, namespace, name = get_object_key(manifest)
            self._cluster.delete(kind, name, namespace)  # the deletion may have listed the objects before
            return False
        return True

    def _repair_replicas(self, stored: ServiceConfigMap, revision: RenderedRevision) -> str | None:
        target, count = revision.target, revision.instances
        key = (target.kind, stored.namespace, target.name)
        if key not in self._live.objects or self._live.objects[key]["spec"].get("replicas", 1) == count:
            return None
        workload = self._cluster.get(target.kind, target.name, stored.namespace)
        if workload is None or workload["spec"].get("replicas", 1) == count or not self._store.is_unchanged(stored):
            return None
        version = {"resourceVersion": workload["metadata"]["resourceVersion"]}
        change = {"metadata": version, "spec": {"replicas": count}}
        self._cluster.patch(target.kind, target.name, stored.namespace, change)
        changed = FieldChange(".spec.replicas", workload["spec"].get("replicas", 1), count)
        return f"restored the {target.kind} {stored.namespace}/{target.name}, which another client changed: {changed}"

    def _list_kinds(self) -> set[str]:
        gateway = (
            set() if self._settings.gateway is None else {"HTTPRoute", "GRPCRoute", "TraefikService", *ROUTE_KINDS}
        )
        return {"ConfigMap", "Service", "Deployment", *AUTOSCALER_KINDS, ENGINES[self._settings.serving].kind, *gateway}


def _list_objects(list_cache: ListCache, kind: str) -> list[Manifest]:
    try:
        return list_cache.find(kind, f"{SERVICE},!{STATE}")
    except (AccessDeniedError, UnsupportedError):
        if KINDS[kind].engine is None:
            raise
        return []  # without this kind, or any right to it, there is no service that needs it


def _get_settings(definition: ServiceSpec) -> Any:
    return definition.details.get(DEPLOYED_SETTINGS)
