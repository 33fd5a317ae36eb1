"""What others removed or changed of a service's objects: found, told, and put right. What they added is left as it is.

Objects are looked at in bulk, one list or watch of each kind for all services, so that many services cost an API server
no more than few, and a service is held against its objects again only when one of them changed. It is put right only by
what has the settings that it was deployed with, and only while nobody changes it: each object is written on the version
that was read before it was seen that nothing else is wanted of the service.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from scanflow.backends.environments import FieldChange
from scanflow.backends.kubernetes.cluster import Cluster, ConflictError
from scanflow.backends.kubernetes.differences import difference, made_again, missing_fields
from scanflow.backends.kubernetes.followed import Followed
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import SERVICE
from scanflow.backends.kubernetes.online.engines import ENGINES
from scanflow.backends.kubernetes.online.mounted import mounted_again, mounted_of
from scanflow.backends.kubernetes.online.objects import STATE, kind_and_name, rendered
from scanflow.backends.kubernetes.online.rollout import Rollout
from scanflow.backends.kubernetes.online.scaling import ScalingTarget
from scanflow.backends.kubernetes.online.store import KeptService, ServiceStore
from scanflow.backends.kubernetes.online.switch import SCALERS, Switch
from scanflow.backends.kubernetes.settings import KubernetesSettings
from scanflow.backends.service_spec import ServiceSpec
from scanflow.errors import UnsupportedError

LOOK_S: Final = 10.0
"""How often the objects of all services are looked at."""

MADE_WITH: Final = "made_with"
"""Of a service's details: the settings that its objects follow from."""

_SHOWN: Final = 3
Key = tuple[str, str, str]
"""Kind, namespace and name."""

Versions = tuple[str, str | None, frozenset[tuple[Key, str]]]


class LiveObjects:
    """What this process saw last of the objects of all services; threads do not share it."""

    def __init__(self) -> None:
        self.at: float | None = None
        self.objects: dict[Key, Manifest] = {}
        self.services: dict[str, KeptService] = {}
        self.looked: set[str] = set()
        """The services that were looked at since."""

        self.right: dict[str, Versions] = {}
        """By service: the versions of its objects at which nothing of it was to be put right."""

        self.alike: dict[Key, tuple[str, Manifest]] = {}
        """The versions of objects that look different from what is wanted, and are as that was applied: the cluster
        writes a quantity in its own way, say."""

        self.missed: dict[str, set[Key]] = {}
        """By service: what its pods mount, that is not there and cannot be made again; told already."""

        self._versions: dict[tuple[str, str], dict[Key, str]] = {}

    def refresh(self, followed: Followed, kinds: Iterable[str], services: Iterable[KeptService], now: float) -> None:
        self.objects = {key_of(one): one for kind in kinds for one in _found(followed, kind)}
        self.services = {one.state.name: one for one in services}
        self.alike = {key: seen for key, seen in self.alike.items() if key in self.objects}
        self.right = {name: versions for name, versions in self.right.items() if name in self.services}
        self._versions = {}
        for key, one in self.objects.items():
            service = one["metadata"]["namespace"], one["metadata"]["labels"][SERVICE]
            self._versions.setdefault(service, {})[key] = version_of(one)
        self.at, self.looked = now, set()

    def versions(self, stored: KeptService) -> Versions:
        """Return what changes with what is wanted of a service, and with its objects."""
        backup = self.services.get(stored.answered_by or "")
        own = self._versions.get(stored.key, {})
        return stored.version, None if backup is None else backup.version, frozenset(own.items())


def settings_of(settings: KubernetesSettings) -> dict[str, Any]:
    """Return the settings that a service's objects follow from."""
    return {"serving": settings.serving, "gateway": settings.gateway, "domain": settings.gateway_domain}


def key_of(manifest: Manifest) -> Key:
    return manifest["kind"], manifest["metadata"]["namespace"], manifest["metadata"]["name"]


