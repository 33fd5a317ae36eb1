"""The rights that scanflow needs at the API server, and which of them the caller lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import KINDS, Manifest, build_manifest
from scanflow.errors import ScanflowError

_READ: Final = ("get", "list", "watch")
_OWN_VERBS: Final = (*_READ, "create", "patch", "delete")

USED_VERBS: Final[Mapping[str, tuple[str, ...]]] = {
    "Namespace": ("get", "create", "patch", "delete"),
    **dict.fromkeys(
        (
            *(
                "ConfigMap",
                "Deployment",
                "LimitRange",
                "NetworkPolicy",
                "PersistentVolumeClaim",
                "Pod",
                "ResourceQuota",
            ),
            *("Role", "RoleBinding", "Service", "ServiceAccount", "HorizontalPodAutoscaler"),
            *(
                "Job",
                "MPIJob",
                "Workflow",
                "SeldonDeployment",
                "InferenceService",
                "ScaledObject",
                "HTTPRoute",
                "GRPCRoute",
            ),
            "ResourceClaimTemplate",
            *("TraefikService", "IngressRoute", "Middleware", "ServersTransport", "TLSOption"),
        ),
        _OWN_VERBS,
    ),
    "Secret": ("get", "list", "create", "patch", "delete"),
    "Event": ("list",),
    "Node": ("list",),
    "StorageClass": ("list",),
    "DeviceClass": ("list",),
    "Gateway": ("get",),
}
"""The verbs used on each kind, in environments or, for kinds without a namespace, in the cluster."""

QUOTA_KINDS: Final = frozenset({"LimitRange", "ResourceQuota"})
"""Kinds that the stock role ``admin`` may only read, and that are made on request."""

_NOT_NEEDED: Final = QUOTA_KINDS | {"Gateway"}
"""Kinds that are not needed in an environment's namespace: a Gateway is in another one."""

SUBRESOURCES: Final[Mapping[str, tuple[str, str]]] = {
    "pods/log": ("", "get"),
    "pods/exec": ("", "get"),
    "pods/proxy": ("", "get"),
    "nodes/proxy": ("", "get"),
    "workflowtaskresults": ("argoproj.io", "create"),
}
"""For subresources: the API group and the verb. The last one is granted to steps; the granter needs it too."""


def list_missing_permissions(
    cluster: Cluster, kinds: Iterable[str] = USED_VERBS, *, namespace: str | None = None
) -> dict[str, list[str]]:
    """Return the missing verbs, by resource as ``kubectl`` names it: ``workflows.argoproj.io``.

    With a ``namespace``: those that are needed in it, where somebody made it.
    """
    missing: dict[str, list[str]] = {}
    used = [kind for kind in kinds if namespace is None or (KINDS[kind].namespaced and kind not in _NOT_NEEDED)]
    for kind in used:
        group, resource = get_group(kind), KINDS[kind].plural
        for verb in USED_VERBS[kind]:
            if not is_allowed(cluster, verb, resource, group, namespace or ""):
                missing.setdefault(f"{resource}.{group}" if group else resource, []).append(verb)
    for resource, (group, verb) in SUBRESOURCES.items():
        is_used = (group != "argoproj.io" or "Workflow" in kinds) and (namespace is None or resource != "nodes/proxy")
        if is_used and not is_allowed(cluster, verb, resource, group, namespace or ""):
            missing[f"{resource}.{group}" if group else resource] = [verb]
    return missing


def read_user(cluster: Cluster) -> str | None:
    """Return the caller's name, as a role is bound to it; None: the cluster does not tell."""
    review: Manifest = build_manifest("SelfSubjectReview", {})
    try:
        return str(cluster.create(review)["status"]["userInfo"]["username"])
    except (ScanflowError, KeyError):
        return None


def is_allowed(cluster: Cluster, verb: str, resource: str, group: str = "", namespace: str = "") -> bool:
    """Return whether the caller has a right, by a SelfSubjectAccessReview; without a namespace, in all."""
    plain, _, sub = resource.partition("/")
    attributes = {"verb": verb, "resource": plain, "group": group, "subresource": sub, "namespace": namespace}
    review: Manifest = build_manifest(
        "SelfSubjectAccessReview",
        {},
        spec={"resourceAttributes": {name: value for name, value in attributes.items() if value}},
    )
    return bool(cluster.create(review)["status"]["allowed"])


def get_group(kind: str) -> str:
    """Return the API group of a kind; empty: the core group."""
    group, slash, _ = KINDS[kind].api_version.partition("/")
    return group if slash else ""
