"""Requests through a real Gateway: shares by counting, a shadow, a backup and back, and calls of gRPC over pods."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.online.traffic import (
    Routing,
    build_grpc_route,
    build_http_route,
    build_routes,
    detect_mirroring,
    format_authority,
    format_path_prefix,
)
from tests.cluster.echoes import (
    TEAM,
    Echoes,
    call,
    count_answers,
    echoes,
    gateway_address,
    keep_requesting,
    seconds_until,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.cluster

REQUESTS = int(os.environ.get("SCANFLOW_TEST_REQUESTS", "20000"))
"""How many are answered while shares change."""


@pytest.fixture(scope="module")
def traffic_gateway(cluster: Cluster) -> Iterator[Echoes]:
    with echoes(cluster, "traffic") as gateway:
        yield gateway


def routing(here: Echoes, name: str, **shares: float) -> Routing:
    return Routing(app=here.app, team=TEAM, namespace=here.namespace, name=name, gateway=here.gateway, shares=shares)


def test_a_gateway_shares_requests_out_by_weight_and_a_backup_takes_over_and_hands_back(
    traffic_gateway: Echoes,
) -> None:
    for name in ("blue", "green", "spare"):
        traffic_gateway.server(name)
    traffic_gateway.ready("blue", "green", "spare")
    url = f"http://{gateway_address(traffic_gateway.cluster)}{format_path_prefix(traffic_gateway.namespace, 'echo')}"

    def time_switch(**shares: float) -> float:
        traffic_gateway.route(build_http_route(routing(traffic_gateway, "echo", **shares)))
        only = next(iter(shares))
        return seconds_until(lambda: count_answers(url, 5) == {only: 5}, f"all calls go to {only}", patience_s=20)

    time_switch(blue=1.0)
    assert call(f"{url}/v2/models/echo?a=b")["path"] == "/v2/models/echo?a=b"
    traffic_gateway.route(build_http_route(routing(traffic_gateway, "echo", blue=0.7, green=0.3)))
    seconds_until(lambda: count_answers(url, 4)["green"], "some calls go to green", patience_s=20)
    shares = count_answers(url, 100)
    assert 65 <= shares["blue"] <= 75, shares
    assert shares["blue"] + shares["green"] == 100
    took = [time_switch(green=1.0), time_switch(spare=1.0), time_switch(green=1.0)]
    assert count_answers(url, 100) == {"green": 100}
    print(
        f"\n70/30 of 100: {dict(shares)}; green, backup, back after {', '.join(f'{seconds:.1f} s' for seconds in took)}"
    )


def test_a_shadow_gets_a_copy_of_each_request(traffic_gateway: Echoes) -> None:
    for name in ("stable", "shadow"):
        traffic_gateway.server(name)
    traffic_gateway.ready("stable", "shadow")
    url = (
        f"http://{gateway_address(traffic_gateway.cluster)}{format_path_prefix(traffic_gateway.namespace, 'mirrored')}"
    )
    gateway = traffic_gateway.cluster.get("Gateway", "public", traffic_gateway.namespace)
    assert gateway is not None
    gateway_class = traffic_gateway.cluster.get("GatewayClass", gateway["spec"]["gatewayClassName"])
    assert gateway_class is not None
    shadowed = replace(
        routing(traffic_gateway, "mirrored", stable=1.0), mirror="shadow", mirroring=detect_mirroring(gateway_class)
    )
    routes = build_routes(shadowed)
    traffic_gateway.route(*(route for route in routes if route["kind"] != "GRPCRoute"))  # these echoes speak HTTP
    seconds_until(lambda: count_answers(url, 1) == {"stable": 1}, "the route answers", patience_s=20)
    before = traffic_gateway.count("shadow")
    assert count_answers(url, 50) == {"stable": 50}
    seconds_until(lambda: traffic_gateway.count("shadow") - before == 50, "the shadow has got 50 copies", patience_s=10)


@pytest.mark.timeout(900)
def test_no_request_fails_while_shares_change(traffic_gateway: Echoes) -> None:
    for name in ("old", "new"):
        traffic_gateway.server(name)
    traffic_gateway.ready("old", "new")
    path = format_path_prefix(traffic_gateway.namespace, "changed")
    traffic_gateway.route(build_http_route(routing(traffic_gateway, "changed", old=1.0)))
    address = gateway_address(traffic_gateway.cluster)
    seconds_until(lambda: count_answers(f"http://{address}{path}", 1) == {"old": 1}, "the route answers", patience_s=20)
    steps = [{"old": 0.9, "new": 0.1}, {"old": 0.5, "new": 0.5}, {"new": 1.0}, {"old": 1.0}] * 3
    with keep_requesting(address, path, callers=3) as answered:
        for shares in steps:
            traffic_gateway.route(build_http_route(routing(traffic_gateway, "changed", **shares)))
            enough = answered.total() + REQUESTS // len(steps)
            seconds_until(partial(_has_reached, answered, enough), "requests came", patience_s=300)
    assert set(answered) == {"old", "new"}, answered
    assert answered.total() >= REQUESTS
    print(f"\n{answered.total()} requests over {len(steps)} changes: {dict(answered)}")


def _has_reached(answered: Counter[str], enough: int) -> bool:
    return answered.total() >= enough


def test_calls_of_one_grpc_channel_are_balanced_over_pods(traffic_gateway: Echoes) -> None:
    import grpc

    traffic_gateway.server("pods", replicas=3, grpc=True)
    traffic_gateway.ready("pods")
    traffic_gateway.route(build_grpc_route(routing(traffic_gateway, "talk", pods=1.0)))
    authority = format_authority(traffic_gateway.namespace, "talk")
    with grpc.insecure_channel(
        gateway_address(traffic_gateway.cluster), options=[("grpc.default_authority", authority)]
    ) as channel:
        live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")

        seen = set[bytes]()

        def is_routed() -> bool:
            """An accepted route is in effect a moment later, and so is the last pod that became ready."""
            try:
                seen.add(live(b"", timeout=10, wait_for_ready=True))
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return False
                raise
            return len(seen) == 3

        wait_until(is_routed, "the Gateway routes calls to all three pods", patience_s=20)
        answered: Counter[bytes] = Counter(live(b"", timeout=10, wait_for_ready=True) for _ in range(60))
    assert len(answered) == 3
    assert min(answered.values()) >= 15, answered
    print(f"\n60 calls of one channel: {sorted(answered.values())}")