def suspicious(manifest: Manifest, live: Mapping[Key, Manifest], alike: Mapping[Key, tuple[str, Manifest]]) -> bool:
    """Say whether an object may not be as it was applied. Pure."""
    key = key_of(manifest)
    found = live.get(key)
    if found is None:
        return True
    return alike.get(key) != (version_of(found), manifest) and bool(missing_fields(found, manifest))


def comparable(own: Mapping[str, str], applied: Mapping[str, str], live: Collection[str]) -> set[str]:
    """Return which of a service's objects are held against what this version of scanflow would make of them: those that
    it would write as they were applied, and of the others, whose pods are not to be replaced by an upgrade, those that
    are gone. Pure.

    Args:
        own: What tells each object, as this version would write it, from others.
        applied: The same of the objects as they were applied last.
        live: The objects that are there.
    """
    return {one for one, digest in own.items() if one in applied and (applied[one] == digest or one not in live)}


def version_of(found: Manifest) -> str:
    """Return what changes with what is wanted of an object and with its labels; where the server counts that, with
    nothing else."""
    metadata = found["metadata"]
    if (generation := metadata.get("generation")) is None:
        return str(metadata["resourceVersion"])
    return f"{generation} {sorted(metadata.get('labels', {}).items())}"


def mending_text(manifest: Manifest, fields: Iterable[FieldChange], why: str) -> str:
    """Return what somebody did to an object, and what became of it."""
    kind, namespace, name = key_of(manifest)
    changed = [str(one) for one in fields]
    if not changed:
        return made_again(manifest)
    who = re.search(r'conflict with "([^"]+)"', why)
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    by = f" ({who[1]})" if who else ""
    return f"somebody{by} changed the {kind} {namespace}/{name}: put back {'; '.join(changed[:_SHOWN])}{more}"


