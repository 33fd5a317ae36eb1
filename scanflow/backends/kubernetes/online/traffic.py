"""Build the routes of a Gateway to services, and read its address. Pure.

HTTP is routed by the path: ``http://gateway/<namespace>/<service>/v2/models/...`` reaches an instance as
``/v2/models/...``. That needs no DNS and one certificate, and clients append their paths to the address of the service.
gRPC calls have a path that cannot be prefixed, so they are routed by their host: the authority
``<service>.<namespace>``, with the domain of the cluster's settings, if any. Both routes balance single requests, also
those of one connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from scanflow.backends.kubernetes.kinds import KINDS, Manifest, build_manifest
from scanflow.backends.kubernetes.object_labels import build_labels
from scanflow.errors import UnsupportedError

HTTP_PORT: Final = 8080
GRPC_PORT: Final = 8081
"""The ports of instances, and of the Services in front of them; the ``appProtocol`` of the second is :data:`H2C`."""

H2C: Final = "kubernetes.io/h2c"
"""The ``appProtocol`` of a Service's port for HTTP/2 without TLS, which a Gateway needs for gRPC."""

Mirroring = Literal["filter", "traefik"]
"""How a Gateway mirrors requests: with a filter of the route, or with Traefik's own kind."""

_TRAEFIK: Final = "traefik.io/gateway-controller"
_TOTAL_WEIGHT: Final = 1000  # weights are whole numbers: a tenth of a percent


@dataclass(frozen=True, slots=True)
class Routing:
    """The Services that serve the requests of a service, and their shares."""

    app: str
    team: str
    namespace: str
    name: str
    gateway: str
    """``namespace/name`` of the Gateway."""

    shares: Mapping[str, float] = field(default_factory=dict)
    """The share of each Service, from 0 to 1: the stable revision and a canary, or a backup alone."""

    mirror: str | None = None
    """The Service that gets a copy of each request, whose responses are discarded: a shadow."""

    mirroring: Mirroring = "filter"
    """How requests are mirrored: see :func:`detect_mirroring`."""

    domain: str | None = None
    """The suffix of ``<service>.<namespace>`` in the host of gRPC calls."""


def build_routes(routing: Routing) -> list[Manifest]:
    """Return all objects that route requests to a service."""
    by_traefik = routing.mirror is not None and routing.mirroring == "traefik"
    return [
        *([_build_traefik_mirror(routing)] if by_traefik else []),
        build_http_route(routing),
        build_grpc_route(routing),
    ]


def build_http_route(routing: Routing) -> Manifest:
    """Return the HTTPRoute of a service."""
    prefix = {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": format_path_prefix(routing.namespace, routing.name)}}],
        "filters": [{"type": "URLRewrite", "urlRewrite": {"path": prefix}}, *_build_mirror_filters(routing, HTTP_PORT)],
        "backendRefs": _build_backend_refs(routing, HTTP_PORT),
    }
    if routing.mirror is not None and routing.mirroring == "traefik":
        group = KINDS["TraefikService"].api_version.partition("/")[0]
        rule["backendRefs"] = [{"group": group, "kind": "TraefikService", "name": routing.name}]
    return _build_route("HTTPRoute", routing, {"rules": [rule]})


def build_grpc_route(routing: Routing) -> Manifest:
    """Return the GRPCRoute of a service. Traefik does not mirror gRPC."""
    filters = _build_mirror_filters(routing, GRPC_PORT)
    rule = {**({"filters": filters} if filters else {}), "backendRefs": _build_backend_refs(routing, GRPC_PORT)}
    host = format_authority(routing.namespace, routing.name, routing.domain)
    return _build_route("GRPCRoute", routing, {"hostnames": [host], "rules": [rule]})


def format_path_prefix(namespace: str, name: str) -> str:
    """Return the path prefix of a service at a Gateway."""
    return f"/{namespace}/{name}"


def format_authority(namespace: str, name: str, domain: str | None = None) -> str:
    """Return the host of gRPC calls to a service at a Gateway."""
    return ".".join([name, namespace, *([domain] if domain else [])])


