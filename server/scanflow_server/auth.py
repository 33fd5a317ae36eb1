"""Who asks: the callers that valid tokens stand for, and what a route asks of them."""

from __future__ import annotations

import getpass
import threading
import time
from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from scanflow.home_token import agents_token, ensure_home_token, home_token, keep_home_token, token_hash
from scanflow_server.access import Permission, TokenHolder
from scanflow_server.context import ServerContext
from scanflow_server.store import agents, tokens
from scanflow_server.store.tokens import TokenRow

_FRESH_S = 2.0
"""How long tokens are kept where another server may use the same database, and may have revoked one since."""

_OWN_FRESH_S = 60.0
"""How long they are kept where nobody else changes any: what this server changes it reads again at once."""


class Callers:
    def __init__(self, context: ServerContext, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._context, self._clock = context, clock
        self._tokens: dict[str, TokenRow] = {}
        self._home = home_token(context.settings.home)
        self._read = float("-inf")
        self._fresh_s = _FRESH_S if context.store.file is None else _OWN_FRESH_S
        self._lock = threading.Lock()

    async def caller(self, token: str) -> TokenHolder | None:
        """Return who sent the token; the home's is its user's, who may do everything. None: it is not valid."""
        if self._clock() - self._read > self._fresh_s:
            await run_in_threadpool(self.reload)
        found = self._tokens.get(token_hash(token))
        if found is None or (found.expires is not None and self._context.clock() >= found.expires):
            return None
        return TokenHolder(home_owner() if found.name == tokens.HOME else found.name, found.role, found.team)

    def reload(self) -> None:
        with self._lock:  # an older reading never replaces a newer one
            began = self._clock()
            with self._context.store.read() as connection:
                self._tokens = self._of_agents(connection) | tokens.load_valid(connection)
            self._read = began  # not before: who asks meanwhile waits for the tokens too

    def _of_agents(self, connection: Connection) -> dict[str, TokenRow]:
        """Return the tokens of the agents that this server was ever to run, by their hashes; kept nowhere."""
        whose = {(one.app, one.team) for one in agents.list_all(connection) if one.document is not None}
        return {
            token_hash(agents_token(self._home, app, team)): TokenRow(
                name=f"agents of {app}", role="agent", team=team, created=0.0
            )
            for app, team in whose
            if self._home is not None
        }


def register_home(context: ServerContext) -> str:
    """Let whoever holds the home's token in, and return it; it is made where there is none and none is given."""
    if (given := context.settings.token) is not None:
        keep_home_token(context.settings.home, given.get_secret_value())
    token = ensure_home_token(context.settings.home)
    with context.store.write() as connection:
        tokens.put_home(connection, token_hash(token), at=context.clock())
    return token


def home_owner() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return tokens.HOME


class Needs:
    """What a route needs of its caller, and how it gets to know who that is. Every route has one: see ``app.py``."""

    def __init__(self, permission: Permission, *, of_all_teams: bool = False) -> None:
        """``of_all_teams``: what it is about is no team's."""
        self.permission: Permission = permission
        self.of_all_teams = of_all_teams

    async def __call__(self, request: Request) -> TokenHolder:
        caller: TokenHolder = request.state.caller
        caller.check(self.permission, None if self.of_all_teams else caller.team)
        return caller


Reader = Annotated[TokenHolder, Depends(Needs("read"))]
Proposer = Annotated[TokenHolder, Depends(Needs("propose"))]
Editor = Annotated[TokenHolder, Depends(Needs("change"))]
Approver = Annotated[TokenHolder, Depends(Needs("approve"))]
Admin = Annotated[TokenHolder, Depends(Needs("administer"))]
Operator = Annotated[TokenHolder, Depends(Needs("read", of_all_teams=True))]
"""Who looks after the server itself."""
