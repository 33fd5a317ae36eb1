"""Build the manifests of an environment from the application and the settings alone. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from scanflow.app.application import Application
from scanflow.backends.kubernetes.environment import tracker_manifests
from scanflow.backends.kubernetes.kinds import Manifest, build_manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import SERVICE, build_labels

STEPS: Final = "scanflow-step"
"""The service account of steps: it may report their results to Argo, and nothing else."""

PODS: Final = "scanflow-pod"
"""The service account of all other pods: without a token, and without rights at the API server."""

OUTPUTS: Final = "scanflow-outputs"
"""The claim that the steps of all runs share."""

VARIABLES: Final = "scanflow-env"
"""The optional ConfigMap and Secret whose entries are environment variables of all pods."""

APPLIED_HASH: Final = "scanflow.dev/environment"
"""An annotation of the marker: the hash of the manifests that the environment was created from."""

OPTIONAL: Final = (
    ("ResourceQuota", "scanflow"),
    ("LimitRange", "scanflow"),
    ("Deployment", tracker_manifests.NAME),
    ("Service", tracker_manifests.NAME),
)
"""The objects that depend on the settings, except claims, which hold data."""

SERVICE_PORTS: Final = (8080, 8081, 8082)
"""The ports of instances: HTTP, gRPC, and management (metrics and state), for Prometheus and the API server."""


def build_environment_manifests(app: Application, settings: KubernetesSettings) -> list[Manifest]:
    """Return all objects of an environment, in the order of creation."""
    return [
        build_namespace(app, settings),
        build_service_account(app, settings, STEPS, token=True),
        build_service_account(app, settings, PODS, token=False),
        build_role(app, settings),
        build_role_binding(app, settings),
        *build_quota(app, settings),
        *build_network_policies(app, settings),
        *([] if settings.outputs else [build_claim(app, settings, OUTPUTS, settings.storage_mode)]),
        *build_tracker_manifests(app, settings),
    ]


def hash_manifests(manifests: list[Manifest]) -> str:
    """Return a hash of manifests."""
    return hashlib.sha256(json.dumps(manifests, sort_keys=True).encode()).hexdigest()[:16]


def build_env_from() -> list[Manifest]:
    """Return the ``envFrom`` of a container: people's variables for the environment, and its tracker's token."""
    return [
        {"configMapRef": {"name": VARIABLES, "optional": True}},
        {"secretRef": {"name": VARIABLES, "optional": True}},
        {"secretRef": {"name": tracker_manifests.POD_CREDENTIALS, "optional": True}},
    ]


def build_namespace(app: Application, settings: KubernetesSettings) -> Manifest:
    """Return the namespace. It rejects pods that use devices, the network or processes of the node."""
    security = {"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn": "restricted"}
    return build_manifest(
        "Namespace",
        {
            "name": settings.derive_namespace(app.name, app.team),
            "labels": {**build_labels(app.name, app.team), **security},
        },
    )


def build_service_account(app: Application, settings: KubernetesSettings, name: str, *, token: bool) -> Manifest:
    """Return a service account; with ``token``, its pods can authenticate to the API server."""
    account = _build_object(app, settings, "ServiceAccount", name, automountServiceAccountToken=token)
    if settings.pull_secret:
        account["imagePullSecrets"] = [{"name": settings.pull_secret}]
    return account


def build_role(app: Application, settings: KubernetesSettings) -> Manifest:
    """Return the role of the steps' account: the rights that Argo's executor needs."""
    rule = {"apiGroups": ["argoproj.io"], "resources": ["workflowtaskresults"], "verbs": ["create", "patch"]}
    return _build_object(app, settings, "Role", STEPS, rules=[rule])


def build_role_binding(app: Application, settings: KubernetesSettings) -> Manifest:
    """Return the binding of the role to the steps' account."""
    return _build_object(
        app,
        settings,
        "RoleBinding",
        STEPS,
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": STEPS},
        subjects=[
            {"kind": "ServiceAccount", "name": STEPS, "namespace": settings.derive_namespace(app.name, app.team)}
        ],
    )


def build_quota(app: Application, settings: KubernetesSettings) -> list[Manifest]:
    """Return the quota, and the default requests without which it rejects pods that have none."""
    limits = {
        "requests.cpu": settings.quota_cpu,
        "requests.memory": settings.quota_memory,
        "pods": None if settings.quota_pods is None else str(settings.quota_pods),
    }
    defaults = {
        "cpu": settings.default_cpu or ("50m" if settings.quota_cpu else None),
        "memory": settings.default_memory or ("128Mi" if settings.quota_memory else None),
    }
    objects = []
    if hard := _drop_unset(limits):
        objects.append(_build_object(app, settings, "ResourceQuota", "scanflow", spec={"hard": hard}))
    if default_request := _drop_unset(defaults):
        limit = {"type": "Container", "defaultRequest": default_request}
        objects.append(_build_object(app, settings, "LimitRange", "scanflow", spec={"limits": [limit]}))
    return objects


def build_network_policies(app: Application, settings: KubernetesSettings) -> list[Manifest]:
    """Return the ingress policies: pods accept connections from the environment and the platform, instances from all.

    Egress is not limited: models and data may be anywhere.
    """
    sources: list[Manifest] = [{"podSelector": {}}]
    if settings.platform_namespace:
        sources.append(
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.platform_namespace}}}
        )
    to_all = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": sources}]}
    to_instances = {
        "podSelector": {"matchExpressions": [{"key": SERVICE, "operator": "Exists"}]},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": [{"port": port, "protocol": "TCP"} for port in SERVICE_PORTS]}],
    }
    return [
        _build_object(app, settings, "NetworkPolicy", "scanflow-inside", spec=to_all),
        _build_object(app, settings, "NetworkPolicy", "scanflow-instances", spec=to_instances),
    ]


def build_claim(app: Application, settings: KubernetesSettings, name: str, mode: str) -> Manifest:
    """Return a claim with the storage class and size of the settings."""
    spec: Manifest = {"accessModes": [mode], "resources": {"requests": {"storage": settings.storage_size}}}
    if settings.storage_class:
        spec["storageClassName"] = settings.storage_class
    return _build_object(app, settings, "PersistentVolumeClaim", name, spec=spec)


def build_tracker_manifests(app: Application, settings: KubernetesSettings) -> list[Manifest]:
    """Return the environment's own tracker, if it has one."""
    if not tracker_manifests.has_own_tracker(app, settings):
        return []
    metadata = {
        "namespace": settings.derive_namespace(app.name, app.team),
        "labels": build_labels(app.name, app.team, component=tracker_manifests.NAME),
    }
    claims = [] if settings.tracker_secret else [build_claim(app, settings, tracker_manifests.CLAIM, "ReadWriteOnce")]
    return [
        *claims,
        tracker_manifests.build_service(app, metadata),
        tracker_manifests.build_deployment(app, settings, metadata, account=PODS, keeps_files=bool(claims)),
    ]


def _build_object(app: Application, settings: KubernetesSettings, kind: str, name: str, **fields: Any) -> Manifest:
    metadata = {
        "name": name,
        "namespace": settings.derive_namespace(app.name, app.team),
        "labels": build_labels(app.name, app.team),
    }
    return build_manifest(kind, metadata, **fields)


def _drop_unset(values: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}