class Drift:
    """For one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        settings: KubernetesSettings,
        store: ServiceStore,
        rollout: Rollout,
        switch: Switch,
        seen: LiveObjects,
        followed: Followed,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._settings, self._store, self._followed = cluster, settings, store, followed
        self._rollout, self._switch, self._seen, self._clock = rollout, switch, seen, clock

    def mend(self, name: str, *, ready: bool = True) -> Iterator[str]:
        """Put a service's objects right, and yield what was not, each as a sentence. Most calls look at nothing.

        What its pods mount is missed by those only that are to start: it is looked at while a service is not ``ready``.
        """
        seen, now = self._seen, self._clock()
        if seen.at is None or now - seen.at >= LOOK_S:
            seen.refresh(self._followed, self._kinds(), self._store.all(), now)
        if name in seen.looked:
            return
        seen.looked.add(name)
        stored = seen.services.get(name)
        if stored is None or not self._is_steady(stored):
            return
        if ready:
            seen.missed.pop(name, None)
        else:
            yield from self._mounted(stored)
        if seen.right.get(name) == (versions := seen.versions(stored)):
            return
        told = 0
        try:
            for told, text in enumerate(self._mended(stored), 1):  # noqa: B007  how many
                yield text
        except ConflictError:
            return  # an object changed since it was read, its status maybe: all are held against it at the next look
        if not told:
            seen.right[name] = versions

    def _mended(self, stored: KeptService) -> Iterator[str]:
        definition = stored.state.definition
        other = self._seen.services.get(stored.answered_by or "")
        makes, leads = self._rollout.manifests(definition), self._switch.manifests(definition)
        live = {kind_and_name(one) for one in (*makes, *leads) if key_of(one) in self._seen.objects}
        own = comparable(rendered([*makes, *leads]), stored.rendered, live)
        if other is not None:
            leads = self._switch.manifests(definition, backup=other.state.definition)
        for manifest in [*makes, *leads]:
            if (
                kind_and_name(manifest) in own
                and suspicious(manifest, self._seen.objects, self._seen.alike)
                and (text := self._put_right(stored, manifest))
            ):
                yield text
        for target, count in self._rollout.counts(stored.state.definition):
            if text := self._put_count_right(stored, target, count):
                yield text

    def _mounted(self, stored: KeptService) -> Iterator[str]:
        missed = self._seen.missed.setdefault(stored.state.name, set())
        for kind, name in mounted_of(stored.state.definition):
            key = kind, stored.namespace, name
            if self._cluster.get(kind, name, stored.namespace) is not None:
                missed.discard(key)
            elif (made := mounted_again(stored.state.definition, kind)) is not None and self._make_again(stored, made):
                yield made_again(made)
            elif made is None and key not in missed:
                missed.add(key)
                yield (
                    f"somebody deleted the {kind} {stored.namespace}/{name}, which the pods of {stored.state.name!r} "
                    "mount, and what was in it is not here. Deploy it again from where it is: scanflow deploy"
                )

    def _is_steady(self, stored: KeptService) -> bool:
        """Say whether nobody changes a service, and it was deployed with these settings."""
        state = stored.state
        return not state.deleted and state.in_effect and _made_with(state.definition) == settings_of(self._settings)

    def _put_right(self, stored: KeptService, manifest: Manifest) -> str | None:
        kind, namespace, name = key_of(manifest)
        before = self._cluster.get(kind, name, namespace)
        if before is None:
            return made_again(manifest) if self._make_again(stored, manifest) else None
        found = difference(self._cluster, manifest)
        if not found.fields and found.change in {"none", "conflict"}:  # somebody wrote it this moment, and alike
            self._seen.alike[key_of(manifest)] = version_of(before), manifest
            return None
        if not self._store.is_as_it_was(stored):
            return None
        version = {"resourceVersion": before["metadata"]["resourceVersion"]}
        self._cluster.apply({**manifest, "metadata": {**manifest["metadata"], **version}}, force=True)
        return mending_text(manifest, found.fields, found.why)

    def _make_again(self, stored: KeptService, manifest: Manifest) -> bool:
        """Make an object that is not there, unless something else is wanted by now; say whether it was made."""
        if not self._store.is_as_it_was(stored):
            return False
        self._cluster.apply(manifest, force=True)
        if (now := self._store.find(stored.state.name)) is None or now.state.deleted:
            kind, namespace, name = key_of(manifest)
            self._cluster.delete(kind, name, namespace)  # whoever deletes all of them may have looked before
            return False
        return True

    def _put_count_right(self, stored: KeptService, target: ScalingTarget, count: int) -> str | None:
        key = (target.kind, stored.namespace, target.name)
        if key not in self._seen.objects or self._seen.objects[key]["spec"].get("replicas", 1) == count:
            return None
        found = self._cluster.get(target.kind, target.name, stored.namespace)
        if found is None or found["spec"].get("replicas", 1) == count or not self._store.is_as_it_was(stored):
            return None
        version = {"resourceVersion": found["metadata"]["resourceVersion"]}
        change = {"metadata": version, "spec": {"replicas": count}}
        self._cluster.patch(target.kind, target.name, stored.namespace, change)
        changed = FieldChange(".spec.replicas", found["spec"].get("replicas", 1), count)
        return f"somebody changed the {target.kind} {stored.namespace}/{target.name}: put back {changed}"

    def _kinds(self) -> set[str]:
        gateway = set() if self._settings.gateway is None else {"HTTPRoute", "GRPCRoute", "TraefikService"}
        return {"ConfigMap", "Service", "Deployment", *SCALERS, ENGINES[self._settings.serving].kind, *gateway}


def _found(followed: Followed, kind: str) -> list[Manifest]:
    try:
        return followed.find(kind, f"{SERVICE},!{STATE}")
    except UnsupportedError:
        return []  # nothing of that kind is wanted where the cluster does not know it


def _made_with(definition: ServiceSpec) -> Any:
    return definition.details.get(MADE_WITH)
