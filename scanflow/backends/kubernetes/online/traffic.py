"""Who answers the requests for a service: routes of a Gateway, and what their status says. Pure.

HTTP is told apart by the path: ``http://gateway/<namespace>/<service>/v2/models/...`` reaches an instance as
``/v2/models/...``. That needs no DNS and one certificate, and all that speaks to a service puts its paths behind the
address that it was given. Calls of gRPC have a path that cannot be prefixed, so they are told apart by their host: the
authority ``<service>.<namespace>``, with a domain behind it where the cluster's settings name one. Both routes share
their requests out one by one, also those of one connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from scanflow.backends.kubernetes.kinds import KINDS, Manifest
from scanflow.backends.kubernetes.labels import labels_of, namespace_of
from scanflow.errors import UnsupportedError

HTTP_PORT: Final = 8080
GRPC_PORT: Final = 8081
"""Of each instance, and of the Services before them; the second's ``appProtocol`` is :data:`H2C`."""

H2C: Final = "kubernetes.io/h2c"
"""Says of a Service's port that it speaks HTTP/2 without TLS, which a Gateway has to know for gRPC."""

Mirroring = Literal["filter", "traefik"]
"""How a Gateway copies requests: by a filter of the route, or by an object that only Traefik knows."""

_TRAEFIK: Final = "traefik.io/gateway-controller"
_WHOLE: Final = 1000  # weights are whole numbers: a tenth of a percent


@dataclass(frozen=True, slots=True)
class Routing:
    """Which Services of the namespace answer for a service, and how much of it each."""

    app: str
    team: str
    name: str
    gateway: str
    """``namespace/name`` of the Gateway."""

    shares: Mapping[str, float] = field(default_factory=dict)
    """For each Service its share, from 0 to 1: the stable revision and a canary, or a backup alone."""

    mirror: str | None = None
    """The Service that gets a copy of each request, whose answers nobody waits for: a shadow."""

    mirroring: Mirroring = "filter"
    """How that is done: see :func:`mirroring_of`."""

    domain: str | None = None
    """What stands behind ``<service>.<namespace>`` in the host that calls of gRPC are for."""

    @property
    def namespace(self) -> str:
        return namespace_of(self.app, self.team)


def routes(routing: Routing) -> list[Manifest]:
    """Return all objects that lead requests to a service."""
    by_traefik = routing.mirror is not None and routing.mirroring == "traefik"
    return [*([_traefik_mirror(routing)] if by_traefik else []), http_route(routing), grpc_route(routing)]


def http_route(routing: Routing) -> Manifest:
    """Return the route of HTTP."""
    prefix = {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": path_of_service(routing.namespace, routing.name)}}],
        "filters": [{"type": "URLRewrite", "urlRewrite": {"path": prefix}}, *_mirror(routing, HTTP_PORT)],
        "backendRefs": _backends(routing, HTTP_PORT),
    }
    if routing.mirror is not None and routing.mirroring == "traefik":
        group = KINDS["TraefikService"].api_version.partition("/")[0]
        rule["backendRefs"] = [{"group": group, "kind": "TraefikService", "name": routing.name}]
    return _route("HTTPRoute", routing, {"rules": [rule]})


def grpc_route(routing: Routing) -> Manifest:
    """Return the route of gRPC. Traefik copies no calls of it."""
    filters = _mirror(routing, GRPC_PORT)
    rule = {**({"filters": filters} if filters else {}), "backendRefs": _backends(routing, GRPC_PORT)}
    host = authority_of(routing.namespace, routing.name, routing.domain)
    return _route("GRPCRoute", routing, {"hostnames": [host], "rules": [rule]})


def path_of_service(namespace: str, name: str) -> str:
    """Return what stands before the paths of a service at a Gateway."""
    return f"/{namespace}/{name}"


def authority_of(namespace: str, name: str, domain: str | None = None) -> str:
    """Return the host that calls of gRPC for a service name at a Gateway."""
    return ".".join([name, namespace, *([domain] if domain else [])])


def shares_of(route: Manifest) -> dict[str, float]:
    """Return for each Service its share, as a route has it now."""
    backends = route["spec"]["rules"][0].get("backendRefs", [])
    weights = {one["name"]: one.get("weight", 1) for one in backends}
    whole = sum(weights.values())
    return {name: weight / whole for name, weight in weights.items()} if whole else dict.fromkeys(weights, 0.0)


