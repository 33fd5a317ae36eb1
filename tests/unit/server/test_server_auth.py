"""Whose a token is, while the server reads the tokens."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from scanflow.home_token import token_hash
from scanflow_server.auth import TokenNames
from scanflow_server.store import tokens


def test_a_request_that_comes_while_the_tokens_are_first_read_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, go_on = threading.Event(), threading.Event()

    @contextmanager
    def read() -> Iterator[None]:
        reading.set()
        assert go_on.wait(60)
        yield

    context: Any = SimpleNamespace(store=SimpleNamespace(read=read))
    monkeypatch.setattr(tokens, "valid", lambda _connection: {token_hash("secret"): "ada"})

    async def two() -> list[str | None]:
        names = TokenNames(context)
        first = asyncio.create_task(names.owner("secret"))
        await asyncio.to_thread(reading.wait, 60)
        second = asyncio.create_task(names.owner("secret"))
        await asyncio.sleep(0)  # it has looked by now
        go_on.set()
        return [await first, await second]

    assert asyncio.run(two()) == ["ada", "ada"]
