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

from scanflow.http.home_token import ensure_home_token, hash_token, keep_home_token, parse_step_token, read_home_token
from scanflow_server.server_context import ServerContext
from scanflow_server.store import agent_store, token_store
from scanflow_server.token_roles import Permission, TokenHolder

_FRESH_S = 2.0
"""How long tokens are cached if another server may use the same database, and may have revoked one."""

_OWN_TOKEN_CACHE_S = 60.0
"""How long they are cached if no other server changes any: after its own changes this server reloads them at once."""

_MISSED_S = 0.2
"""How often they are reloaded for tokens that are not among them, if another server may have made those."""


class Callers:
    def __init__(self, context: ServerContext, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._context, self._clock = context, clock
        self._holders: dict[str, tuple[TokenHolder, float | None]] = {}
        """The holders of tokens by the tokens' hashes, and when those expire."""

        self._home = read_home_token(context.settings.home)
        self._read, self._changes = float("-inf"), -1
        self._fresh_s = _FRESH_S if context.store.file is None else _OWN_TOKEN_CACHE_S
        self._lock = threading.Lock()

    async def find_caller(self, token: str) -> TokenHolder | None:
        """Return the holder of a token; the home's is its user's, an admin. None: the token is not valid."""
        step = self._find_step(token)
        return await self.find_holder(hash_token(token)) if step is None else step

    async def find_holder(self, token_hash: str) -> TokenHolder | None:
        """Return the holder of a token by its hash; None: it is not valid, or a step's."""
        if self._is_outdated(token_hash):
            await run_in_threadpool(self.reload)
        holder, expires = self._holders.get(token_hash, (None, None))
        return None if expires is not None and self._context.clock() >= expires else holder

    def _find_step(self, token: str) -> TokenHolder | None:
        whose = None if self._home is None else parse_step_token(self._home, token)
        return None if whose is None else TokenHolder(f"steps of {whose[0]}", "step", whose[1])

    def reload(self) -> None:
        with self._lock:  # an older read never replaces a newer one
            began, changes = self._clock(), self._context.token_notifier.changes
            with self._context.store.read() as connection:
                self._holders = _load_agents(connection) | _load_holders(connection)
            self._read, self._changes = began, changes  # only now: concurrent callers wait for the tokens too

    def _is_outdated(self, digest: str) -> bool:
        age_s = self._clock() - self._read
        if age_s > self._fresh_s or self._changes != self._context.token_notifier.changes:
            return True
        return digest not in self._holders and self._context.store.file is None and age_s > _MISSED_S


def _load_holders(connection: Connection) -> dict[str, tuple[TokenHolder, float | None]]:
    return {
        digest: (
            TokenHolder(
                get_home_owner() if row.name == token_store.HOME else row.person or row.name, row.role, row.team
            ),
            row.expires,
        )
        for digest, row in token_store.load_valid(connection).items()
    }


def _load_agents(connection: Connection) -> dict[str, tuple[TokenHolder, float | None]]:
    """Return the agents that have a token of their own, by its hash."""
    return {
        agent.token_hash: (
            TokenHolder(
                f"agent {agent.app}/{agent.name}",
                "agent",
                agent.team,
                agent=(agent.app, agent.name),
                agent_token_hash=agent.token_hash,
            ),
            None,
        )
        for agent in agent_store.list_all(connection)
        if agent.wanted and agent.token_hash is not None
    }


def register_home(context: ServerContext) -> str:
    """Make the home's token valid and return it; create it if there is none and none is configured."""
    if (configured := context.settings.token) is not None:
        keep_home_token(context.settings.home, configured.get_secret_value())
    token = ensure_home_token(context.settings.home)
    with context.store.write() as connection:
        token_store.put_home(connection, hash_token(token), at=context.clock())
    return token


def get_home_owner() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return token_store.HOME


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
