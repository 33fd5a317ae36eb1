"""Bodies of several parts, which no route takes, and streams, whatever they are asked for."""

from __future__ import annotations

import os
from functools import partial
from typing import Any
from urllib.parse import quote

import httpcore2
import hypothesis
import psutil
import pytest
from hypothesis import HealthCheck

from scanflow.backends.log_reader import LogPage, LogPart
from scanflow_server.app import create_app
from tests.http_requests import http_client
from tests.security.test_teams import ROUTES
from tests.security.two_teams import Two
from tests.waiting import patient, wait_until

HTTP = http_client(timeout=patient(60))
FORM = {"files": {"file": ("model.pkl", b"\x80\x04N.", "application/octet-stream")}, "data": {"name": "alpha"}}
STREAM_MEDIA = {"text/event-stream", "application/x-ndjson", "application/octet-stream"}
NOT_YET = ("/files", "/outputs", "/values")
"""What a step that has not run lacks."""

SILENT_S, MOST_BYTES, MOST_GROWTH_BYTES = 0.2, 2**16, 128 * 2**20
EXAMPLES = hypothesis.settings(
    max_examples=10,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_a_body_of_several_parts_is_refused_by_each_route_with_what_to_send(two: Two) -> None:
    before = two.count_rows()
    writes = [route for route in ROUTES if not route.startswith("GET ")]
    assert len(writes) > 20
    for route in writes:
        response = two.ask(route, two.home, two.alphas, json=None, **FORM)
        assert response.status_code == 415, (route, response.text)
        assert "Send JSON with the header Content-Type: application/json" in response.json()["detail"], route
        assert response.headers["content-type"] == "application/problem+json", route
    assert two.count_rows() == before


class EndlessLog:
    """Says something whenever it is read."""

    def read(self) -> LogPage:
        return LogPage((LogPart("one", b"x" * 1000),), ended=False)

    def close(self) -> None:
        pass


def list_streams(document: dict[str, Any]) -> list[str]:
    return [
        path
        for path, methods in document["paths"].items()
        for answer in methods.get("get", {}).get("responses", {}).values()
        if STREAM_MEDIA & set(answer.get("content", {}))
    ]


@pytest.mark.slow
def test_a_stream_begins_whatever_is_requested_and_leaves_nothing_behind(two: Two) -> None:
    import schemathesis

    document = create_app(two.context, control=False).openapi()
    paths, before = list_streams(document), psutil.Process(os.getpid()).memory_info().rss
    two.context.deployer.log_reader = lambda of: EndlessLog()  # type: ignore[method-assign]
    assert {"/api/v1/events", "/api/v1/runs/{run}/events", "/api/v1/operations/{id}/events"} <= set(paths)
    schema = schemathesis.openapi.from_dict(document)
    for path in paths:
        check = partial(check_stream, two, path)

        def ask(case: Any) -> None:
            check(case)  # noqa: B023  it is asked at once

        EXAMPLES(hypothesis.given(case=schema[path]["GET"].as_strategy())(ask))()
    wait_until(lambda: two.context.streams.open == 0, "all streams have ended")
    assert psutil.Process(os.getpid()).memory_info().rss - before < MOST_GROWTH_BYTES


def check_stream(two: Two, path: str, case: Any) -> None:
    """Ask for the stream of a thing that is there: it begins within the client's timeout, or is refused."""
    place = path.removeprefix("/api/v1")
    for name, value in two.alphas.items():
        kind, _, word = name.partition(".")
        if place.startswith(f"/{kind}/"):
            place = place.replace(f"{{{word}}}", quote(value, safe=""))
    asked = {name: text for name, text in (case.headers or {}).items() if name.lower() == "last-event-id"}
    headers = {**asked, **two.home, "accept": "text/event-stream"}
    with HTTP.stream("GET", two.url + place, params=dict(case.query or {}), headers=headers) as reply:
        assert reply.status_code < 500 or (reply.status_code, "retry-after" in reply.headers) == (503, True), place
        assert reply.status_code != 404 or place.endswith(NOT_YET), place
        if reply.status_code != 200:
            assert reply.headers["content-type"] == "application/problem+json"
            return
        stream, count = reply.extensions["network_stream"], 0
        try:
            while count < MOST_BYTES and (block := stream.read(4096, timeout=SILENT_S)):
                count += len(block)
        except httpcore2.ReadTimeout:  # it says nothing now, and goes on
            return
