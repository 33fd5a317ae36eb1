"""The kinds of objects that scanflow creates or reads, and their paths at the API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

Manifest: TypeAlias = dict[str, Any]
"""An object as in YAML: ``apiVersion``, ``kind``, ``metadata`` and the rest."""


class Kind(NamedTuple):
    """A kind, at the API version in use."""

    api_version: str
    plural: str
    namespaced: bool = True
    engine: str | None = None
    """The engine that installs it; None: every cluster has it."""


KINDS: Final[dict[str, Kind]] = {
    "ConfigMap": Kind("v1", "configmaps"),
    "Event": Kind("v1", "events"),
    "LimitRange": Kind("v1", "limitranges"),
    "Namespace": Kind("v1", "namespaces", namespaced=False),
    "Node": Kind("v1", "nodes", namespaced=False),
    "PersistentVolumeClaim": Kind("v1", "persistentvolumeclaims"),
    "Pod": Kind("v1", "pods"),
    "ResourceQuota": Kind("v1", "resourcequotas"),
    "Secret": Kind("v1", "secrets"),
    "Service": Kind("v1", "services"),
    "ServiceAccount": Kind("v1", "serviceaccounts"),
    "Deployment": Kind("apps/v1", "deployments"),
    "ReplicaSet": Kind("apps/v1", "replicasets"),
    "StatefulSet": Kind("apps/v1", "statefulsets"),
    "HorizontalPodAutoscaler": Kind("autoscaling/v2", "horizontalpodautoscalers"),
    "PodDisruptionBudget": Kind("policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": Kind("networking.k8s.io/v1", "networkpolicies"),
    "Role": Kind("rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": Kind("rbac.authorization.k8s.io/v1", "rolebindings"),
    "ClusterRole": Kind("rbac.authorization.k8s.io/v1", "clusterroles", namespaced=False),
    "ClusterRoleBinding": Kind("rbac.authorization.k8s.io/v1", "clusterrolebindings", namespaced=False),
    "SelfSubjectAccessReview": Kind("authorization.k8s.io/v1", "selfsubjectaccessreviews", namespaced=False),
    "SelfSubjectReview": Kind("authentication.k8s.io/v1", "selfsubjectreviews", namespaced=False),
    "SubjectAccessReview": Kind("authorization.k8s.io/v1", "subjectaccessreviews", namespaced=False),
    "StorageClass": Kind("storage.k8s.io/v1", "storageclasses", namespaced=False),
    "DeviceClass": Kind("resource.k8s.io/v1", "deviceclasses", namespaced=False, engine="Kubernetes 1.34"),
    "ResourceClaimTemplate": Kind("resource.k8s.io/v1", "resourceclaimtemplates", engine="Kubernetes 1.34"),
    "Lease": Kind("coordination.k8s.io/v1", "leases"),
    "CustomResourceDefinition": Kind("apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False),
    "Workflow": Kind("argoproj.io/v1alpha1", "workflows", engine="Argo Workflows"),
    "WorkflowTemplate": Kind("argoproj.io/v1alpha1", "workflowtemplates", engine="Argo Workflows"),
    "SeldonDeployment": Kind("machinelearning.seldon.io/v1", "seldondeployments", engine="Seldon Core"),
    "InferenceService": Kind("serving.kserve.io/v1beta1", "inferenceservices", engine="KServe"),
    "Job": Kind("batch.volcano.sh/v1alpha1", "jobs", engine="Volcano"),
    "MPIJob": Kind("kubeflow.org/v2beta1", "mpijobs", engine="the MPI Operator"),
    "ScaledObject": Kind("keda.sh/v1alpha1", "scaledobjects", engine="KEDA"),
    "GatewayClass": Kind("gateway.networking.k8s.io/v1", "gatewayclasses", namespaced=False, engine="the Gateway API"),
    "Gateway": Kind("gateway.networking.k8s.io/v1", "gateways", engine="the Gateway API"),
    "HTTPRoute": Kind("gateway.networking.k8s.io/v1", "httproutes", engine="the Gateway API"),
    "GRPCRoute": Kind("gateway.networking.k8s.io/v1", "grpcroutes", engine="the Gateway API"),
    **{
        kind: Kind("traefik.io/v1alpha1", f"{kind.lower()}s", engine="Traefik")
        for kind in ("IngressRoute", "Middleware", "ServersTransport", "TLSOption")
    },
    "TraefikService": Kind("traefik.io/v1alpha1", "traefikservices", engine="Traefik"),
}


_Value = TypeVar("_Value")


def drop_empty(**fields: _Value) -> dict[str, _Value]:
    """Return the fields that are not empty."""
    return {name: value for name, value in fields.items() if value}


def build_manifest(kind: str, metadata: Manifest, **fields: Any) -> Manifest:
    """Return an object of a kind, with fields such as ``spec`` and ``data``."""
    return {"apiVersion": KINDS[kind].api_version, "kind": kind, "metadata": metadata, **fields}


def get_condition(status: Mapping[str, Any] | None, kind: str) -> Mapping[str, Any]:
    """Return the condition of a type in an object's status; empty: there is none."""
    conditions = (status or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == kind), {})


def get_object_key(manifest: Manifest) -> tuple[str, str, str]:
    """Return the kind, namespace and name of an object."""
    return manifest["kind"], manifest["metadata"]["namespace"], manifest["metadata"]["name"]


def build_group_path(api_version: str) -> str:
    """Return the path of an API version: ``/api/v1`` or ``/apis/apps/v1``."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def build_object_path(kind: str, name: str | None = None, *, namespace: str | None = None) -> str:
    """Return the path of an object, or of all objects of a kind: in a namespace or, without one, in all."""
    resource = KINDS[kind]
    inside = f"/namespaces/{namespace}" if resource.namespaced and namespace is not None else ""
    return f"{build_group_path(resource.api_version)}{inside}/{resource.plural}{'' if name is None else f'/{name}'}"
