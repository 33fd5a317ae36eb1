"""Field ownership as in the API server's server-side apply, as far as the test double needs it."""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from scanflow.backends.kubernetes.kinds import Manifest

_KEYS: Final = {
    "containers": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists whose items are merged by a key. All others are set as a whole, as those of custom resources are."""

_UNOWNED: Final = {
    ("apiVersion",),
    ("kind",),
    *(
        ("metadata", name)
        for name in (
            "creationTimestamp deletionTimestamp generation managedFields name namespace resourceVersion uid".split()
        )
    ),
}
"""Fields that identify an object, and fields that the server sets."""

_SERVED: Final = {"resourceVersion", "generation", "managedFields", "uid", "creationTimestamp"}
"""Fields that a request does not set, even if it contains them."""


class Element(NamedTuple):
    """A step of a path: the item of a list whose ``key`` has that value."""

    key: str
    value: str


Path: TypeAlias = tuple["str | Element", ...]


class Manager(NamedTuple):
    """A field manager: each name has two, one for its applies and one for its other writes."""

    name: str
    operation: str


Owners: TypeAlias = dict[Path, set[Manager]]


def prepare(manifest: Manifest) -> Manifest:
    """Return an object as it is stored: without the fields that only requests have."""
    stored = copy.deepcopy(manifest)
    stored["metadata"] = {name: value for name, value in stored["metadata"].items() if name not in _SERVED}
    if stored["kind"] == "Secret":
        plain = stored.pop("stringData", {})
        coded = {name: base64.b64encode(text.encode()).decode() for name, text in plain.items()}
        if coded:
            stored["data"] = {**stored.get("data", {}), **coded}
    return stored


class Conflict(NamedTuple):
    """A field that another manager has set to something else."""

    manager: Manager
    path: Path

    def __str__(self) -> str:
        return f'conflict with "{self.manager.name}": {format_path(self.path)}'


def iterate_leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield each field that can be owned, with its value."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            if (*path, name) not in _UNOWNED:
                yield from iterate_leaves(inner, (*path, name))
    elif isinstance(value, list) and value and (key := _find_merge_key(path)):
        for item in value:
            yield from iterate_leaves(item, (*path, Element(key, str(item[key]))))
    elif path:
        yield path, value


def apply(
    live: Manifest, owners: Owners, manifest: Manifest, manager: Manager, *, force: bool
) -> tuple[Manifest, Owners, list[Conflict]]:
    """Return the object and its fields' owners after an apply, and the conflicts for which it is refused."""
    before, applied = dict(iterate_leaves(live)), dict(iterate_leaves(manifest))
    conflicts = [
        Conflict(other, path)
        for path, value in applied.items()
        if path in before and before[path] != value
        for other in sorted(owners.get(path, set()) - {manager})
    ]
    after, new_owners = copy.deepcopy(live), {path: set(names) for path, names in owners.items()}
    for path in [path for path, names in owners.items() if manager in names and path not in applied]:
        new_owners[path].discard(manager)
        if not new_owners[path]:
            del new_owners[path]
            _remove(after, path)
    for path, value in applied.items():
        if path not in before or before[path] != value:
            _set(after, path, copy.deepcopy(value))
            new_owners[path] = {manager}
        else:
            new_owners.setdefault(path, set()).add(manager)
    return after, new_owners, [] if force else conflicts


def compute_owners(before: Manifest, after: Manifest, owners: Owners, manager: Manager) -> Owners:
    """Return the fields' owners after a write that is not an apply: the client that changed a field is its only
    owner."""
    old, new = dict(iterate_leaves(before)), dict(iterate_leaves(after))
    return {
        path: {manager} if path not in old or old[path] != value else set(owners.get(path, set()))
        for path, value in new.items()
    }


def merge(value: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396) to a value."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    merged = dict(value) if isinstance(value, dict) else {}
    for name, inner in patch.items():
        if inner is None:
            merged.pop(name, None)
        else:
            merged[name] = merge(merged.get(name), inner)
    return merged


def list_managed_fields(owners: Owners, api_version: str) -> list[Manifest]:
    """Return the owners as ``metadata.managedFields`` has them."""
    managers = sorted({manager for names in owners.values() for manager in names})
    return [
        {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": _build_tree([path for path, names in owners.items() if manager in names]),
        }
        for manager in managers
    ]


def format_path(path: Path) -> str:
    """Format a path as the API server does: ``.spec.containers[name="main"].image``."""
    return "".join(f'[{step.key}="{step.value}"]' if isinstance(step, Element) else f".{step}" for step in path)


def _build_tree(paths: list[Path]) -> Manifest:
    tree: Manifest = {}
    for path in paths:
        inner = tree
        for step in path:
            name = f'k:{{"{step.key}":"{step.value}"}}' if isinstance(step, Element) else f"f:{step}"
            inner = inner.setdefault(name, {})
    return tree


def _find_merge_key(path: Path) -> str | None:
    last = path[-1] if path else None
    return _KEYS.get(last) if isinstance(last, str) and "spec" in path else None


def _set(value: Any, path: Path, to: Any) -> None:
    first, rest = path[0], path[1:]
    if isinstance(first, Element):
        element = next((item for item in value if str(item[first.key]) == first.value), None)
        if element is None:
            element = {first.key: first.value}
            value.append(element)
        if rest:
            _set(element, rest, to)
    elif not rest:
        value[first] = to
    else:
        inner = value.get(first)
        if not isinstance(inner, dict | list) or not inner:
            inner = value[first] = [] if isinstance(rest[0], Element) else {}
        _set(inner, rest, to)


def _remove(value: Any, path: Path) -> None:
    """Remove a field, and its parents that held nothing else."""
    first, rest = path[0], path[1:]
    if isinstance(first, Element):
        for item in [item for item in value if str(item.get(first.key)) == first.value]:
            if rest and rest != (first.key,):
                _remove(item, rest)
            if not set(item) - {first.key}:
                value.remove(item)
    elif first in value:
        if rest:
            _remove(value[first], rest)
        if not rest or not value[first]:
            del value[first]
