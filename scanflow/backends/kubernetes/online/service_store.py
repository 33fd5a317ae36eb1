"""Store the services of a cluster, each in a ConfigMap of its application's namespace. Any process may read and change
them, with optimistic concurrency: a conflicting change is retried."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from scanflow.backends.kubernetes.api_errors import ConflictError
from scanflow.backends.kubernetes.cluster import Cluster, retry_on_conflict
from scanflow.backends.kubernetes.kinds import Manifest, build_manifest
from scanflow.backends.kubernetes.list_cache import ListCache
from scanflow.backends.kubernetes.object_labels import SERVICE, build_labels
from scanflow.backends.kubernetes.online.instance_pods import NAMESPACE, get_namespace
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_spec import ServiceSpec
from scanflow.errors import InternalError, NotFoundError, did_you_mean

STATE: Final = "scanflow.dev/state"
"""A label of the ConfigMap with a service's state; its value is ``service``."""

_SERVICES: Final = f"{STATE}=service"
_DOCUMENT: Final = "service.json"

RENDERED_ANNOTATION: Final = "scanflow.dev/rendered"
"""An annotation of a service's ConfigMap: the hashes of its manifests as last applied, by kind and name."""

ACTIVE_BACKUP_ANNOTATION: Final = "scanflow.dev/active-backup"
"""An annotation of a service's ConfigMap: the backup that serves its requests, while one does."""

_FORMER_ACTIVE_BACKUP: Final = "scanflow.dev/answers"
"""What an earlier version called the same."""


class ServiceConfigMap(NamedTuple):
    """A service, and the ConfigMap that stores it."""

    state: DesiredState
    namespace: str
    object: str
    version: str
    annotations: Mapping[str, str] = {}
    """The ConfigMap's."""

    @property
    def key(self) -> tuple[str, str]:
        """Its namespace and name."""
        return self.namespace, self.state.name

    @property
    def applied_hashes(self) -> Mapping[str, str]:
        """The hashes of its manifests as last applied, by kind and name."""
        hashes: dict[str, str] = json.loads(self.annotations.get(RENDERED_ANNOTATION, "{}"))
        return hashes

    @property
    def active_backup(self) -> str | None:
        """The backup, while it serves requests."""
        return self.annotations.get(ACTIVE_BACKUP_ANNOTATION, self.annotations.get(_FORMER_ACTIVE_BACKUP))


