"""Removes environments: what scanflow made, and nothing else."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from typing import Final

from scanflow.backends.environments import EnvironmentDeletion
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import KINDS, Manifest
from scanflow.backends.kubernetes.labels import MANAGER, namespace_of, selector
from scanflow.backends.kubernetes.settings import KubernetesSettings
from scanflow.errors import AccessDeniedError, NotFoundError, UnavailableError, UnsupportedError

_FIRST: Final = (
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
"""Kinds that make or hold others: what scales or routes goes first, then what runs, then all else."""

_NOBODYS: Final = {
    ("ConfigMap", "kube-root-ca.crt"),
    ("ConfigMap", "istio-ca-root-cert"),
    ("ServiceAccount", "default"),
}
"""What the cluster puts into each namespace."""

_OTHERS: Final = (
    "apis/apps/v1 daemonsets",
    "apis/batch/v1 cronjobs",
    "apis/batch/v1 jobs",
    "apis/networking.k8s.io/v1 ingresses",
)
"""What scanflow never makes, and people may have put there."""

_UNCOUNTED: Final = {"Event", "Lease", "ReplicaSet"}
_CLAIM: Final = "PersistentVolumeClaim"


def delete_environment(
    cluster: Cluster, app: str, team: str, settings: KubernetesSettings, *, within_s: float | None = None
) -> EnvironmentDeletion:
    """Remove what scanflow made for an application: its runs, services and agents with it. Safe to repeat.

    The namespace goes too, with the data of its claims, where scanflow made it, nobody else put anything there, and
    ``keep_claims`` is not set. Returns when all of it is gone.

    Raises:
        UnavailableError: it is not gone in time (``settings.timeout_s``); the message names the finalizers waited for.
    """
    name = namespace_of(app, team)
    until = time.monotonic() + (settings.timeout_s if within_s is None else within_s)
    home = cluster.get("Namespace", name)
    if home is None:
        return EnvironmentDeletion(name, True, (), ())
    removed: list[str] = []
    rest = sorted({kind for kind, one in KINDS.items() if one.namespaced} - _UNCOUNTED - {*_FIRST[0], *_FIRST[1]})
    kinds = [kind for kind in rest if kind != _CLAIM or not settings.keep_claims]
    for group in (*_FIRST, [kind for kind in kinds if kind not in {_CLAIM, "Pod"}], [k for k in kinds if k == _CLAIM]):
        removed += _remove(cluster, name, group, selector(app=app, team=team), until)
    left = _left(cluster, name, rest)
    ours = home["metadata"].get("labels", {}).get("app.kubernetes.io/managed-by") == MANAGER
    if not ours or left:
        return EnvironmentDeletion(name, False, tuple(removed), tuple(left))
    cluster.delete("Namespace", name)
    _wait(cluster, [("Namespace", name, None)], until)
    return EnvironmentDeletion(name, True, tuple(removed), ())


def _remove(cluster: Cluster, namespace: str, kinds: Iterable[str], labels: str, until: float) -> list[str]:
    """Delete all of some kinds, and wait until they are gone."""
    asked = []
    for kind in kinds:
        for one in _found(cluster, kind, namespace, labels):
            cluster.delete(kind, one["metadata"]["name"], namespace)
            asked.append((kind, one["metadata"]["name"], namespace))
    _wait(cluster, asked, until)
    return [f"{kind} {name}" for kind, name, _ in asked]


def _left(cluster: Cluster, namespace: str, kinds: Iterable[str]) -> list[str]:
    """Return what is there still, but for what the cluster puts there and what belongs to something else."""
    return _left_of_others(cluster, namespace) + [
        f"{kind} {one['metadata']['name']}"
        for kind in [*kinds, *_FIRST[0], *_FIRST[1]]
        for one in _found(cluster, kind, namespace, "")
        if (kind, one["metadata"]["name"]) not in _NOBODYS
        and not one["metadata"].get("ownerReferences")
        and "deletionTimestamp" not in one["metadata"]
        and one.get("type") != "kubernetes.io/service-account-token"
    ]


def _left_of_others(cluster: Cluster, namespace: str) -> list[str]:
    found = []
    for place in _OTHERS:
        group, plural = place.split()
        try:
            items = json.loads(cluster.text(f"/{group}/namespaces/{namespace}/{plural}"))["items"]
        except (AccessDeniedError, NotFoundError):
            continue
        found += [f"{plural} {one['metadata']['name']}" for one in items if not one["metadata"].get("ownerReferences")]
    return found


def _found(cluster: Cluster, kind: str, namespace: str, labels: str) -> list[Manifest]:
    try:
        return cluster.find(kind, namespace, labels=labels)[0]
    except (AccessDeniedError, UnsupportedError):  # who may not see a kind, or has none, has made none of it
        return []


def _wait(cluster: Cluster, objects: Iterable[tuple[str, str, str | None]], until: float) -> None:
    pause = threading.Event()
    for kind, name, namespace in objects:
        while found := cluster.get(kind, name, namespace):
            if "deletionTimestamp" not in found["metadata"]:
                break  # one of that name was made meanwhile, by who keeps it there
            if time.monotonic() >= until:
                raise UnavailableError(_why_not(kind, name, namespace, found))
            pause.wait(0.2)


def _why_not(kind: str, name: str, namespace: str | None, found: Manifest) -> str:
    where = f" of {namespace!r}" if namespace else ""
    finalizers = ", ".join(found["metadata"].get("finalizers", []))
    said = [
        one["message"]
        for one in found.get("status", {}).get("conditions", [])
        if one["status"] == "True" and one["type"].startswith("Namespace")
    ]
    reason = "; ".join([*([f"its finalizers {finalizers} wait for their controllers"] if finalizers else []), *said])
    return (
        f"{kind} {name!r}{where} is not gone yet: {reason or 'it is still ending'}. Try again; are the controllers "
        "that its finalizers name running?"
    )
