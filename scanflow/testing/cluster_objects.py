"""The objects of a cluster in memory, and the events of their changes. Pure."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import NamedTuple

from scanflow.backends.kubernetes.cluster import WatchEvent
from scanflow.backends.kubernetes.kinds import KINDS, Manifest
from scanflow.errors import InvalidError
from scanflow.testing import selectors

Key = tuple[str, str, str]
"""Kind, namespace (empty for a kind without one) and name."""


class VersionedChange(NamedTuple):
    version: int
    kind: str
    before: Manifest | None
    after: Manifest | None


def copy_object(manifest: Manifest, *, metadata_only: bool) -> Manifest:
    own = ("apiVersion", "kind", "metadata")
    return copy.deepcopy({name: value for name, value in manifest.items() if name in own or not metadata_only})


def build_key(manifest: Manifest) -> Key:
    kind, metadata = manifest["kind"], manifest["metadata"]
    namespaced = KINDS[kind].namespaced
    if manifest["apiVersion"] != KINDS[kind].api_version:
        raise InvalidError(f"The {kind} has the apiVersion {manifest['apiVersion']!r}, not {KINDS[kind].api_version!r}")
    if namespaced and not metadata.get("namespace"):
        raise InvalidError(f"The {kind} {metadata['name']!r} names no namespace")
    return kind, metadata["namespace"] if namespaced else "", metadata["name"]


def format_resource(kind: str) -> str:
    """Format a kind as in messages: ``pods``, ``workflows.argoproj.io``."""
    group, slash, _ = KINDS[kind].api_version.partition("/")
    return f"{KINDS[kind].plural}.{group}" if slash else KINDS[kind].plural


def build_bare(manifest: Manifest) -> Manifest:
    names = {name: manifest["metadata"][name] for name in ("name", "namespace") if name in manifest["metadata"]}
    return {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"], "metadata": names}


def get_content(manifest: Manifest) -> Manifest:
    return {name: value for name, value in manifest.items() if name not in {"metadata", "status"}}


def build_event(
    change: VersionedChange, kind: str, namespace: str | None, labels: str, fields: str
) -> WatchEvent | None:
    """Build the watch event of a change: an object that is no longer selected is deleted for the watch."""
    manifest = change.after or change.before
    if change.kind != kind or manifest is None or namespace not in {None, manifest["metadata"].get("namespace")}:
        return None
    was = change.before is not None and selectors.selects(change.before, labels, fields)
    now = change.after is not None and selectors.selects(change.after, labels, fields)
    if not was and not now:
        return None
    sent = copy.deepcopy(manifest)
    sent["metadata"]["resourceVersion"] = str(change.version)
    return WatchEvent("DELETED" if not now else "MODIFIED" if was else "ADDED", sent)


def format_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
