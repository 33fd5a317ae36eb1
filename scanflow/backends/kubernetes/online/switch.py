"""Which of a service's revisions callers reach, and how many instances each needs for that: through the routes of a
Gateway where there is one, else through the Service that all callers know."""

from __future__ import annotations

from dataclasses import replace

from scanflow.app.scaling import Scaling
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import KINDS, Manifest
from scanflow.backends.kubernetes.labels import namespace_of, selector
from scanflow.backends.kubernetes.online import observed
from scanflow.backends.kubernetes.online.objects import stable_service
from scanflow.backends.kubernetes.online.pods import object_name, selected
from scanflow.backends.kubernetes.online.scaling import autoscaler, autoscaler_kind, target_of
from scanflow.backends.kubernetes.online.scaling_status import explain
from scanflow.backends.kubernetes.online.traffic import (
    Mirroring,
    Routing,
    authority_of,
    gateway_url,
    mirroring_of,
    path_of_service,
    routes,
)
from scanflow.backends.kubernetes.settings import KubernetesSettings
from scanflow.backends.service_records import Explanation
from scanflow.backends.service_spec import ServiceSpec
from scanflow.errors import NotFoundError, ScanflowError, UnsupportedError
from scanflow.wire import Revision

SCALERS = ("HorizontalPodAutoscaler", "ScaledObject")
_ROUTES = ("HTTPRoute", "GRPCRoute", "TraefikService")


