"""Route the traffic of a service to its revisions, with routes of a Gateway or else the Service that callers connect
to; apply and explain its autoscaler."""

from __future__ import annotations

from collections.abc import Iterable

from scanflow.app.scaling import Scaling
from scanflow.app.workflow import Workflow
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import KINDS, Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import build_selector
from scanflow.backends.kubernetes.online.autoscaler_objects import select_autoscaler_kind
from scanflow.backends.kubernetes.online.closed_routes import ROUTE_KINDS
from scanflow.backends.kubernetes.online.engines import compute_scaling_target
from scanflow.backends.kubernetes.online.instance_pods import format_object_name, get_namespace
from scanflow.backends.kubernetes.online.render import (
    RenderedRevision,
    Rendering,
    build_stable_service,
    render,
    render_routes,
)
from scanflow.backends.kubernetes.online.scaling_status import explain
from scanflow.backends.kubernetes.online.traffic import (
    Mirroring,
    check_clients,
    detect_mirroring,
    find_gateway_url,
    format_authority,
    format_path_prefix,
)
from scanflow.backends.service_records import Explanation
from scanflow.backends.service_spec import ServiceSpec
from scanflow.errors import AccessDeniedError, NotFoundError, UnsupportedError

AUTOSCALER_KINDS = ("HorizontalPodAutoscaler", "ScaledObject")
_ROUTE_KINDS = ("HTTPRoute", "GRPCRoute", "TraefikService", *ROUTE_KINDS)


