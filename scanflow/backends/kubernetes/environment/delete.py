"""Delete environments: the objects that scanflow created, and no others."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from scanflow.backends.environments import EnvironmentDeletion
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import KINDS, Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import MANAGER, build_selector
from scanflow.errors import AccessDeniedError, NotFoundError, UnavailableError

_DELETED_FIRST: Final = (
    ("ScaledObject", "HorizontalPodAutoscaler", "HTTPRoute", "GRPCRoute"),
    (
        "Workflow",
        "WorkflowTemplate",
        "SeldonDeployment",
        "InferenceService",
        "Deployment",
        "StatefulSet",
        "Job",
        "MPIJob",
    ),
)
"""The kinds that own others, in the order of deletion: autoscalers and routes, then workloads, then all else."""

_DEFAULT_OBJECTS: Final = {
    ("ConfigMap", "kube-root-ca.crt"),
    ("ConfigMap", "istio-ca-root-cert"),
    ("ServiceAccount", "default"),
}
"""The objects that the cluster creates in each namespace."""

_FOREIGN_RESOURCES: Final = (
    "apis/apps/v1 daemonsets",
    "apis/batch/v1 cronjobs",
    "apis/batch/v1 jobs",
    "apis/networking.k8s.io/v1 ingresses",
)
"""Resources that scanflow never creates, but people may."""

_IGNORED_KINDS: Final = {"Event", "Lease", "ReplicaSet"}
_CLAIM_KIND: Final = "PersistentVolumeClaim"
QUIET_S: Final = 10.0
"""How long deletions take before something is said of them."""


def delete_environment(
    cluster: Cluster,
    app: str,
    team: str,
    settings: KubernetesSettings,
    *,
    within_s: float | None = None,
    tell: Callable[[str], object] | None = None,
) -> EnvironmentDeletion:
    """Delete the environment of an application, with its runs, services and agents. Idempotent.

    The namespace is deleted too, with the data of its claims, if scanflow created it, it holds no other objects, and
    ``keep_claims`` is not set. Returns when all is gone. What runs left in an object store stays there, and is named.
    ``tell`` gets a sentence for each object that is still there after ten seconds, and why.

    Raises:
        UnavailableError: it timed out (``settings.timeout_s``); the message names the pending finalizers.
    """
    name = settings.derive_namespace(app, team)
    deadline = time.monotonic() + (settings.timeout_s if within_s is None else within_s)
    try:
        namespace = cluster.get("Namespace", name)
    except AccessDeniedError:
        namespace = {"metadata": {}}  # somebody made it for who may not read it
    if namespace is None:
        return EnvironmentDeletion(name, True, (), ())
    removed: list[str] = []
    rest = sorted(
        {kind for kind, info in KINDS.items() if info.namespaced}
        - _IGNORED_KINDS
        - {*_DELETED_FIRST[0], *_DELETED_FIRST[1]}
    )
    kinds = [kind for kind in rest if kind != _CLAIM_KIND or not settings.keep_claims]
    for group in (
        *_DELETED_FIRST,
        [kind for kind in kinds if kind not in {_CLAIM_KIND, "Pod"}],
        [k for k in kinds if k == _CLAIM_KIND],
    ):
        removed += _remove(cluster, name, group, build_selector(app=app, team=team), deadline, tell)
    remaining = _list_remaining(cluster, name, rest)
    kept = [f"objects below {settings.outputs}/{name}/"] if settings.outputs else []
    managed = (namespace["metadata"].get("labels") or {}).get("app.kubernetes.io/managed-by") == MANAGER
    if not managed or remaining:
        return EnvironmentDeletion(name, False, tuple(removed), (*remaining, *kept))
    cluster.delete("Namespace", name)
    _wait_until_gone(cluster, [("Namespace", name, None)], deadline, tell)
    return EnvironmentDeletion(name, True, tuple(removed), tuple(kept))


def _remove(
    cluster: Cluster,
    namespace: str,
    kinds: Iterable[str],
    labels: str,
    deadline: float,
    tell: Callable[[str], object] | None,
) -> list[str]:
    """Delete all objects of some kinds, and wait until they are gone."""
    deleted = []
    for kind in kinds:
        for manifest in cluster.list_optional(kind, namespace, labels=labels):
            cluster.delete(kind, manifest["metadata"]["name"], namespace)
            deleted.append((kind, manifest["metadata"]["name"], namespace))
    _wait_until_gone(cluster, deleted, deadline, tell)
    return [f"{kind} {name}" for kind, name, _ in deleted]


def _list_remaining(cluster: Cluster, namespace: str, kinds: Iterable[str]) -> list[str]:
    """Return the objects that remain, without those that the cluster created and those with an owner."""
    return _list_foreign_objects(cluster, namespace) + [
        f"{kind} {manifest['metadata']['name']}"
        for kind in [*kinds, *_DELETED_FIRST[0], *_DELETED_FIRST[1]]
        for manifest in cluster.list_optional(kind, namespace)
        if (kind, manifest["metadata"]["name"]) not in _DEFAULT_OBJECTS
        and not manifest["metadata"].get("ownerReferences")
        and "deletionTimestamp" not in manifest["metadata"]
        and manifest.get("type") != "kubernetes.io/service-account-token"
    ]


def _list_foreign_objects(cluster: Cluster, namespace: str) -> list[str]:
    names = []
    for resource in _FOREIGN_RESOURCES:
        group, plural = resource.split()
        try:
            items = json.loads(cluster.fetch_text(f"/{group}/namespaces/{namespace}/{plural}"))["items"]
        except (AccessDeniedError, NotFoundError):
            continue
        names += [
            f"{plural} {item['metadata']['name']}" for item in items if not item["metadata"].get("ownerReferences")
        ]
    return names


def _wait_until_gone(
    cluster: Cluster,
    objects: Iterable[tuple[str, str, str | None]],
    deadline: float,
    tell: Callable[[str], object] | None,
) -> None:
    pause, began = threading.Event(), time.monotonic()
    for kind, name, namespace in objects:
        is_told = tell is None
        while live := cluster.get(kind, name, namespace):
            if "deletionTimestamp" not in live["metadata"]:
                break  # its controller has created another of that name
            if time.monotonic() >= deadline:
                raise UnavailableError(
                    f"{_format_blocked(kind, name, namespace, live)}. Check that the controllers of its finalizers are "
                    "running, and try again."
                )
            if tell is not None and not is_told and time.monotonic() - began >= QUIET_S:
                tell(f"{_format_blocked(kind, name, namespace, live)}.")
                is_told = True
            pause.wait(0.2)


def _format_blocked(kind: str, name: str, namespace: str | None, live: Manifest) -> str:
    where = f" of {namespace!r}" if namespace else ""
    finalizers = ", ".join(live["metadata"].get("finalizers", []))
    messages = [
        condition["message"]
        for condition in live.get("status", {}).get("conditions", [])
        if condition["status"] == "True" and condition["type"].startswith("Namespace")
    ]
    reason = "; ".join(
        [*([f"its finalizers {finalizers} wait for their controllers"] if finalizers else []), *messages]
    )
    return f"{kind} {name!r}{where} is not gone yet: {reason or 'it is still terminating'}"
