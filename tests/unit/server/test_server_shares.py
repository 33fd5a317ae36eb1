"""What one token and one team take of the server: requests at once, and bytes of the database."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

import pytest

from scanflow.backends.function_store import compute_name
from scanflow.deployer.functions_by_value import read_versions
from scanflow.errors import OverLimitError
from scanflow_server.control.retention import DAY_S, RetentionController
from scanflow_server.request_shares import RequestShares
from scanflow_server.server_context import ServerContext
from scanflow_server.store import pruning, run_store, usage
from scanflow_server.token_roles import TokenHolder
from tests.http_requests import HTTP
from tests.server import bearer
from tests.unit.server.server_rows import Api, a_run

GREEDY, MATE, OTHER = TokenHolder("ada", "viewer", "red"), TokenHolder("bob", "viewer", "red"), TokenHolder("ops")


def test_a_token_waits_for_its_own_requests_and_others_do_not() -> None:
    async def run_shares() -> None:
        shares = RequestShares(8)
        for _ in range(shares.max_of_token):
            await shares.acquire(GREEDY)
        waiting = [asyncio.ensure_future(shares.acquire(GREEDY)) for _ in range(shares.max_waiting)]
        await asyncio.sleep(0)
        with pytest.raises(OverLimitError, match="SCANFLOW_MAX_REQUESTS"):
            await shares.acquire(GREEDY)
        assert (shares.answered, shares.waiting, shares.refused) == (2, shares.max_waiting, 1)
        for caller in (MATE, OTHER):
            await asyncio.wait_for(shares.acquire(caller), 5)
        shares.release(MATE)
        shares.release(OTHER)
        waiting.pop().cancel()
        await asyncio.sleep(0)
        for turn in waiting:
            assert shares.answered <= shares.max_of_token
            shares.release(GREEDY)
            await asyncio.wait_for(turn, 5)
        for _ in range(shares.max_of_token):
            shares.release(GREEDY)
        assert (shares.answered, shares.waiting) == (0, 0)

    asyncio.run(run_shares())


def test_a_team_has_half_and_tokens_that_wait_alternate() -> None:
    async def run_shares() -> None:
        shares = RequestShares(4)
        order = list[str]()

        async def ask(caller: TokenHolder) -> None:
            await shares.acquire(caller)
            order.append(caller.name)

        third = TokenHolder("eve", "viewer", "red")
        await ask(GREEDY)
        await ask(MATE)
        turns = [asyncio.ensure_future(ask(caller)) for caller in (GREEDY, GREEDY, third)]
        await asyncio.sleep(0)
        assert order == ["ada", "bob"], "the team has half of four"
        await ask(OTHER)
        shares.release(GREEDY)
        await turns[0]
        shares.release(GREEDY)
        await turns[2]
        assert order == ["ada", "bob", "ops", "ada", "eve"], "eve came before ada's third"
        turns[1].cancel()

    asyncio.run(run_shares())


def test_a_request_given_up_at_its_turn_gives_the_turn_on() -> None:
    async def run_shares() -> None:
        shares = RequestShares(4)
        await shares.acquire(GREEDY)
        first, second = (asyncio.ensure_future(shares.acquire(GREEDY)) for _ in range(2))
        await asyncio.sleep(0)
        shares.release(GREEDY)
        first.cancel()
        await asyncio.wait_for(second, 5)
        shares.release(GREEDY)
        assert (shares.answered, shares.waiting) == (0, 0)

    asyncio.run(run_shares())


def read_metrics(api: Api) -> str:
    return HTTP.get(api.base_url.join("/metrics"), headers=dict(api.headers)).text


def test_a_greedy_token_is_refused_with_when_to_come_again_and_another_is_answered(api: Api) -> None:
    tokens = {
        name: bearer(api.post("/tokens", json={"name": name, "role": "viewer", "team": "red"}).json()["token"])
        for name in ("greedy", "modest")
    }
    shares = api.context.requests
    shares.max_waiting = 0
    greedy = TokenHolder("greedy", team="red")
    for _ in range(shares.max_of_token):
        asyncio.run(shares.acquire(greedy))
    refused = api.get("/runs", headers=tokens["greedy"])
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["type"] == "urn:scanflow:error:OverLimitError"
    assert api.get("/runs", headers=tokens["modest"]).status_code == 200
    for _ in range(shares.max_of_token):
        shares.release(greedy)
    assert api.get("/runs", headers=tokens["greedy"]).status_code == 200
    assert 'scanflow_things{kind="requests_refused"} 1.0' in read_metrics(api)
    assert (shares.answered, shares.waiting) == (0, 0)


@pytest.fixture
def context(context: ServerContext) -> ServerContext:
    context.settings = context.settings.model_copy(update={"max_team_mib": 1})
    return context


def test_what_a_team_stores_is_limited_and_what_is_deleted_makes_space(api: Api) -> None:
    def event(size: int) -> dict[str, Any]:
        return {"at": 1.0, "type": "sample", "app": "mnist", "subject": "agent/a", "data": {"text": "x" * size}}

    def token(team: str) -> dict[str, str]:
        body = {"name": f"of-{team}", "role": "editor", "team": team}
        return bearer(api.post("/tokens", json=body).json()["token"])

    red, blue = token("red"), token("blue")
    for _ in range(5):
        assert api.post("/events", json=[event(200_000)], headers=red).status_code == 201
    sample = {"app": "mnist", "items": [{"id": "one", "row": {"text": "x" * 100_000}}]}
    for path, body in (("/events", [event(10), event(100_000)]), ("/labels", sample)):
        refused = api.post(path, json=body, headers=red)
        assert refused.status_code == 413, refused.text
        detail = refused.json()["detail"]
        assert all(word in detail for word in ("'red'", "1 MiB", "SCANFLOW_MAX_TEAM_MIB", "Nothing was stored"))
        assert api.post(path, json=body, headers=blue).status_code == 201
    assert len(api.get("/events", headers=red).json()) == 5
    assert api.get("/labels", headers=red).json() == []
    assert 'scanflow_stored_bytes{team="red"} 1.0' in read_metrics(api)
    with api.context.store.write() as connection:
        run_store.add(connection, a_run("bold-fox-001", active=False, definition={"parameters": {"n": 1}}))
        assert usage.list_all(connection) == usage.sum_up(connection)
        pruning.forget_events(connection, 2, at=1.0, most=100)
        pruning.forget_run(connection, "bold-fox-001")
        after = usage.list_all(connection)
        assert {team: n_bytes for team, n_bytes in after.items() if n_bytes} == usage.sum_up(connection)
    assert api.post("/events", json=[event(100_000)], headers=red).status_code == 201


def test_functions_count_once_for_each_team_that_sent_them_until_they_are_deleted(api: Api) -> None:
    def send(team: str, content: bytes) -> int:
        body = {"pickled": base64.b64encode(content).decode(), **read_versions()}
        return api.post("/functions", json=body, headers=tokens[team]).status_code

    def count_rows() -> dict[str, int]:
        with api.context.store.read() as connection:
            return usage.list_all(connection)

    tokens = {
        team: bearer(api.post("/tokens", json={"name": team, "role": "editor", "team": team}).json()["token"])
        for team in ("red", "blue")
    }
    large, small = bytes(700_000), bytes(10)
    assert [send("red", payload) for payload in (large, large, b"x" * 700_000, small)] == [201, 201, 413, 201]
    assert send("blue", large) == 201
    assert count_rows() == {"red": 700_010, "blue": 700_000}
    assert not (api.context.settings.folder / "functions" / "red" / compute_name(b"x" * 700_000)).exists()
    assert len(list(api.context.settings.home.rglob("*.pickle"))) - 3 == 2, "beside the three notes of who sent them"

    api.context.clock = lambda: time.time() + 400 * DAY_S
    RetentionController(api.context).forget()
    assert count_rows() == {"red": 0, "blue": 0}
    assert send("red", b"x" * 700_000) == 201