class TrafficSwitch:
    """The traffic of one cluster's services."""

    def __init__(self, cluster: Cluster, settings: KubernetesSettings) -> None:
        self._cluster, self._settings = cluster, settings

    def render(self, definition: ServiceSpec) -> Rendering:
        """Return the manifests of a service, as its Gateway and engine need them."""
        return render(definition, self._settings, self._read_mirroring(definition))

    def render_routes(self, definition: ServiceSpec, *, backup: ServiceSpec | None = None) -> tuple[Manifest, ...]:
        """Return the Service and the routes of a service: to its revisions, or to ``backup``."""
        mirroring = "filter" if backup is not None else self._read_mirroring(definition)
        return render_routes(definition, self._settings, mirroring, backup=backup)

    def route_traffic(self, routes: Iterable[Manifest]) -> None:
        """Route the traffic of a service as rendered."""
        for manifest in routes:
            self._cluster.apply(manifest, force=True)

    def scale(self, revision: RenderedRevision) -> None:
        """Apply the autoscaler of a revision, or remove it."""
        scaler = revision.scaler
        for kind in AUTOSCALER_KINDS:
            if scaler is not None and kind == scaler["kind"]:
                self._cluster.apply(scaler, force=True)
            elif scaler is None or kind == "ScaledObject":  # a ScaledObject owns an autoscaler of the same name
                self._remove(kind, revision.target.scaler, revision.namespace)

    def explain_scaling(self, definition: ServiceSpec, scaling: Scaling, *, at: float) -> Explanation:
        """Return the last scaling decision for the current revision."""
        namespace, name = get_namespace(definition), definition.workflow
        target = compute_scaling_target(self._settings.serving, format_object_name(name, definition.current.id)).scaler
        kind = select_autoscaler_kind(scaling)
        return explain(
            name,
            scaling,
            hpa=self._cluster.get("HorizontalPodAutoscaler", target, namespace),
            scaled_object=None if kind != "ScaledObject" else self._cluster.get(kind, target, namespace),
            at=at,
        )

    def remove(self, definition: ServiceSpec) -> None:
        """Remove the routes and autoscalers of a service."""
        namespace, labels = get_namespace(definition), build_selector(service=definition.workflow)
        used = {"HorizontalPodAutoscaler", *({"HTTPRoute", "GRPCRoute"} if self._settings.gateway is not None else ())}
        if definition.tls is not None:
            used |= set(ROUTE_KINDS)
        if definition.scaling is not None:
            used.add(select_autoscaler_kind(definition.scaling))
        for kind in (*_ROUTE_KINDS, *AUTOSCALER_KINDS):
            if kind in used:
                manifests, _ = self._cluster.find(kind, namespace, labels=labels)
            else:
                manifests = self._cluster.list_optional(kind, namespace, labels=labels)
            for manifest in manifests:
                self._cluster.delete(kind, manifest["metadata"]["name"], namespace)

    def resolve_addresses(
        self, definition: ServiceSpec, service: Manifest | None, gateway_url: str | None
    ) -> tuple[str, str | None]:
        """Return the addresses of a service: for HTTP, and for gRPC if it has that.

        Args:
            definition: The service's.
            service: Its Service, if that exists.
            gateway_url: The Gateway's address, if it has one.
        """
        name, namespace = definition.workflow, get_namespace(definition)
        host = format_authority(namespace, name, self._settings.gateway_domain)
        if definition.tls is not None:
            return f"https://{host}", None if definition.serving.grpc_port == 0 else f"{host}:443"
        if (url := gateway_url) is not None:
            return f"{url}{format_path_prefix(namespace, name)}", None if definition.serving.grpc_port == 0 else host
        ports = build_stable_service(definition, canary=False)["spec"]["ports"]
        host = f"{name}.{namespace}" if service is None else service["spec"].get("clusterIP", f"{name}.{namespace}")
        http = next(port["port"] for port in ports if port["name"] == "http")
        grpc = next((port["port"] for port in ports if port["name"] == "grpc"), None)
        return f"http://{host}:{http}", None if grpc is None else f"{host}:{grpc}"

    def find_gateway_url(self) -> str | None:
        """Return the Gateway's address; None: there is no Gateway, or it has none."""
        if self._settings.gateway is None:
            return None
        if self._settings.gateway_url is not None:
            return self._settings.gateway_url.rstrip("/")
        namespace, _, name = self._settings.gateway.rpartition("/")
        try:
            gateway = self._cluster.get("Gateway", name, namespace or "default")
        except AccessDeniedError as error:
            raise AccessDeniedError(
                f"You may not read the Gateway {self._settings.gateway!r}, and so its address. Say where clients reach "
                f"it: export SCANFLOW_KUBERNETES_GATEWAY_URL=http://HOST:PORT ({error})"
            ) from error
        return None if gateway is None else find_gateway_url(gateway)

    def _read_mirroring(self, definition: ServiceSpec) -> Mirroring:
        """Return how the Gateway mirrors requests, if a service has a shadow."""
        if self._settings.gateway is None or not any(revision.shadow for revision in definition.revisions):
            return "filter"
        return detect_mirroring(self._get_gateway_class(self._settings.gateway))

    def check_clients(self, workflow: Workflow) -> None:
        """Refuse a workflow's client certificates, for a Gateway that passes none on.

        Raises:
            UnsupportedError: it is not Traefik's.
        """
        if workflow.serving is not None and workflow.serving.clients is not None and self._settings.gateway is not None:
            check_clients(self._get_gateway_class(self._settings.gateway))

    def _get_gateway_class(self, gateway: str) -> Manifest:
        namespace, _, name = gateway.rpartition("/")
        gateway_object = self._cluster.get("Gateway", name, namespace or "default")
        kind = (
            None
            if gateway_object is None
            else self._cluster.get("GatewayClass", gateway_object["spec"]["gatewayClassName"])
        )
        if kind is None:
            raise NotFoundError(f"There is no Gateway {gateway!r}, or no GatewayClass. Look: kubectl get gateway -A")
        return kind

    def _remove(self, kind: str, name: str, namespace: str) -> None:
        try:
            self._cluster.delete(kind, name, namespace)
        except (AccessDeniedError, UnsupportedError):  # who may not have one has none
            if KINDS[kind].engine is None:
                raise
