"""A cluster in memory, for tests of code that uses a :class:`~scanflow.backends.kubernetes.cluster.Cluster`.

It keeps objects as an API server does (server-side apply, versions, watches, selectors, finalizers, owners) and runs
nothing: what controllers would do, a test plays.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import count
from typing import Any, Literal, NamedTuple, NoReturn

from scanflow.backends.kubernetes.api_errors import ConflictError, ExpiredError, build_missing_kind_error
from scanflow.backends.kubernetes.cluster import Cluster, WatchEvent
from scanflow.backends.kubernetes.kinds import KINDS, Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import MANAGER
from scanflow.backends.kubernetes.request_body import encode_body
from scanflow.errors import AccessDeniedError, NotFoundError, ScanflowError, UnavailableError
from scanflow.testing import selectors, server_side_apply
from scanflow.testing.cluster_objects import (
    Key,
    VersionedChange,
    build_bare,
    build_event,
    build_key,
    copy_object,
    format_now,
    format_resource,
    get_content,
)
from scanflow.testing.namespace_rights import NamespaceRights, review_access
from scanflow.testing.server_side_apply import Manager, Owners

__all__ = ["ApiCall", "MemoryCluster"]

Verb = Literal["apply", "create", "get", "find", "patch", "delete", "watch"]
Refusal = Callable[[Verb, str, Manifest], ScanflowError | None]
"""Takes the verb, the kind and the object (or what is known of it); returns the error of the request."""

Player = Callable[["MemoryCluster", Manifest], object]
"""Acts as a controller on an object that was created or changed."""


class ApiCall(NamedTuple):
    """A recorded call of the cluster."""

    verb: Verb
    """The method that was called."""

    kind: str
    """The kind of the object."""

    namespace: str | None
    """The namespace of the object. None: it has none."""

    name: str | None
    """The name of the object. None: all."""


class MemoryCluster(Cluster):
    """The test double. It is thread-safe.

    Args:
        unknown: Kinds that it does not have, as one where an engine is missing.
        namespaces: What there is at the start.
    """

    def __init__(self, *, unknown: tuple[str, ...] = (), namespaces: tuple[str, ...] = ("default",)) -> None:
        super().__init__(KubernetesSettings())
        self.unknown = set(unknown)
        self.calls: list[ApiCall] = []
        """All calls, oldest first."""

        self.down = False
        """Whether the API server does not answer."""

        self.denied: set[tuple[str, str]] = set()
        """The requests that a SelfSubjectAccessReview denies: verb and plural, as ``("create", "workflows")``."""

        self.rights: NamespaceRights | None = None
        """The rights of the caller, which tests and players are not held to; None: all."""

        self._acting = False
        self.logs: dict[tuple[str, str], bytes] = {}
        """The log of each pod, by namespace and pod."""

        self._stamps: dict[tuple[str, str], list[str]] = {}
        self.executed: dict[tuple[str, str], str | Callable[[list[str]], str]] = {}
        """The output of commands in each pod, by namespace and pod."""

        self.documents: dict[str, str] = {"/version": '{"major": "1", "minor": "34", "gitVersion": "v1.34.4"}'}
        """The documents that the API server returns, by path."""

        self._refusals: list[Refusal] = []
        self._players: dict[str, list[Player]] = {}
        self._objects: dict[Key, Manifest] = {}
        self._owners: dict[Key, Owners] = {}
        self._history: list[VersionedChange] = []
        self._numbers, self._uids, self._oldest = count(1), count(1), 0
        self._version = 0
        self._changed = threading.Condition(threading.RLock())
        for name in namespaces:
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.calls.clear()

    # What a test says

    def refuse(self, refusal: Refusal) -> None:
        """Add a refusal that is checked before each call: it simulates a quota, a webhook or missing rights."""
        self._refusals.append(refusal)

    def play(self, kind: str, player: Player) -> None:
        """Register a controller that is called after each change of an object of that kind, except its own changes."""
        self._players.setdefault(kind, []).append(player)

    def stop_playing(self, *kinds: str) -> None:
        """Unregister the controllers of some kinds, or of all: objects stay as they are."""
        for kind in kinds or list(self._players):
            self._players.pop(kind, None)

    def edit(
        self, kind: str, name: str, namespace: str | None, patch: Any, *, manager: str = "kubectl-edit"
    ) -> Manifest:
        """Change an object as another client would: a person, a controller."""
        with self._changed, self._act():
            return self._merge(kind, name, namespace, patch, Manager(manager, "Update"))

    def forget(self) -> None:
        """Expire the history: watches from earlier versions are refused as too old."""
        with self._changed:
            self._oldest = self._version
            self._history.clear()

    def event(self, about: Manifest, reason: str, message: str, *, type: str = "Warning") -> None:
        """Create an event about an object, as the scheduler and the kubelets do."""
        metadata = about["metadata"]
        self.create(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
                "involvedObject": {
                    "kind": about["kind"],
                    "name": metadata["name"],
                    "namespace": metadata["namespace"],
                    "uid": metadata["uid"],
                },
                "reason": reason,
                "message": message,
                "type": type,
                "count": 1,
                "lastTimestamp": format_now(),
            }
        )

    # What a cluster does

    def apply(self, manifest: Manifest, *, force: bool = False, dry_run: bool = False) -> Manifest:
        key = build_key(manifest)
        with self._changed:
            self._record_call("apply", manifest["kind"], key[1] or None, key[2], manifest)
            live = self._objects.get(key)
            if live is None:
                self._check_namespace(key)
            else:
                self._check_version(manifest, live)
            after, owners, conflicts = server_side_apply.apply(
                live or build_bare(manifest),
                self._owners.get(key, {}),
                server_side_apply.prepare(manifest),
                Manager(MANAGER, "Apply"),
                force=force,
            )
            if conflicts:
                listed = ", ".join(str(conflict) for conflict in conflicts)
                plural = "s" if len(conflicts) > 1 else ""
                raise ConflictError(f"Apply failed with {len(conflicts)} conflict{plural}: {listed}")
            return self._store(key, after, owners, dry_run=dry_run)

    def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        if "name" not in manifest["metadata"]:
            name = f"{manifest['metadata'].get('generateName', '')}{next(self._numbers):05x}"
            manifest = {**manifest, "metadata": {**manifest["metadata"], "name": name}}
        key = build_key(manifest)
        with self._changed:
            self._record_call("create", manifest["kind"], key[1] or None, key[2], manifest)
            if manifest["kind"] in {"SelfSubjectAccessReview", "SelfSubjectReview"}:
                return review_access(manifest, self.rights, self.denied)
            if key in self._objects:
                raise ConflictError(f'{format_resource(key[0])} "{key[2]}" already exists')
            self._check_namespace(key)
            sent = server_side_apply.prepare(manifest)
            owners = server_side_apply.compute_owners({}, sent, {}, Manager(MANAGER, "Update"))
            return self._store(key, {**build_bare(sent), **sent}, owners, dry_run=dry_run)

    def get(
        self, kind: str, name: str, namespace: str | None = None, *, metadata_only: bool = False
    ) -> Manifest | None:
        with self._changed:
            self._record_call("get", kind, namespace, name, {})
            manifest = self._objects.get((kind, namespace or "", name))
            return None if manifest is None else copy_object(manifest, metadata_only=metadata_only)

    def find(
        self,
        kind: str,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        metadata_only: bool = False,
    ) -> tuple[list[Manifest], str]:
        with self._changed:
            self._record_call("find", kind, namespace, None, {})
            manifests = self._select(kind, namespace, labels, fields)
            return [copy_object(manifest, metadata_only=metadata_only) for manifest in manifests], str(self._version)

    def has_kind(self, kind: str) -> bool:
        return kind not in self.unknown

    def has_any(self, kind: str, *, labels: str) -> bool:
        return bool(self.find(kind, labels=labels)[0])

    def patch(
        self, kind: str, name: str, namespace: str | None, patch: Any, *, subresource: str = "", dry_run: bool = False
    ) -> Manifest:
        return self._merge(
            kind, name, namespace, patch, Manager(MANAGER, "Update"), subresource=subresource, dry_run=dry_run
        )

    def delete(
        self,
        kind: str,
        name: str,
        namespace: str | None = None,
        *,
        grace_s: int | None = None,  # noqa: ARG002
        version: str | None = None,
    ) -> bool:
        with self._changed:
            self._record_call("delete", kind, namespace, name, {})
            key = (kind, namespace or "", name)
            if key not in self._objects:
                return False
            self._check_version(
                {"kind": kind, "metadata": {"name": name, "resourceVersion": version}}, self._objects[key]
            )
            self._delete(key)
            return True

    def watch(
        self,
        kind: str,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        since: str = "",
        within_s: float = 60.0,
        bookmarks: bool = False,  # noqa: ARG002  it keeps all versions, until it is told to forget them
    ) -> Iterator[WatchEvent]:
        until = time.monotonic() + within_s
        with self._changed:
            self._record_call("watch", kind, namespace, None, {})
            seen = int(since) if since else self._version
            if seen < self._oldest:
                raise ExpiredError(f"too old resource version: {seen} ({self._oldest})")
            added = [] if since else self._select(kind, namespace, labels, fields)
        yield from (WatchEvent("ADDED", manifest) for manifest in added)
        while True:
            with self._changed:
                if self.down:
                    self._raise_unavailable()
                if seen < self._oldest:
                    raise ExpiredError(f"too old resource version: {seen} ({self._oldest})")
                new = [change for change in self._history if change.version > seen]
                if not new:
                    if not self._changed.wait(max(0.0, until - time.monotonic())) and time.monotonic() >= until:
                        return
                    continue
            for change in new:
                seen = change.version
                if event := build_event(change, kind, namespace, labels, fields):
                    yield event

    def log(
        self,
        pod: str,
        namespace: str,
        *,
        container: str | None = None,  # noqa: ARG002
        follow: bool = False,  # noqa: ARG002
        since: str | None = None,  # noqa: ARG002
        timestamps: bool = False,
        previous: bool = False,  # noqa: ARG002
        within_s: float = 60.0,  # noqa: ARG002
    ) -> Iterator[bytes]:
        """Yield what the test put into ``logs``; with ``timestamps`` lines start with the time they were first seen."""
        with self._changed:
            self._record_call("get", "Pod", namespace, pod, {})
            self._get_existing(("Pod", namespace, pod))
            lines = self.logs.get((namespace, pod), b"").splitlines(keepends=True)
            stamps = self._stamps.setdefault((namespace, pod), [])
            stamps += [f"{format_now()[:-1]}.{next(self._numbers):09d}Z" for _ in lines[len(stamps) :]]
        for stamp, line in zip(stamps, lines, strict=True):
            yield f"{stamp} ".encode() + line if timestamps else line

    def exec(self, pod: str, namespace: str, command: list[str], *, container: str | None = None) -> str:  # noqa: ARG002
        with self._changed:
            self._record_call("get", "Pod", namespace, pod, {})
        answer = self.executed.get((namespace, pod))
        if answer is None:
            raise UnavailableError(
                f"The command {command[0]!r} could not be run in the pod {namespace}/{pod}: not there"
            )
        return answer if isinstance(answer, str) else answer(command)

    def fetch_text(self, path: str, *, timeout_s: float | None = None) -> str:  # noqa: ARG002  it answers at once
        if self.down:
            self._raise_unavailable()
        if self.rights is not None and not self.rights.allows_path(path):
            raise AccessDeniedError(f"The cluster forbids the request: {path} is forbidden")
        if path not in self.documents:
            raise NotFoundError("the server could not find the requested resource")
        return self.documents[path]

    @property
    def address(self) -> str:
        return "https://memory.invalid"

    def close(self) -> None:
        pass

    # The inside

    @cached_property
    def _config(self) -> Any:
        raise AssertionError("the test double has no cluster to connect to")

    def _raise_unavailable(self) -> NoReturn:
        raise UnavailableError(f"The API server {self.address} does not answer. Is it up? Look: kubectl cluster-info")

    def _record_call(self, verb: Verb, kind: str, namespace: str | None, name: str | None, manifest: Manifest) -> None:
        self.calls.append(ApiCall(verb, kind, namespace, name))
        if self.down:
            self._raise_unavailable()
        encode_body(manifest, what=f"The {kind} {name!r}")
        if kind in self.unknown:
            raise build_missing_kind_error(kind)
        if self.rights is not None and not self._acting and not self.rights.allows(verb, kind, namespace, name):
            where = "at the cluster scope" if namespace is None else f"in the namespace {namespace!r}"
            raise AccessDeniedError(
                f"The cluster forbids the request: {format_resource(kind)} is forbidden: cannot {verb} {where}"
            )
        for refusal in self._refusals:
            if error := refusal(verb, kind, manifest):
                raise error

    @contextmanager
    def _act(self) -> Iterator[None]:
        """Act as another client, whose rights are not limited."""
        before, self._acting = self._acting, True
        try:
            yield
        finally:
            self._acting = before

    def _check_namespace(self, key: Key) -> None:
        kind, namespace, name = key
        if not KINDS[kind].namespaced:
            return
        home = self._objects.get(("Namespace", "", namespace))
        if home is None:
            raise NotFoundError(f'namespaces "{namespace}" not found')
        if "deletionTimestamp" in home["metadata"]:
            raise AccessDeniedError(
                f'The cluster forbids the request: {format_resource(kind)} "{name}" is forbidden: '
                f"unable to create new content in namespace {namespace} because it is being terminated."
            )

    def _check_version(self, manifest: Manifest, live: Manifest | None) -> None:
        required = manifest["metadata"].get("resourceVersion")
        if required and (live is None or required != live["metadata"]["resourceVersion"]):
            raise ConflictError(
                f"Operation cannot be fulfilled on {format_resource(manifest['kind'])} "
                f'"{manifest["metadata"]["name"]}": '
                "the object has been modified; please apply your changes to the latest version and try again"
            )

    def _get_existing(self, key: Key) -> Manifest:
        if key not in self._objects:
            raise NotFoundError(f'{format_resource(key[0])} "{key[2]}" not found')
        return self._objects[key]

    def _select(self, kind: str, namespace: str | None, labels: str, fields: str) -> list[Manifest]:
        keys = [key for key in sorted(self._objects) if key[0] == kind and namespace in {None, key[1]}]
        manifests = [self._objects[key] for key in keys]
        return [copy.deepcopy(manifest) for manifest in manifests if selectors.selects(manifest, labels, fields)]

    def _merge(
        self,
        kind: str,
        name: str,
        namespace: str | None,
        patch: Any,
        manager: Manager,
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Manifest:
        key = (kind, namespace or "", name)
        with self._changed:
            self._record_call("patch", kind, namespace, name, patch)
            live = self._get_existing(key)
            self._check_version({"kind": kind, "metadata": {"name": name, **patch.get("metadata", {})}}, live)
            if subresource == "status":
                patch = {"status": patch.get("status")}
            after = server_side_apply.merge(live, patch)
            owners = server_side_apply.compute_owners(live, after, self._owners[key], manager)
            return self._store(key, after, owners, dry_run=dry_run)

    def _store(self, key: Key, after: Manifest, owners: Owners, *, dry_run: bool) -> Manifest:
        """Store an object if it changed, and return it."""
        live = self._objects.get(key)
        after = copy.deepcopy(after)
        metadata = after["metadata"]
        if live is None:
            metadata |= {"uid": f"uid-{next(self._uids)}", "creationTimestamp": format_now(), "generation": 1}
        elif get_content(after) != get_content(live) and key[0] not in {"ConfigMap", "Secret", "Event"}:
            metadata["generation"] = live["metadata"]["generation"] + 1
        metadata["managedFields"] = server_side_apply.list_managed_fields(owners, after["apiVersion"])
        if dry_run or after == live:
            return copy.deepcopy(after)
        self._owners[key] = owners
        inhabited = key[0] == "Namespace" and any(other[1] == key[2] for other in self._objects)
        if "deletionTimestamp" in metadata and not metadata.get("finalizers") and not inhabited:
            self._remove(key)
            return copy.deepcopy(after)
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        self._objects[key] = after
        self._append_change(VersionedChange(self._version, key[0], live, after))
        return self._run_players(key)

    def _run_players(self, key: Key) -> Manifest:
        """Run the players on a change, each once and none on their own changes."""
        before = copy.deepcopy(self._objects[key])
        players = self._players.pop(key[0], [])
        try:
            for player in players:
                with self._act():
                    player(self, copy.deepcopy(self._objects[key]))
                if key not in self._objects:
                    break
        finally:
            if players:
                self._players[key[0]] = players
        return before

    def _delete(self, key: Key) -> None:
        manifest = copy.deepcopy(self._objects[key])
        inside = [other for other in self._objects if key[0] == "Namespace" and other[1] == key[2]]
        for other in inside:
            if other in self._objects:
                self._delete(other)
        remaining = [other for other in inside if other in self._objects]
        if manifest["metadata"].get("finalizers") or remaining:
            manifest["metadata"].setdefault("deletionTimestamp", format_now())
            self._store(key, manifest, self._owners[key], dry_run=False)
        else:
            self._remove(key)

    def _remove(self, key: Key) -> None:
        """Remove an object, then the objects it owned, and its namespace if that waited for the removal."""
        manifest = self._objects.pop(key)
        self._owners.pop(key, None)
        self._version += 1
        self._append_change(VersionedChange(self._version, key[0], manifest, None))
        uid = manifest["metadata"]["uid"]
        for other, manifest in list(self._objects.items()):
            owners = [owner["uid"] for owner in manifest["metadata"].get("ownerReferences", [])]
            if uid in owners and other in self._objects:
                self._delete(other)
        home = ("Namespace", "", key[1])
        if "deletionTimestamp" in self._objects.get(home, {}).get("metadata", {}) and not any(
            other[1] == key[1] for other in self._objects
        ):
            self._remove(home)

    def _append_change(self, change: VersionedChange) -> None:
        self._history.append(copy.deepcopy(change))
        self._changed.notify_all()
