"""Routes: who answers for a service, and whether a Gateway has taken it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.backends.kubernetes.online.closed_routes import build_closed_routes
from scanflow.backends.kubernetes.online.traffic import (
    Routing,
    build_http_route,
    build_routes,
    compute_shares,
    detect_mirroring,
    find_gateway_url,
)
from scanflow.errors import UnsupportedError
from tests.manifests import assert_manifests


def routing(**changes: Any) -> Routing:
    fields: dict[str, Any] = {"app": "shop", "team": "data", "name": "serving"}
    fields |= {"namespace": "scanflow-shop-data", "gateway": "infra/public", "shares": {"serving-3": 1.0}} | changes
    return Routing(**fields)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("route", {}),
        ("route-canary", {"shares": {"serving-3": 0.9, "serving-4": 0.1}, "domain": "models.example.org"}),
        ("route-shadow", {"mirror": "serving-4"}),
        ("route-shadow-traefik", {"mirror": "serving-4", "mirroring": "traefik"}),
        ("route-backup", {"shares": {"spare": 1.0}}),
    ],
)
def test_a_service_is_routed(name: str, changes: dict[str, Any]) -> None:
    assert_manifests(name, *build_routes(routing(**changes)))


@pytest.mark.parametrize("grpc", [True, False])
def test_a_service_of_named_clients_is_routed_at_its_own_host(grpc: bool) -> None:
    closed = routing(shares={"serving-3": 0.9, "serving-4": 0.1}, domain="models.example.org")
    assert_manifests(f"route-clients{'' if grpc else '-http'}", *build_closed_routes(closed, grpc=grpc))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=4).filter(any))
def test_weights_are_whole_and_near_the_shares(parts: list[int]) -> None:
    shares = {f"serving-{place}": part / sum(parts) for place, part in enumerate(parts)}
    route = build_http_route(routing(shares=shares))
    assert sum(backend["weight"] for backend in route["spec"]["rules"][0]["backendRefs"]) == 1000
    assert compute_shares(route) == pytest.approx(shares, abs=0.0011)


def test_a_route_without_any_weight_shares_out_nothing() -> None:
    assert compute_shares(build_http_route(routing(shares={"a": 0.0, "b": 0.0}))) == {"a": 0.0, "b": 0.0}


@pytest.mark.parametrize(
    ("listeners", "url"),
    [
        ([("HTTP", 80)], "http://10.0.0.7"),
        ([("TCP", 9000), ("HTTPS", 8443)], "https://10.0.0.7:8443"),
        ([("TCP", 9000)], None),
    ],
)
def test_a_gateway_says_where_it_is(listeners: list[tuple[str, int]], url: str | None) -> None:
    gateway = {
        "spec": {"listeners": [{"protocol": protocol, "port": port} for protocol, port in listeners]},
        "status": {"addresses": [{"type": "IPAddress", "value": "10.0.0.7"}]},
    }
    assert find_gateway_url(gateway) == url
    assert find_gateway_url({**gateway, "status": {}}) is None


def gateway_class(controller: str = "example.org/it", *features: str) -> dict[str, Any]:
    status = {"supportedFeatures": [{"name": feature} for feature in features]} if features else {}
    return {"metadata": {"name": "public"}, "spec": {"controllerName": controller}, "status": status}


def test_requests_are_copied_as_the_gateway_can() -> None:
    assert detect_mirroring(gateway_class("traefik.io/gateway-controller", "HTTPRoute")) == "traefik"
    assert detect_mirroring(gateway_class("example.org/it", "HTTPRoute", "HTTPRouteRequestMirror")) == "filter"
    assert detect_mirroring(gateway_class()) == "filter"
    with pytest.raises(UnsupportedError, match="shadow: the Gateways of class 'public' copy no requests"):
        detect_mirroring(gateway_class("example.org/it", "HTTPRoute"))
