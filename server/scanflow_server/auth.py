"""Who asks: the names of valid tokens, and the owner of a request's token."""

from __future__ import annotations

import getpass
import threading
import time
from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from scanflow.home_token import ensure_home_token, token_hash
from scanflow_server.context import ServerContext
from scanflow_server.store import tokens

_FRESH_S = 2.0
"""How long names are kept; another server on the same database may have revoked one since."""


class TokenNames:
    def __init__(self, context: ServerContext, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._context, self._clock = context, clock
        self._names: dict[str, str] = {}
        self._read = float("-inf")
        self._lock = threading.Lock()

    async def owner(self, token: str) -> str | None:
        """Return who sent the token: its name, or for the home's the user whose home it is. None: it is not valid."""
        if self._clock() - self._read > _FRESH_S:
            await run_in_threadpool(self.reload)
        name = self._names.get(token_hash(token))
        return home_owner() if name == tokens.HOME else name

    def reload(self) -> None:
        with self._lock:  # an older reading never replaces a newer one
            began = self._clock()
            with self._context.store.read() as connection:
                self._names = tokens.valid(connection)
            self._read = began  # not before: who asks meanwhile waits for the names too


def register_home(context: ServerContext) -> str:
    """Let whoever holds the home's token in, and return it; it is made where there is none."""
    token = ensure_home_token(context.settings.home)
    with context.store.write() as connection:
        tokens.put_home(connection, token_hash(token), at=context.clock())
    return token


def home_owner() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return tokens.HOME


def _caller(request: Request) -> str:
    caller: str = request.state.caller
    return caller


Caller = Annotated[str, Depends(_caller)]
"""Who asks, as the token says: what a route asks for that records it."""
