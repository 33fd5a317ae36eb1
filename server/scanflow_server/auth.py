"""Authentication: the callers of valid tokens, and the permission a route needs."""

from __future__ import annotations

import getpass
import threading
import time
from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool

from scanflow.http.home_token import (
    ensure_home_token,
    hash_token,
    keep_home_token,
    parse_step_token,
    read_agents_token,
    read_home_token,
)
from scanflow_server.access import Permission, TokenHolder
from scanflow_server.context import ServerContext
from scanflow_server.store import agents, tokens
from scanflow_server.store.tokens import TokenRow

_FRESH_S = 2.0
"""How long tokens are cached if another server may use the same database, and may have revoked one."""

_OWN_TOKEN_CACHE_S = 60.0
"""How long they are cached if no other server changes any: after its own changes this server reloads them at once."""


class Callers:
    def __init__(self, context: ServerContext, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._context, self._clock = context, clock
        self._tokens: dict[str, TokenRow] = {}
        self._home = read_home_token(context.settings.home)
        self._read = float("-inf")
        self._fresh_s = _FRESH_S if context.store.file is None else _OWN_TOKEN_CACHE_S
        self._lock = threading.Lock()

    async def find_caller(self, token: str) -> TokenHolder | None:
        """Return the holder of a token; the home's is its user's, an admin. None: the token is not valid."""
        if (step := self._find_step(token)) is not None:
            return step
        if self._clock() - self._read > self._fresh_s:
            await run_in_threadpool(self.reload)
        row = self._tokens.get(hash_token(token))
        if row is None or (row.expires is not None and self._context.clock() >= row.expires):
            return None
        return TokenHolder(get_home_owner() if row.name == tokens.HOME else row.name, row.role, row.team)

    def _find_step(self, token: str) -> TokenHolder | None:
        whose = None if self._home is None else parse_step_token(self._home, token)
        return None if whose is None else TokenHolder(f"steps of {whose[0]}", "step", whose[1])

    def reload(self) -> None:
        with self._lock:  # an older read never replaces a newer one
            began = self._clock()
            with self._context.store.read() as connection:
                self._tokens = self._derive_agent_tokens(connection) | tokens.load_valid(connection)
            self._read = began  # only now: concurrent callers wait for the tokens too

    def _derive_agent_tokens(self, connection: Connection) -> dict[str, TokenRow]:
        """Return the tokens of the agents hosted by this server, by their hashes; they are derived, never stored."""
        teams = {(agent.app, agent.team) for agent in agents.list_all(connection) if agent.document is not None}
        return {
            hash_token(read_agents_token(self._home, app, team)): TokenRow(
                name=f"agents of {app}", role="agent", team=team, created=0.0
            )
            for app, team in teams
            if self._home is not None
        }


def register_home(context: ServerContext) -> str:
    """Make the home's token valid and return it; create it if there is none and none is configured."""
    if (configured := context.settings.token) is not None:
        keep_home_token(context.settings.home, configured.get_secret_value())
    token = ensure_home_token(context.settings.home)
    with context.store.write() as connection:
        tokens.put_home(connection, hash_token(token), at=context.clock())
    return token


def get_home_owner() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return tokens.HOME


class Needs:
    """The dependency that finds a route's caller and checks a permission. Every route has one: see ``app.py``."""

    def __init__(self, permission: Permission, *, of_all_teams: bool = False) -> None:
        """``of_all_teams``: the route is about no team's resources."""
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
"""The caller of routes about the server itself."""
