"""Whose a token is, while the server reads the tokens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scanflow.http.home_token import hash_token
from scanflow_server.auth import Callers
from scanflow_server.change_notifier import ChangeNotifier
from scanflow_server.store import agent_store, token_store
from scanflow_server.store.token_store import TokenRow
from scanflow_server.token_roles import TokenHolder
from tests.waiting import PATIENCE_S


def test_a_request_that_comes_while_the_tokens_are_first_read_is_let_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reading, go_on = threading.Event(), threading.Event()

    @contextmanager
    def read() -> Iterator[None]:
        reading.set()
        assert go_on.wait(PATIENCE_S)
        yield

    store, settings = SimpleNamespace(read=read, file=None), SimpleNamespace(home=tmp_path)
    context: Any = SimpleNamespace(store=store, settings=settings, token_notifier=ChangeNotifier())
    monkeypatch.setattr(
        token_store,
        "load_valid",
        lambda _connection: {hash_token("secret"): TokenRow(name="ada", role="viewer", team="vision", created=1.0)},
    )

    monkeypatch.setattr(agent_store, "list_all", lambda _connection: [])

    async def two() -> list[TokenHolder | None]:
        names = Callers(context)
        first = asyncio.create_task(names.find_caller("secret"))
        await asyncio.to_thread(reading.wait, PATIENCE_S)
        second = asyncio.create_task(names.find_caller("secret"))
        await asyncio.sleep(0)  # it has looked by now
        go_on.set()
        return [await first, await second]

    assert asyncio.run(two()) == [TokenHolder("ada", "viewer", "vision")] * 2


@pytest.mark.parametrize(("file", "kept_s", "missed_s"), [("/home/server.db", 60.0, 60.0), (None, 2.0, 0.2)])
def test_tokens_are_read_again_sooner_where_another_server_may_change_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str | None, kept_s: float, missed_s: float
) -> None:
    now, readings = [0.0], list[float]()

    @contextmanager
    def read() -> Iterator[None]:
        readings.append(now[0])
        yield

    store, settings = SimpleNamespace(read=read, file=file), SimpleNamespace(home=tmp_path)
    context: Any = SimpleNamespace(store=store, settings=settings, token_notifier=ChangeNotifier())
    ada = TokenRow(name="ada", role="viewer", team="vision", created=1.0)
    monkeypatch.setattr(token_store, "load_valid", lambda _connection: {hash_token("secret"): ada})
    monkeypatch.setattr(agent_store, "list_all", lambda _connection: [])
    for token, read_again_s in (("secret", kept_s), ("made by another server", missed_s)):
        readings.clear()
        names = Callers(context, clock=lambda: now[0])
        for now[0] in (0.0, read_again_s - 0.1, read_again_s + 0.1, read_again_s + 0.2):
            assert (asyncio.run(names.find_caller(token)) is None) is (token != "secret")
        assert readings == [0.0, read_again_s + 0.1]
        context.token_notifier.notify()
        asyncio.run(names.find_caller(token))
        assert len(readings) == 3, "this server has changed one"
