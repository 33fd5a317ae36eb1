"""Create environments, keep them as described, and delete them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from scanflow.app.application import Application
from scanflow.backends.environments import EnsuredEnvironment, EnvironmentDeletion, ObjectChange
from scanflow.backends.kubernetes.api_errors import ConflictError
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.differences import compute_differences, list_changed_fields, list_missing_fields
from scanflow.backends.kubernetes.environment import tracker_manifests
from scanflow.backends.kubernetes.environment.delete import delete_environment
from scanflow.backends.kubernetes.environment.manifests import (
    APPLIED_HASH,
    OPTIONAL,
    PODS,
    build_environment_manifests,
    hash_manifests,
)
from scanflow.backends.kubernetes.environment.tracker_manifests import ensure_tracker_secrets, read_tracker_token
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import APP, MANAGER, TEAM
from scanflow.backends.kubernetes.pods import explain_pending
from scanflow.errors import AccessDeniedError, InvalidError, UnavailableError, UsageError

CHECK_CACHE_S: Final = 60.0
"""How long a process treats an environment as unchanged after a comparison with its description."""

_MANAGED: Final = "app.kubernetes.io/managed-by"


class Environments:
    """See :class:`~scanflow.backends.environments.EnvironmentBackend`. Threads may share it; it holds nothing open."""

    def __init__(
        self, cluster: Cluster, settings: KubernetesSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster, self._settings, self._clock = cluster, settings, clock
        self._checked: dict[str, tuple[str, str, float]] = {}
        """By namespace: the hash, the marker's uid and the time of the last successful comparison."""

        self._lock = threading.Lock()

    def ensure(self, app: Application, *, force: bool = False) -> EnsuredEnvironment:
        """Create or update an environment; an unchanged one takes one request, and a full comparison once a minute."""
        manifests = build_environment_manifests(app, self._settings)
        namespace, digest = self._settings.derive_namespace(app.name, app.team), hash_manifests(manifests)
        changed: list[str] = []
        conflicts: list[str] = []
        with self._lock:
            uid, applied_digest = self._read_marker(app, namespace)
            unchanged = applied_digest == digest
            last_digest, last_uid, checked_at = self._checked.get(namespace, ("", "", 0.0))
            if (
                not unchanged
                or force
                or (last_digest, last_uid) != (digest, uid)
                or self._clock() - checked_at >= CHECK_CACHE_S
            ):
                changed, conflicts = self._apply_changes(app, manifests, digest, unchanged=unchanged, force=force)
                uid = uid or self._read_marker(app, namespace)[0]
                self._checked[namespace] = digest, uid, self._clock()
        return EnsuredEnvironment(
            namespace,
            tracker_manifests.resolve_tracker_uri(app, self._settings),
            tuple(changed),
            uid=uid,
            kept=tuple(conflicts),
        )

    def _read_marker(self, app: Application, namespace: str) -> tuple[str, str | None]:
        """Return the uid of an environment, and the hash of the manifests that it was created from, if it exists.

        Raises:
            UsageError: it is another application's.
        """
        account = self._cluster.get("ServiceAccount", PODS, namespace)
        metadata = {} if account is None else account["metadata"]
        _check_owner(app, namespace, metadata.get("labels") or {})
        return metadata.get("uid", ""), metadata.get("annotations", {}).get(APPLIED_HASH)

    def plan(self, app: Application) -> list[ObjectChange]:
        namespace, *rest = build_environment_manifests(app, self._settings)
        digest = hash_manifests([namespace, *rest])
        self._read_marker(app, namespace["metadata"]["name"])
        live = self._find_namespace(namespace["metadata"]["name"])
        described = rest if live is not None and not _is_managed(live) else [namespace, *rest]
        return compute_differences(self._cluster, [_annotate_marker(manifest, digest) for manifest in described])

    def delete(self, app: Application, *, tell: Callable[[str], object] | None = None) -> EnvironmentDeletion:
        with self._lock:
            self._checked.pop(self._settings.derive_namespace(app.name, app.team), None)
        return delete_environment(self._cluster, app.name, app.team, self._settings, tell=tell)

    def read_tracker_token(self, app: Application) -> str | None:
        """Return the token with which the environment's pods use its tracker; None: they need none of ours."""
        return read_tracker_token(self._cluster, app, self._settings)

    def wait_for_tracker(self, app: Application, *, within_s: float) -> None:
        """Return once the environment's own tracker is available; at once if it has none.

        Raises:
            UnavailableError: it timed out; the message says what the pod waits for.
        """
        if not tracker_manifests.has_own_tracker(app, self._settings):
            return
        namespace, deadline = self._settings.derive_namespace(app.name, app.team), self._clock() + within_s
        selector = f"metadata.name={tracker_manifests.NAME}"
        while True:
            deployments, version = self._cluster.find("Deployment", namespace, fields=selector)
            if any(_is_available(deployment) for deployment in deployments):
                return
            remaining_s = deadline - self._clock()
            if remaining_s <= 0:
                raise UnavailableError(
                    f"The tracker of {namespace} was not ready within {within_s:g} s. "
                    f"{self._explain_pending(namespace)} Look: kubectl -n {namespace} describe pods -l "
                    f"scanflow.dev/component={tracker_manifests.NAME}"
                )
            for event in self._cluster.watch(
                "Deployment", namespace, fields=selector, since=version, within_s=remaining_s
            ):
                if _is_available(event.object):
                    return

    def _apply_changes(
        self, app: Application, manifests: list[Manifest], digest: str, *, unchanged: bool, force: bool
    ) -> tuple[list[str], list[str]]:
        """Apply the manifests that differ, the marker with the hash last, so that an interrupted call is repeated."""
        changed: list[str] = []
        conflicts: list[str] = []
        first, *rest = manifests
        changed += self._ensure_namespace(app, first)
        changed += ensure_tracker_secrets(self._cluster, app, self._settings)
        if not unchanged:
            changed += self._prune(manifests)
        for manifest in sorted(rest, key=_is_marker):
            manifest = _annotate_marker(manifest, digest)
            try:
                changed += self._ensure_object(manifest, unchanged=unchanged, force=force)
            except ConflictError as error:
                if not unchanged:
                    raise UsageError(
                        f"{_format_name(manifest)} of {manifest['metadata']['namespace']!r} cannot be updated to the "
                        f"current settings: another client owns a field: {error}. Undo its change, or overwrite it: "
                        "scanflow apply --force"
                    ) from error
                conflicts.append(f"{_format_name(manifest)}: {error}")
        return changed, conflicts

    def _ensure_namespace(self, app: Application, manifest: Manifest) -> Iterator[str]:
        name = manifest["metadata"]["name"]
        live = self._find_namespace(name)
        if live is None:
            try:
                self._cluster.apply(manifest)
            except AccessDeniedError as error:
                raise AccessDeniedError(
                    f"The namespace {name!r} does not exist, and you have no permission to create it. Have somebody "
                    f"with that permission run: kubectl create namespace {name}. Or name one that exists: export "
                    f"SCANFLOW_KUBERNETES_NAMESPACE=NAMESPACE ({error})"
                ) from error
            yield f"Namespace {name}: created"
            return
        if "deletionTimestamp" in live["metadata"]:
            raise UnavailableError(f"The namespace {name!r} is being deleted. Try again once it is gone.")
        labels = live["metadata"].get("labels") or {}
        _check_owner(app, name, labels)
        if _is_managed(live) and list_missing_fields(live, manifest):
            try:
                self._cluster.apply(manifest, force=True)
            except AccessDeniedError:
                return  # with rights in it alone, it is used as it is
            yield f"Namespace {name}: its labels were changed"

    def _find_namespace(self, name: str) -> Manifest | None:
        """Return a namespace; to who may not read it, one that somebody made."""
        try:
            return self._cluster.get("Namespace", name)
        except AccessDeniedError:
            return {"metadata": {"name": name}}

    def _ensure_object(self, manifest: Manifest, *, unchanged: bool, force: bool) -> Iterator[str]:
        metadata = manifest["metadata"]
        live = self._cluster.get(manifest["kind"], metadata["name"], metadata["namespace"])
        if unchanged and live is not None and not list_missing_fields(live, manifest):
            return
        try:
            after = self._cluster.apply(manifest, force=force)
        except InvalidError as error:
            if "immutable" not in str(error) and "field can not be less" not in str(error):
                raise
            raise UsageError(
                f"{_format_name(manifest)} of {metadata['namespace']!r} cannot be updated to the current settings: "
                f"{error}. Restore the old settings, or delete the environment, with its data, and create it again."
            ) from error
        if live is None:
            yield f"{_format_name(manifest)}: created"
        elif after["metadata"]["resourceVersion"] != live["metadata"]["resourceVersion"]:
            fields = ", ".join(change.path for change in list_changed_fields(live, after))
            yield f"{_format_name(manifest)}: {fields} changed"

    def _prune(self, manifests: list[Manifest]) -> Iterator[str]:
        """Delete the optional objects that are no longer described. Never a claim: it holds data."""
        namespace = manifests[-1]["metadata"]["namespace"]
        described = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}
        for kind, name in OPTIONAL:
            # Looked for first: who may not delete a quota, as the role admin of a namespace, seldom has one.
            if (
                (kind, name) not in described
                and self._cluster.get(kind, name, namespace) is not None
                and self._cluster.delete(kind, name, namespace)
            ):
                yield f"{kind} {name}: removed"

    def _explain_pending(self, namespace: str) -> str:
        pods, _ = self._cluster.find("Pod", namespace, labels=f"scanflow.dev/component={tracker_manifests.NAME}")
        events, _ = self._cluster.find("Event", namespace)
        reasons = [str(reason) for pod in pods if (reason := explain_pending(pod, events))]
        return reasons[0] if reasons else ""


