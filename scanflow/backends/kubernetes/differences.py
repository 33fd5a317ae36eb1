"""Compute what applying manifests would change in a cluster, by a server-side dry-run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from scanflow.backends.environments import FieldChange, ObjectChange
from scanflow.backends.kubernetes.api_errors import ConflictError
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.errors import NotFoundError, UsageError

_SERVERS: Final = {"creationTimestamp", "generation", "managedFields", "resourceVersion", "uid", "deletionTimestamp"}
_MAX_CONCURRENT: Final = 8
_NEVER_SHOWN: Final = "..."
_VARIABLES: Final = ".env["
"""In paths of containers' environment variables, whose values may be secrets."""


def compute_differences(cluster: Cluster, manifests: Iterable[Manifest]) -> list[ObjectChange]:
    """Return what applying manifests would change, in their order; several requests run at a time."""
    with ThreadPoolExecutor(_MAX_CONCURRENT) as pool:
        return list(pool.map(lambda manifest: compute_difference(cluster, manifest), manifests))


def compute_difference(cluster: Cluster, manifest: Manifest) -> ObjectChange:
    """Return what applying a manifest would change.

    An object whose namespace does not exist yet is reported as new, and not validated by the API server.
    """
    kind, metadata = manifest["kind"], manifest["metadata"]
    name, namespace = metadata["name"], metadata.get("namespace")
    try:
        before = cluster.get(kind, name, namespace)
        after, conflict = _apply_dry_run(cluster, manifest)
    except NotFoundError:
        return ObjectChange(kind, name, namespace, "create", why="its namespace does not exist yet")
    except UsageError as error:
        return ObjectChange(kind, name, namespace, "refused", why=str(error))
    if before is None:
        return ObjectChange(kind, name, namespace, "create")
    changes = tuple(list_changed_fields(before, after, secret=kind == "Secret"))
    if conflict:
        return ObjectChange(kind, name, namespace, "conflict", changes, conflict)
    return ObjectChange(kind, name, namespace, "change" if changes else "none", changes)


def format_recreation(manifest: Manifest) -> str:
    """Return the message about an object that was recreated."""
    metadata = manifest["metadata"]
    return f"recreated the {manifest['kind']} {metadata['namespace']}/{metadata['name']}, which another client deleted"


def list_changed_fields(before: Manifest, after: Manifest, *, secret: bool = False) -> Iterator[FieldChange]:
    """Yield the fields that differ between two states of an object, except those that the server sets."""
    old, new = dict(_iterate_leaves(_strip_server_fields(before))), dict(_iterate_leaves(_strip_server_fields(after)))
    for path in sorted(old.keys() | new.keys()):
        if old.get(path) != new.get(path):
            hidden = (secret and path.startswith((".data", ".stringData"))) or _VARIABLES in path
            yield FieldChange(path, *(_hide(hidden, side.get(path)) for side in (old, new)))


def list_missing_fields(live: Manifest, manifest: Manifest) -> list[FieldChange]:
    """Return the fields of a manifest that a live object lacks or has with other values."""
    return list(list_changed_fields(live, _merge(live, manifest)))


def _apply_dry_run(cluster: Cluster, manifest: Manifest) -> tuple[Manifest, str]:
    try:
        return cluster.apply(manifest, dry_run=True), ""
    except ConflictError as error:
        return cluster.apply(manifest, dry_run=True, force=True), str(error)


def _merge(live: Any, wanted: Any) -> Any:
    """Return ``live`` with the fields of ``wanted``; items of lists are merged by position."""
    if isinstance(live, dict) and isinstance(wanted, dict):
        return {**live, **{name: _merge(live.get(name), value) for name, value in wanted.items()}}
    if isinstance(live, list) and isinstance(wanted, list) and len(live) == len(wanted):
        return [_merge(live_item, wanted_item) for live_item, wanted_item in zip(live, wanted, strict=True)]
    return wanted


def _strip_server_fields(manifest: Manifest) -> Manifest:
    metadata = {name: value for name, value in manifest["metadata"].items() if name not in _SERVERS}
    return {**{name: value for name, value in manifest.items() if name != "status"}, "metadata": metadata}


def _iterate_leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _iterate_leaves(inner, f"{path}.{name}" if "." not in name else f"{path}[{name!r}]")
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            label = inner["name"] if isinstance(inner, dict) and isinstance(inner.get("name"), str) else number
            yield from _iterate_leaves(inner, f"{path}[{label}]")
    else:
        yield path, value


def _hide(hidden: bool, value: Any) -> Any:
    return _NEVER_SHOWN if hidden and value is not None else value
