"""Route the traffic of a service to its revisions, and compute the instances that each needs: with routes of a Gateway
if there is one, else with the Service that callers connect to."""

from __future__ import annotations

from dataclasses import replace

from scanflow.app.scaling import Scaling
from scanflow.app.workflow import Workflow
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import KINDS, Manifest
from scanflow.backends.kubernetes.labels import build_selector
from scanflow.backends.kubernetes.online import observed
from scanflow.backends.kubernetes.online.closed_routes import ROUTE_KINDS, build_closed_routes
from scanflow.backends.kubernetes.online.objects import build_stable_service
from scanflow.backends.kubernetes.online.pods import build_pod_selector, format_object_name, get_namespace
from scanflow.backends.kubernetes.online.scaling import build_autoscaler, compute_scaling_target, select_autoscaler_kind
from scanflow.backends.kubernetes.online.scaling_status import explain
from scanflow.backends.kubernetes.online.traffic import (
    Routing,
    build_routes,
    check_clients,
    detect_mirroring,
    find_gateway_url,
    format_authority,
    format_path_prefix,
)
from scanflow.backends.kubernetes.settings import KubernetesSettings
from scanflow.backends.service_records import Explanation
from scanflow.backends.service_spec import ServiceSpec
from scanflow.errors import AccessDeniedError, NotFoundError, UnsupportedError
from scanflow.wire import Revision

AUTOSCALER_KINDS = ("HorizontalPodAutoscaler", "ScaledObject")
_ROUTE_KINDS = ("HTTPRoute", "GRPCRoute", "TraefikService", *ROUTE_KINDS)


class TrafficSwitch:
    """The traffic of one cluster's services."""

    def __init__(self, cluster: Cluster, settings: KubernetesSettings) -> None:
        self._cluster, self._settings = cluster, settings

    def count_instances(self, definition: ServiceSpec, revision: Revision) -> int:
        """Return how many instances a revision should have.

        Raises:
            UnsupportedError: a shadow without a Gateway, which would mirror requests.
        """
        count, gateway = definition.shape.instances, self._settings.gateway
        if revision.id == definition.current.id:
            return count
        if revision.shadow:
            if definition.tls is not None:
                raise UnsupportedError(
                    "The backend 'kubernetes' does not support a shadow of a service with Serving.clients: its Gateway "
                    "passes no certificates to copies. Give the version a share: --weight 0.1"
                )
            if gateway is None:
                raise UnsupportedError(
                    "A shadow needs a Gateway, which copies the requests: set SCANFLOW_KUBERNETES_GATEWAY. Or give the "
                    "version a share: --weight 0.1"
                )
            return max(count, 1)
        if gateway is None:
            return observed.compute_canary_instances(count, revision.weight)
        return observed.compute_gateway_canary_instances(count, revision.weight)

    def route_traffic(self, definition: ServiceSpec, *, backup: ServiceSpec | None = None) -> None:
        """Route traffic to the revisions that serve, by their weights; or to ``backup``."""
        for manifest in self.build_manifests(definition, backup=backup):
            self._cluster.apply(manifest, force=True)

    def build_manifests(self, definition: ServiceSpec, *, backup: ServiceSpec | None = None) -> list[Manifest]:
        """Return the Service and the routes of a service."""
        canary = definition.canary
        spread = self._settings.gateway is None and canary is not None and not canary.shadow
        service = build_stable_service(definition, canary=spread)
        if backup is not None:
            service["spec"]["selector"] = build_pod_selector(backup, backup.current)
        if self._settings.gateway is None:
            return [service]
        routing = self._build_routing(definition, self._settings.gateway)
        if backup is not None:
            routing = replace(
                routing, shares={format_object_name(backup.workflow, backup.current.id): 1.0}, mirror=None
            )
        grpc = definition.serving.grpc_port != 0
        if definition.tls is not None:
            return [service, *build_closed_routes(routing, grpc=grpc)]
        served_routes = [manifest for manifest in build_routes(routing) if manifest["kind"] != "GRPCRoute" or grpc]
        return [service, *served_routes]

    def scale(self, definition: ServiceSpec, name: str, *, fixed: bool) -> None:
        """Apply the autoscaler of a revision, or remove it."""
        namespace = get_namespace(definition)
        scaler = self.build_autoscaler(definition, name, fixed=fixed)
        for kind in AUTOSCALER_KINDS:
            if scaler is not None and kind == scaler["kind"]:
                self._cluster.apply(scaler, force=True)
            elif scaler is None or kind == "ScaledObject":  # a ScaledObject owns an autoscaler of the same name
                self._remove(kind, compute_scaling_target(self._settings.serving, name).scaler, namespace)

    def build_autoscaler(self, definition: ServiceSpec, name: str, *, fixed: bool) -> Manifest | None:
        """Return the autoscaler of a revision; None: it has none."""
        if fixed or definition.scaling is None:
            return None
        return build_autoscaler(
            definition.scaling,
            compute_scaling_target(self._settings.serving, name),
            app=definition.app,
            team=definition.team,
            namespace=get_namespace(definition),
            service=definition.workflow,
            cores=definition.shape.cores,
            settings=self._settings,
        )

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
                manifests = self._cluster.find_optional(kind, namespace, labels=labels)
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

    def _build_routing(self, definition: ServiceSpec, gateway: str) -> Routing:
        shares = {
            format_object_name(definition.workflow, revision.id): revision.weight
            for revision in definition.revisions
            if not revision.shadow
        }
        shadow = next((revision for revision in definition.revisions if revision.shadow), None)
        return Routing(
            definition.app,
            definition.team,
            get_namespace(definition),
            definition.workflow,
            gateway,
            shares,
            None if shadow is None else format_object_name(definition.workflow, shadow.id),
            "filter" if shadow is None else detect_mirroring(self._find_gateway_class(gateway)),
            self._settings.gateway_domain,
        )

    def check_clients(self, workflow: Workflow) -> None:
        """Refuse a workflow's client certificates, for a Gateway that passes none on.

        Raises:
            UnsupportedError: it is not Traefik's.
        """
        if workflow.serving is not None and workflow.serving.clients is not None and self._settings.gateway is not None:
            check_clients(self._find_gateway_class(self._settings.gateway))

    def _find_gateway_class(self, gateway: str) -> Manifest:
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