def compute_shares(route: Manifest) -> dict[str, float]:
    """Return the share of each Service, from the weights of a route."""
    backends = route["spec"]["rules"][0].get("backendRefs", [])
    weights = {backend["name"]: backend.get("weight", 1) for backend in backends}
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()} if total else dict.fromkeys(weights, 0.0)


def find_gateway_url(gateway: Manifest) -> str | None:
    """Return the URL of a Gateway, from the first address of its status; None: it has none."""
    addresses = gateway.get("status", {}).get("addresses", ())
    for listener in gateway["spec"].get("listeners", ()):
        scheme = {"HTTP": "http", "HTTPS": "https"}.get(listener["protocol"])
        if scheme and addresses:
            port = "" if listener["port"] == {"http": 80, "https": 443}[scheme] else f":{listener['port']}"
            return f"{scheme}://{addresses[0]['value']}{port}"
    return None


def detect_mirroring(gateway_class: Manifest) -> Mirroring:
    """Return how the Gateways of a class mirror requests to a shadow.

    Raises:
        UnsupportedError: they do not, according to its status.
    """
    if gateway_class["spec"]["controllerName"] == _TRAEFIK:
        return "traefik"  # it accepts a route with the filter, and responds 500
    supported = gateway_class.get("status", {}).get("supportedFeatures")
    features = {feature["name"] if isinstance(feature, Mapping) else feature for feature in supported or ()}
    if supported is not None and "HTTPRouteRequestMirror" not in features:
        raise UnsupportedError(
            "The backend 'kubernetes' does not support shadow: the Gateways of class "
            f"{gateway_class['metadata']['name']!r} copy no requests. Give the version a small weight instead."
        )
    return "filter"


def check_clients(gateway_class: Manifest) -> None:
    """Refuse client certificates, for Gateways that are not Traefik's.

    Raises:
        UnsupportedError: the class is another's.
    """
    if gateway_class["spec"]["controllerName"] != _TRAEFIK:
        raise UnsupportedError(
            f"The backend 'kubernetes' supports serving.clients with Traefik's Gateways only, and those of class "
            f"{gateway_class['metadata']['name']!r} are of {gateway_class['spec']['controllerName']!r}. Name one of "
            "Traefik's: SCANFLOW_KUBERNETES_GATEWAY=NAMESPACE/NAME. Or remove clients."
        )


def _build_traefik_mirror(routing: Routing) -> Manifest:
    """Return a TraefikService: the stable revision serves, and another gets a copy."""
    (stable,) = routing.shares
    copies = [{"name": routing.mirror, "port": HTTP_PORT, "percent": 100}]
    return build_object(
        "TraefikService", routing, {"mirroring": {"name": stable, "port": HTTP_PORT, "mirrors": copies}}
    )


def _build_route(kind: str, routing: Routing, spec: Mapping[str, Any]) -> Manifest:
    namespace, _, name = routing.gateway.rpartition("/")
    parent = {"name": name, **({"namespace": namespace} if namespace else {})}
    return build_object(kind, routing, {"parentRefs": [parent], **spec})


def build_object(kind: str, routing: Routing, spec: Mapping[str, Any]) -> Manifest:
    """Return an object that routes to a service, with the service's name."""
    return build_manifest(
        kind,
        {
            "name": routing.name,
            "namespace": routing.namespace,
            "labels": build_labels(routing.app, routing.team, service=routing.name),
        },
        spec=dict(spec),
    )


def _build_backend_refs(routing: Routing, port: int) -> list[Manifest]:
    return [{"name": name, "port": port, "weight": weight} for name, weight in build_weights(routing)]


def build_weights(routing: Routing) -> list[tuple[str, int]]:
    """Return the Services with integer weights that add up to the sum of the shares."""
    weights: list[tuple[str, int]] = []
    cumulative = assigned = 0.0
    for name, share in routing.shares.items():
        cumulative += share
        weight = round(cumulative * _TOTAL_WEIGHT) - assigned
        assigned += weight
        weights.append((name, int(weight)))
    return weights


def _build_mirror_filters(routing: Routing, port: int) -> list[Manifest]:
    if routing.mirror is None or routing.mirroring == "traefik":
        return []
    backend = {"name": routing.mirror, "port": port}
    return [{"type": "RequestMirror", "requestMirror": {"backendRef": backend}}]