class Switch:
    """For one cluster."""

    def __init__(self, cluster: Cluster, settings: KubernetesSettings) -> None:
        self._cluster, self._settings = cluster, settings

    def instances(self, definition: ServiceSpec, revision: Revision) -> int:
        """Return how many instances a revision is to have.

        Raises:
            UnsupportedError: a shadow, and no Gateway that could copy requests.
        """
        count, gateway = definition.shape.instances, self._settings.gateway
        if revision.id == definition.current.id:
            return count
        if revision.shadow:
            if gateway is None:
                raise UnsupportedError(
                    "A shadow needs a Gateway, which copies the requests: set SCANFLOW_KUBERNETES_GATEWAY. Or give the "
                    "version a share: --weight 0.1"
                )
            return max(count, 1)
        if gateway is None:
            return observed.canary_instances(count, revision.weight)
        return observed.canary_behind_gateway(count, revision.weight)

    def point(self, definition: ServiceSpec, *, backup: ServiceSpec | None = None) -> None:
        """Let callers reach the revisions that serve, each with its share; or ``backup``, which answers for it."""
        for one in self.manifests(definition, backup=backup):
            self._cluster.apply(one, force=True)

    def manifests(self, definition: ServiceSpec, *, backup: ServiceSpec | None = None) -> list[Manifest]:
        """Return the objects that lead callers there."""
        canary = definition.canary
        spread = self._settings.gateway is None and canary is not None and not canary.shadow
        service = stable_service(definition, canary=spread)
        if backup is not None:
            service["spec"]["selector"] = selected(backup, backup.current)
        if self._settings.gateway is None:
            return [service]
        routing = self._routing(definition, self._settings.gateway)
        if backup is not None:
            routing = replace(routing, shares={object_name(backup.workflow, backup.current.id): 1.0}, mirror=None)
        led = [one for one in routes(routing) if one["kind"] != "GRPCRoute" or definition.serving.grpc_port != 0]
        return [service, *led]

    def scale(self, definition: ServiceSpec, name: str, *, fixed: bool) -> None:
        """Let an autoscaler decide on the number of a revision's instances, or none."""
        namespace = namespace_of(definition.app, definition.team)
        made = self.autoscaler(definition, name, fixed=fixed)
        for kind in SCALERS:
            if made is not None and kind == made["kind"]:
                self._cluster.apply(made, force=True)
            elif made is None or kind == "ScaledObject":  # KEDA's has an autoscaler of the same name of its own
                self._remove(kind, target_of(self._settings.serving, name).scaler, namespace)

    def autoscaler(self, definition: ServiceSpec, name: str, *, fixed: bool) -> Manifest | None:
        """Return what decides on the number of a revision's instances; None: nothing does."""
        if fixed or definition.scaling is None:
            return None
        return autoscaler(
            definition.scaling,
            target_of(self._settings.serving, name),
            app=definition.app,
            team=definition.team,
            service=definition.workflow,
            cores=definition.shape.cores,
            settings=self._settings,
        )

    def explanation(self, definition: ServiceSpec, scaling: Scaling, *, at: float) -> Explanation:
        """Return the last decision on the number of the current revision's instances."""
        namespace, name = namespace_of(definition.app, definition.team), definition.workflow
        target = target_of(self._settings.serving, object_name(name, definition.current.id)).scaler
        made = autoscaler_kind(scaling)
        return explain(
            name,
            scaling,
            hpa=self._cluster.get("HorizontalPodAutoscaler", target, namespace),
            scaled_object=None if made != "ScaledObject" else self._cluster.get(made, target, namespace),
            at=at,
        )

    def remove(self, definition: ServiceSpec) -> None:
        """Remove the routes and autoscalers of a service."""
        namespace = namespace_of(definition.app, definition.team)
        for kind in (*_ROUTES, *SCALERS):
            try:
                found, _ = self._cluster.find(kind, namespace, labels=selector(service=definition.workflow))
            except UnsupportedError:
                continue
            for one in found:
                self._cluster.delete(kind, one["metadata"]["name"], namespace)

    def addresses(
        self, definition: ServiceSpec, service: Manifest | None, gateway_url: str | None
    ) -> tuple[str, str | None]:
        """Return where callers reach a service: its address of HTTP, and of gRPC if it has that.

        Args:
            definition: What is served.
            service: The Service, if it is there.
            gateway_url: The Gateway's address, if it has one.
        """
        name, namespace = definition.workflow, namespace_of(definition.app, definition.team)
        if (url := gateway_url) is not None:
            domain = self._settings.gateway_domain
            host = authority_of(namespace, name, domain)
            return f"{url}{path_of_service(namespace, name)}", None if definition.serving.grpc_port == 0 else host
        ports = stable_service(definition, canary=False)["spec"]["ports"]
        host = f"{name}.{namespace}" if service is None else service["spec"].get("clusterIP", f"{name}.{namespace}")
        http = next(one["port"] for one in ports if one["name"] == "http")
        grpc = next((one["port"] for one in ports if one["name"] == "grpc"), None)
        return f"http://{host}:{http}", None if grpc is None else f"{host}:{grpc}"

    def gateway_url(self) -> str | None:
        """Return the Gateway's address; None: there is no Gateway, or it has none."""
        if self._settings.gateway is None:
            return None
        if self._settings.gateway_url is not None:
            return self._settings.gateway_url.rstrip("/")
        namespace, _, name = self._settings.gateway.rpartition("/")
        found = self._cluster.get("Gateway", name, namespace or "default")
        return None if found is None else gateway_url(found)

    def _routing(self, definition: ServiceSpec, gateway: str) -> Routing:
        shares = {
            object_name(definition.workflow, one.id): one.weight for one in definition.revisions if not one.shadow
        }
        shadow = next((one for one in definition.revisions if one.shadow), None)
        return Routing(
            definition.app,
            definition.team,
            definition.workflow,
            gateway,
            shares,
            None if shadow is None else object_name(definition.workflow, shadow.id),
            "filter" if shadow is None else self._mirroring(gateway),
            self._settings.gateway_domain,
        )

    def _mirroring(self, gateway: str) -> Mirroring:
        namespace, _, name = gateway.rpartition("/")
        found = self._cluster.get("Gateway", name, namespace or "default")
        kind = None if found is None else self._cluster.get("GatewayClass", found["spec"]["gatewayClassName"])
        if kind is None:
            raise NotFoundError(f"There is no Gateway {gateway!r}, or no class of it. Look: kubectl get gateway -A")
        return mirroring_of(kind)

    def _remove(self, kind: str, name: str, namespace: str) -> None:
        try:
            self._cluster.delete(kind, name, namespace)
        except ScanflowError as error:
            if KINDS[kind].engine is None or not isinstance(error, UnsupportedError):
                raise
