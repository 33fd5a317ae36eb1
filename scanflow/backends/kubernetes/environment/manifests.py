"""An application's environment as manifests. Pure: of the application and the settings alone."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from scanflow.app.application import Application
from scanflow.backends.kubernetes.environment import tracker
from scanflow.backends.kubernetes.kinds import KINDS, Manifest
from scanflow.backends.kubernetes.labels import SERVICE, labels_of, namespace_of
from scanflow.backends.kubernetes.settings import KubernetesSettings

STEPS: Final = "scanflow-step"
"""The service account of steps: it may tell Argo how they ended, and nothing else."""

PODS: Final = "scanflow-pod"
"""The service account of all other pods: it has no token, and may do nothing at the API server."""

OUTPUTS: Final = "scanflow-outputs"
"""The claim that the steps of all runs share."""

VARIABLES: Final = "scanflow-env"
"""The ConfigMap and the Secret whose entries, where they are there, are environment variables of all pods."""

MADE_FROM: Final = "scanflow.dev/environment"
"""An annotation of the namespace: a hash of what its environment was made of."""

OPTIONAL: Final = (
    ("ResourceQuota", "scanflow"),
    ("LimitRange", "scanflow"),
    ("Deployment", tracker.NAME),
    ("Service", tracker.NAME),
)
"""Objects that an environment has or has not, as its settings say; the claims, which hold data, are not among them."""

SERVICE_PORTS: Final = (8080, 8081, 8082)
"""Of instances: HTTP, gRPC, and what Prometheus and the API server read: metrics and state, no predictions."""


def environment_manifests(app: Application, settings: KubernetesSettings) -> list[Manifest]:
    """Return all objects of an environment, in the order in which they are to be made."""
    return [
        namespace(app),
        service_account(app, settings, STEPS, token=True),
        service_account(app, settings, PODS, token=False),
        role(app),
        role_binding(app),
        *quota(app, settings),
        *network_policies(app, settings),
        claim(app, settings, OUTPUTS, settings.storage_mode),
        *tracker_manifests(app, settings),
    ]


def hash_of(manifests: list[Manifest]) -> str:
    """Return what tells one environment's manifests from another's."""
    return hashlib.sha256(json.dumps(manifests, sort_keys=True).encode()).hexdigest()[:16]


def variables_from() -> list[Manifest]:
    """Return the ``envFrom`` of a container: what a person put into the environment for all of its pods."""
    return [
        {"configMapRef": {"name": VARIABLES, "optional": True}},
        {"secretRef": {"name": VARIABLES, "optional": True}},
    ]


def namespace(app: Application) -> Manifest:
    """Return the namespace. Pods in it that ask for the node's own devices, network or processes are refused."""
    security = {"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn": "restricted"}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": namespace_of(app.name, app.team), "labels": {**labels_of(app.name, app.team), **security}},
    }


def service_account(app: Application, settings: KubernetesSettings, name: str, *, token: bool) -> Manifest:
    """Return a service account: with ``token``, its pods may speak to the API server."""
    found = _object(app, "ServiceAccount", name, automountServiceAccountToken=token)
    if settings.pull_secret:
        found["imagePullSecrets"] = [{"name": settings.pull_secret}]
    return found


def role(app: Application) -> Manifest:
    """Return what the steps' account may do: what Argo's executor beside a step needs."""
    rule = {"apiGroups": ["argoproj.io"], "resources": ["workflowtaskresults"], "verbs": ["create", "patch"]}
    return _object(app, "Role", STEPS, rules=[rule])


def role_binding(app: Application) -> Manifest:
    """Return what gives the steps' account its role."""
    return _object(
        app,
        "RoleBinding",
        STEPS,
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": STEPS},
        subjects=[{"kind": "ServiceAccount", "name": STEPS, "namespace": namespace_of(app.name, app.team)}],
    )


def quota(app: Application, settings: KubernetesSettings) -> list[Manifest]:
    """Return the quota that was asked for, and the defaults without which it would refuse pods that say nothing."""
    limits = {
        "requests.cpu": settings.quota_cpu,
        "requests.memory": settings.quota_memory,
        "pods": None if settings.quota_pods is None else str(settings.quota_pods),
    }
    defaults = {
        "cpu": settings.default_cpu or ("50m" if settings.quota_cpu else None),
        "memory": settings.default_memory or ("128Mi" if settings.quota_memory else None),
    }
    found = []
    if hard := _given(limits):
        found.append(_object(app, "ResourceQuota", "scanflow", spec={"hard": hard}))
    if asked := _given(defaults):
        limit = {"type": "Container", "defaultRequest": asked}
        found.append(_object(app, "LimitRange", "scanflow", spec={"limits": [limit]}))
    return found


def network_policies(app: Application, settings: KubernetesSettings) -> list[Manifest]:
    """Return who may connect to the environment's pods: its own, the platform's, and to instances everyone.

    What pods connect to is not limited: models and data are where a team has them.
    """
    inside: list[Manifest] = [{"podSelector": {}}]
    if settings.platform_namespace:
        inside.append(
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.platform_namespace}}}
        )
    to_all = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": inside}]}
    to_instances = {
        "podSelector": {"matchExpressions": [{"key": SERVICE, "operator": "Exists"}]},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": [{"port": port, "protocol": "TCP"} for port in SERVICE_PORTS]}],
    }
    return [
        _object(app, "NetworkPolicy", "scanflow-inside", spec=to_all),
        _object(app, "NetworkPolicy", "scanflow-instances", spec=to_instances),
    ]


def claim(app: Application, settings: KubernetesSettings, name: str, mode: str) -> Manifest:
    """Return a claim of the settings' class and size."""
    spec: Manifest = {"accessModes": [mode], "resources": {"requests": {"storage": settings.storage_size}}}
    if settings.storage_class:
        spec["storageClassName"] = settings.storage_class
    return _object(app, "PersistentVolumeClaim", name, spec=spec)


def tracker_manifests(app: Application, settings: KubernetesSettings) -> list[Manifest]:
    """Return the environment's own tracker, if it has one."""
    if not tracker.is_own(app, settings):
        return []
    metadata = {
        "namespace": namespace_of(app.name, app.team),
        "labels": labels_of(app.name, app.team, component=tracker.NAME),
    }
    claims = [] if settings.tracker_secret else [claim(app, settings, tracker.CLAIM, "ReadWriteOnce")]
    return [
        *claims,
        tracker.service(app, metadata),
        tracker.deployment(app, settings, metadata, account=PODS, keeps_files=bool(claims)),
    ]


def _object(app: Application, kind: str, name: str, **fields: Any) -> Manifest:
    metadata = {"name": name, "namespace": namespace_of(app.name, app.team), "labels": labels_of(app.name, app.team)}
    return {"apiVersion": KINDS[kind].api_version, "kind": kind, "metadata": metadata, **fields}


def _given(values: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}
