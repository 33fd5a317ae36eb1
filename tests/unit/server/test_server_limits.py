"""What one client can take of the server, and what is refused before it is queued."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from scanflow.errors import NotFoundError, UnavailableError
from scanflow_server.context import ServerContext
from scanflow_server.limits import MAX_BODY_BYTES, LimitedStream, StreamLimit
from scanflow_server.store import operations
from scanflow_server.store.operations import OperationRow
from tests.asking import HTTP
from tests.unit.server.answering import a_service
from tests.unit.server.keeping import Api, deployed
from tests.waiting import PATIENCE_S, until


@pytest.fixture
def context(context: ServerContext) -> ServerContext:
    context.streams = StreamLimit(2)
    return context


def test_there_are_only_so_many_streams_and_one_that_is_closed_makes_room(api: Api) -> None:
    asked: dict[str, Any] = {"method": "GET", "url": "/events", "headers": {"accept": "text/event-stream"}}
    with ExitStack() as stack:
        for _ in range(2):
            assert stack.enter_context(api.stream(**asked)).status_code == 200
        refused = api.get("/events", headers=asked["headers"])
        assert (refused.status_code, "SCANFLOW_MAX_STREAMS" in refused.json()["detail"]) == (503, True)
        assert api.get("/events").status_code == 200, "all else is answered"
    until(lambda: api.context.streams.open == 0, "the server has seen that they are closed")


def test_a_stream_whose_client_does_not_read_is_closed() -> None:
    async def blocks() -> AsyncIterator[bytes]:
        while True:
            yield b"more"

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def stream(slots: StreamLimit) -> None:
        response = LimitedStream(blocks(), slots, media_type="text/plain", stalled_s=0.01)
        with pytest.raises(UnavailableError):
            LimitedStream(blocks(), slots, media_type="text/plain")
        await response({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)

    slots = StreamLimit(1)
    asyncio.run(asyncio.wait_for(stream(slots), PATIENCE_S))
    assert slots.open == 0


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_refused(api: Api, chunked: bool) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 2**20 + 1):
            yield b" " * 2**20

    headers = {"content-type": "application/json"}
    content: Any = parts() if chunked else b"".join(parts())
    refused = api.post("/events", content=content, headers=headers)
    assert (refused.status_code, "the maximum" in refused.json()["detail"]) == (413, True)


def test_a_server_whose_disk_is_full_is_not_ready(api: Api) -> None:
    ready = str(api.base_url).removesuffix("api/v1/") + "readyz"
    assert HTTP.get(ready).status_code == 200
    (api.context.settings.folder / ".ready").symlink_to("/dev/full")
    refused = HTTP.get(ready, headers=api.headers)
    assert (refused.status_code, "No space left" in refused.json()["detail"]) == (503, True)


def test_a_name_that_another_team_serves_is_refused_at_once_and_the_owner_told(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert deployed(api).status_code == 202
    told = deployed(api, team="red")
    assert (told.status_code, "'mnist' of the team 'ml'" in told.json()["detail"]) == (422, True)
    monkeypatch.setattr(type(api.context.deployer), "services", lambda _: [a_service("digits", "ready")])
    told = deployed(api)
    assert (told.status_code, "'a' of the team 't'" in told.json()["detail"]) == (422, True)


def test_a_model_that_does_not_exist_is_refused_before_it_is_queued(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(_: ServerContext, model: str, tracker: str | None) -> None:
        raise NotFoundError(f"There is no {model}, {tracker}.")

    monkeypatch.setattr(ServerContext, "find_model", find)
    with api.context.store.write() as connection:
        slow = OperationRow(id="slow", kind="change", service="digits", app="a", request={}, created=1.0)
        operations.add(connection, slow)
    assert deployed(api).status_code == 404
    monkeypatch.setattr(type(api.context.deployer), "services", lambda _: [a_service("digits", "ready")])
    refused = api.patch("/services/digits", json={"model": "models:/nope/1", "weight": 0.1})
    assert (refused.status_code, "models:/nope/1" in refused.json()["detail"]) == (404, True)
    with api.context.store.read() as connection:
        assert [one.id for one in operations.list_open(connection)] == ["slow"]
