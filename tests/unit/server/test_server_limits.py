"""What one client can take of the server, and what is refused before it is queued."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanflow.errors import NotFoundError, UnavailableError
from scanflow_server.server_context import ServerContext
from scanflow_server.store import intent_store
from scanflow_server.stream_limits import TOKEN_CHECK_S, LimitedStream, StreamLimit
from scanflow_server.token_roles import TokenHolder
from tests.http_requests import HTTP
from tests.server import bearer
from tests.unit.server.answering import a_service
from tests.unit.server.server_rows import Api, deploy_service, make_request_row
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def context(context: ServerContext) -> ServerContext:
    context.streams = StreamLimit(8)
    return context


def test_there_are_only_so_many_streams_and_one_that_is_closed_makes_space(api: Api) -> None:
    def add(name: str, team: str) -> dict[str, str]:
        token = api.post("/tokens", json={"name": name, "role": "viewer", "team": team}).json()["token"]
        return bearer(token) | {"accept": "text/event-stream"}

    def refuse(headers: dict[str, str]) -> str:
        refused = api.get("/events", headers=headers)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        detail: str = refused.json()["detail"]
        assert "SCANFLOW_MAX_STREAMS" in detail
        return detail

    vi, bo, cy, ann, ben = add("vi", "red"), add("bo", "red"), add("cy", "red"), add("ann", "blue"), add("ben", "blue")
    home = {"accept": "text/event-stream"}
    with ExitStack() as stack:

        def open_two(headers: dict[str, str]) -> None:
            for _ in range(2):
                stream = stack.enter_context(api.stream("GET", "/events", headers=headers))
                assert stream.status_code == 200

        open_two(vi)
        assert "The token 'vi' has 2 streams open, the most that one token may have" in refuse(vi)
        open_two(bo)
        assert "The team 'red' has 4 streams open, the most that one team may have" in refuse(cy)
        open_two(ann)
        open_two(home)
        assert "8 streams are open, the maximum" in refuse(ben)
        assert api.get("/events", headers=get_bearer(vi)).status_code == 200, "all else is answered"
    wait_until(lambda: api.context.streams.open == 0, "the server has seen that they are closed")
    with api.stream("GET", "/events", headers=vi) as stream:
        assert stream.status_code == 200


def get_bearer(headers: dict[str, str]) -> dict[str, str]:
    return {"authorization": headers["authorization"]}


CALLERS = [
    *(TokenHolder(name, "viewer", team) for name in ("vi", "bo", "cy") for team in ("red", "blue")),
    TokenHolder("home", "admin", None),
    TokenHolder("ops", "viewer", None),
    None,
]


@given(
    max_streams=st.integers(1, 12), steps=st.lists(st.one_of(st.sampled_from(CALLERS), st.integers(0, 20)), max_size=60)
)
@settings(deadline=None, database=None, derandomize=True)
def test_no_token_has_more_than_a_quarter_of_the_streams_and_no_team_more_than_half(
    max_streams: int, steps: list[TokenHolder | int | None]
) -> None:
    """A caller opens a stream; a number closes one of those that are open."""
    streams, opened = StreamLimit(max_streams), list[tuple[TokenHolder | None, ExitStack]]()
    for step in steps:
        if isinstance(step, int):
            if opened:
                opened.pop(step % len(opened))[1].close()
        else:
            others = [caller for caller, _ in opened]
            fits = len(others) < max_streams
            fits = fits and (step is None or others.count(step) < max(1, max_streams // 4))
            if step is not None and step.team is not None:
                of_team = [caller for caller in others if caller is not None and caller.team == step.team]
                fits = fits and len(of_team) < max(1, max_streams // 2)
            stream = ExitStack()
            if fits:
                stream.enter_context(streams.hold(step))
                opened.append((step, stream))
            else:
                with pytest.raises(UnavailableError):
                    stream.enter_context(streams.hold(step))
        assert streams.open == len(opened)


@pytest.mark.parametrize("is_page", [False, True])
def test_a_stream_where_the_client_does_not_read_is_closed(*, is_page: bool) -> None:
    sent = list[Any]()

    async def blocks() -> AsyncIterator[bytes]:
        while True:
            yield b"more"

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def is_still_valid() -> bool:
        return not sent

    async def stream(streams: StreamLimit) -> None:
        check_s = math.inf if is_page else TOKEN_CHECK_S
        response = LimitedStream(blocks(), streams, media_type="text/plain", stalled_s=0.01, check_s=check_s)
        state = {"still": is_still_valid} if is_page else {}
        await response({"type": "http", "asgi": {"spec_version": "2.3"}, "state": state}, receive, send)

    streams = StreamLimit(1)
    asyncio.run(asyncio.wait_for(stream(streams), PATIENCE_S))
    assert (streams.open, sent[1].get("body")) == (0, None if is_page else b"more"), "a page has an end, and no more"


def test_a_stream_in_which_nothing_happens_ends_when_its_token_is_gone() -> None:
    valid = [True, True, False]

    async def blocks() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b"never"

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(_message: Any) -> None: ...

    async def is_still_valid() -> bool:
        return valid.pop(0) if len(valid) > 1 else valid[0]

    async def stream(streams: StreamLimit) -> None:
        response = LimitedStream(blocks(), streams, media_type="text/plain", check_s=0.001)
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}, "state": {"still": is_still_valid}}
        await response(scope, receive, send)

    streams = StreamLimit(1)
    asyncio.run(asyncio.wait_for(stream(streams), PATIENCE_S))
    assert (streams.open, valid) == (0, [False])


def test_a_server_with_a_full_disk_is_not_ready(api: Api) -> None:
    ready = str(api.base_url).removesuffix("api/v1/") + "readyz"
    assert HTTP.get(ready).status_code == 200
    (api.context.settings.folder / ".ready").symlink_to("/dev/full")
    refused = HTTP.get(ready, headers=api.headers)
    assert (refused.status_code, "No space left" in refused.json()["detail"]) == (503, True)


def test_a_name_that_another_team_serves_is_refused_at_once_and_the_owner_named(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert deploy_service(api).status_code == 202
    response = deploy_service(api, team="red")
    assert (response.status_code, "'mnist' of the team 'ml'" in response.json()["detail"]) == (422, True)
    monkeypatch.setattr(type(api.context.deployer), "services", lambda _: [a_service("digits", "ready")])
    response = deploy_service(api)
    assert (response.status_code, "'a' of the team 't'" in response.json()["detail"]) == (422, True)


def test_a_model_that_does_not_exist_is_refused_before_it_is_queued(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(_: ServerContext, model: str, tracker: str | None, *, team: str) -> None:
        raise NotFoundError(f"There is no {model}, {tracker}, {team}.")

    monkeypatch.setattr(ServerContext, "find_model", find)
    with api.context.store.write() as connection:
        intent_store.add(connection, make_request_row("slow", app="a"))
    assert deploy_service(api).status_code == 404
    monkeypatch.setattr(type(api.context.deployer), "services", lambda _: [a_service("digits", "ready")])
    refused = api.patch("/services/digits", json={"model": "models:/nope/1", "weight": 0.1})
    assert (refused.status_code, "models:/nope/1" in refused.json()["detail"]) == (404, True)
    with api.context.store.read() as connection:
        assert [change.id for change in intent_store.list_open_changes(connection)] == ["slow"]