def _check_owner(app: Application, namespace: str, labels: Mapping[str, str]) -> None:
    """Raise if the labels of a namespace, or of its marker, are of another application."""
    owner = labels.get(APP, app.name), labels.get(TEAM, app.team)
    if owner != (app.name, app.team):
        raise UsageError(
            f"The namespace {namespace!r} is the environment of the application {owner[0]!r} of team {owner[1]!r}, and "
            "a namespace has one environment. Set SCANFLOW_KUBERNETES_NAMESPACE to another namespace, rename this "
            "application, or delete that one."
        )


def _is_available(deployment: Manifest) -> bool:
    status = deployment.get("status", {})
    current = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    return bool(current and status.get("updatedReplicas", 0) and status.get("availableReplicas", 0))


def _is_managed(namespace: Manifest) -> bool:
    """Return whether scanflow made a namespace."""
    return bool((namespace["metadata"].get("labels") or {}).get(_MANAGED) == MANAGER)


def _is_marker(manifest: Manifest) -> bool:
    return (manifest["kind"], manifest["metadata"]["name"]) == ("ServiceAccount", PODS)


def _annotate_marker(manifest: Manifest, digest: str) -> Manifest:
    """Return a manifest, with the hash of all manifests if it is the marker."""
    if not _is_marker(manifest):
        return manifest
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": {APPLIED_HASH: digest}}}


def _format_name(manifest: Manifest) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']}"