class RouteState(NamedTuple):
    """What the controllers of its Gateways say of a route."""

    accepted: bool
    """Whether each Gateway that it names has taken it as it is now."""

    parents: tuple[str, ...]
    """Those that have: ``namespace/name``."""

    problem: str | None
    """Why one has not, in its own words; None: none said anything."""


def route_state(route: Manifest) -> RouteState:
    """Return what a route's status says."""
    asked = {_parent(one, route) for one in route["spec"].get("parentRefs", ())}
    taken: set[str] = set()
    problem = None
    for parent in route.get("status", {}).get("parents", ()):
        found = {one["type"]: one for one in parent.get("conditions", ()) if _is_current(one, route)}
        bad = next((one for one in found.values() if one["status"] != "True"), None)
        if bad is not None:
            problem = f"{bad['type']}: {bad.get('message') or bad.get('reason')}"
        elif "Accepted" in found:
            taken.add(_parent(parent["parentRef"], route))
    return RouteState(asked <= taken and problem is None, tuple(sorted(taken)), problem)


def gateway_url(gateway: Manifest) -> str | None:
    """Return where clients reach a Gateway, by the first address that its controller gave it; None: it gave none."""
    addresses = gateway.get("status", {}).get("addresses", ())
    for listener in gateway["spec"].get("listeners", ()):
        scheme = {"HTTP": "http", "HTTPS": "https"}.get(listener["protocol"])
        if scheme and addresses:
            port = "" if listener["port"] == {"http": 80, "https": 443}[scheme] else f":{listener['port']}"
            return f"{scheme}://{addresses[0]['value']}{port}"
    return None


def mirroring_of(gateway_class: Manifest) -> Mirroring:
    """Return how the Gateways of a class copy requests to a shadow.

    Raises:
        UnsupportedError: they do not, as its status says.
    """
    if gateway_class["spec"]["controllerName"] == _TRAEFIK:
        return "traefik"  # a route with the filter is accepted, and answers 500
    said = gateway_class.get("status", {}).get("supportedFeatures")
    features = {one["name"] if isinstance(one, Mapping) else one for one in said or ()}
    if said is not None and "HTTPRouteRequestMirror" not in features:
        raise UnsupportedError(
            "The backend 'kubernetes' cannot honour shadow: the Gateways of class "
            f"{gateway_class['metadata']['name']!r} copy no requests. Give the version a small weight instead."
        )
    return "filter"


def _traefik_mirror(routing: Routing) -> Manifest:
    """Return Traefik's own object: the stable revision answers, and another gets a copy."""
    (stable,) = routing.shares
    copies = [{"name": routing.mirror, "port": HTTP_PORT, "percent": 100}]
    return _object("TraefikService", routing, {"mirroring": {"name": stable, "port": HTTP_PORT, "mirrors": copies}})


def _route(kind: str, routing: Routing, spec: Mapping[str, Any]) -> Manifest:
    namespace, _, name = routing.gateway.rpartition("/")
    parent = {"name": name, **({"namespace": namespace} if namespace else {})}
    return _object(kind, routing, {"parentRefs": [parent], **spec})


def _object(kind: str, routing: Routing, spec: Mapping[str, Any]) -> Manifest:
    return {
        "apiVersion": KINDS[kind].api_version,
        "kind": kind,
        "metadata": {
            "name": routing.name,
            "namespace": routing.namespace,
            "labels": labels_of(routing.app, routing.team, service=routing.name),
        },
        "spec": dict(spec),
    }


def _backends(routing: Routing, port: int) -> list[Manifest]:
    """Return the Services with weights that are whole numbers, and add up to what the shares add up to."""
    found: list[Manifest] = []
    before = given = 0.0
    for name, share in routing.shares.items():
        before += share
        weight = round(before * _WHOLE) - given
        given += weight
        found.append({"name": name, "port": port, "weight": int(weight)})
    return found


def _mirror(routing: Routing, port: int) -> list[Manifest]:
    if routing.mirror is None or routing.mirroring == "traefik":
        return []
    backend = {"name": routing.mirror, "port": port}
    return [{"type": "RequestMirror", "requestMirror": {"backendRef": backend}}]


def _parent(ref: Mapping[str, Any], route: Manifest) -> str:
    return f"{ref.get('namespace', route['metadata']['namespace'])}/{ref['name']}"


def _is_current(condition: Mapping[str, Any], route: Manifest) -> bool:
    generation = route["metadata"].get("generation", 0)
    return bool(condition.get("observedGeneration", generation) >= generation)