class ServiceStore:
    """The services of one cluster, or of one namespace."""

    def __init__(self, cluster: Cluster, list_cache: ListCache | None = None, namespace: str | None = None) -> None:
        self._cluster, self._namespace = cluster, namespace
        self._list_cache = list_cache or ListCache(lambda: cluster, namespace=namespace)

    def list_services(self) -> list[ServiceConfigMap]:
        """Return all services, sorted by name."""
        services = self._list_cache.read("ConfigMap", _SERVICES, _parse_service)
        return sorted(services, key=lambda service: service.state.name)

    def find(self, name: str, namespace: str | None = None) -> ServiceConfigMap | None:
        """Return a service; None: there is none. Without a ``namespace`` it is looked for in all that are used."""
        namespace = namespace or self._namespace
        if namespace is None:
            manifests, _ = self._cluster.find("ConfigMap", labels=f"{_SERVICES},{SERVICE}={name}")
            return _parse_service(manifests[0]) if manifests else None
        manifest = self._cluster.get("ConfigMap", format_state_name(name), namespace)
        is_service = manifest is not None and manifest["metadata"].get("labels", {}).get(STATE) == "service"
        return _parse_service(manifest) if manifest is not None and is_service else None

    def get(self, name: str, namespace: str | None = None) -> ServiceConfigMap:
        """Return a service.

        Raises:
            NotFoundError: there is no service of that name.
        """
        service = self.find(name, namespace)
        if service is None:
            names = [other.state.name for other in self.list_services()]
            hint = did_you_mean(name, names) if names else " None exists yet. Start one: scanflow deploy app.py"
            raise NotFoundError(f"There is no service {name!r}.{hint}")
        return service

    def change(
        self, name: str, update: Callable[[DesiredState | None], DesiredState | None], namespace: str | None = None
    ) -> DesiredState | None:
        """Replace the state of a service by the result of ``update``, unless that is None; return the new state.

        ``namespace``: that of the service, as read before; None: it may be new.
        """

        def attempt() -> DesiredState | None:
            current = self.find(name, namespace)
            if current is None and namespace is not None:  # its name may be that of another application's by now
                current = self.find(name)
            before = None if current is None else current.state
            after = update(before)
            if after is None or after == before:
                return before
            try:
                self._write(current, after)
            except NotFoundError as gone:
                if current is None:
                    raise  # its namespace does not exist
                raise ConflictError(f"The service {name!r} was deleted a moment ago.") from gone
            return after

        return retry_on_conflict(f"The service {name!r}", attempt)

    def note_active_backup(self, stored: ServiceConfigMap, backup: str | None) -> ServiceConfigMap:
        """Note which backup serves a service's requests; None: none does. See :meth:`annotate`."""
        return self._annotate(stored, {ACTIVE_BACKUP_ANNOTATION: backup, _FORMER_ACTIVE_BACKUP: None})

    def annotate(self, stored: ServiceConfigMap, **annotations: str | None) -> ServiceConfigMap:
        """Set annotations of a service's ConfigMap, or remove them (None); return the updated service.

        Keywords are their names without ``scanflow.dev/``.

        Raises:
            ConflictError: it was changed since it was read.
        """
        return self._annotate(stored, {f"scanflow.dev/{name}": text for name, text in annotations.items()})

    def _annotate(self, stored: ServiceConfigMap, annotations: Mapping[str, str | None]) -> ServiceConfigMap:
        change = {"metadata": {"resourceVersion": stored.version, "annotations": annotations}}
        service = _parse_service(self._cluster.patch("ConfigMap", stored.object, stored.namespace, change))
        self._list_cache.renew("ConfigMap", _SERVICES)
        return service

    def is_unchanged(self, stored: ServiceConfigMap) -> bool:
        """Return whether the desired state of a service and its active backup are as they were read."""
        current = self.find(stored.state.name, stored.namespace)
        return current is not None and current.state == stored.state and current.active_backup == stored.active_backup

    def remove(self, stored: ServiceConfigMap) -> None:
        """Remove the ConfigMap of a service.

        Raises:
            ConflictError: it was changed since it was read.
        """
        self._cluster.delete("ConfigMap", stored.object, stored.namespace, version=stored.version)
        self._list_cache.renew("ConfigMap", _SERVICES)

    def _write(self, current: ServiceConfigMap | None, desired: DesiredState) -> None:
        manifest = build_state_map(desired)
        if current is None:
            self._cluster.create(manifest)
        else:
            patch = {"metadata": {"resourceVersion": current.version}, "data": manifest["data"]}
            self._cluster.patch("ConfigMap", current.object, current.namespace, patch)
        self._list_cache.renew("ConfigMap", _SERVICES)


def format_state_name(service: str) -> str:
    """Return the name of the ConfigMap with a service's state."""
    return f"service-{service}"


def build_state_map(state: DesiredState) -> Manifest:
    """Return the ConfigMap with a service's state."""
    definition = state.definition
    labels = build_labels(definition.app, definition.team, service=definition.workflow)
    return build_manifest(
        "ConfigMap",
        {
            "name": format_state_name(state.name),
            "namespace": get_namespace(definition),
            "labels": {**labels, STATE: "service"},
        },
        data={_DOCUMENT: state.model_dump_json()},
    )


def restore_aliases(spec: ServiceSpec, services: Iterable[ServiceConfigMap]) -> ServiceSpec:
    """Return the spec with the names of the services that use it as their backup. Pure."""
    own = (service.state for service in services if service.namespace == get_namespace(spec))
    names = [state.name for state in own if state.definition.serving.backup == spec.workflow]
    return spec.with_changes(aliases=tuple(dict.fromkeys([*spec.aliases, *names])))


def _parse_service(manifest: Manifest) -> ServiceConfigMap:
    metadata = manifest["metadata"]
    try:
        state = DesiredState.model_validate_json(manifest.get("data", {})[_DOCUMENT])
    except (LookupError, ValueError) as error:
        raise InternalError(
            f"The ConfigMap {metadata['namespace']}/{metadata['name']} does not hold a valid service record: {error}"
        ) from error
    return ServiceConfigMap(
        _set_namespace(state, metadata["namespace"]),
        metadata["namespace"],
        metadata["name"],
        metadata["resourceVersion"],
        metadata.get("annotations", {}),
    )


def _set_namespace(state: DesiredState, namespace: str) -> DesiredState:
    """Return a state whose specs are in that namespace, which those of earlier versions do not name."""
    specs = {name: getattr(state, name) for name in ("definition", "fallback", "previous", "previous_if_settled")}
    return state.model_copy(
        update={
            name: spec.model_copy(update={"details": {**spec.details, NAMESPACE: namespace}})
            for name, spec in specs.items()
            if spec is not None
        }
    )
