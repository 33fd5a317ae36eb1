"""The login and logout: by a token that a person pastes, or by a code that a program got for its own token."""

from __future__ import annotations

from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scanflow.http.security import ANY_HOST, refuse_request
from scanflow_server.audit import BY_CODE, WHAT
from scanflow_server.dashboard import page_html
from scanflow_server.dashboard.page_requests import check_next, make_page_response, read_form, redirect
from scanflow_server.dashboard.sign_in_pages import make_signed_in_page
from scanflow_server.page_sessions import SESSION_S, CodeOwner, NewSession, Sessions, get_cookie_name, read_session
from scanflow_server.server_context import ServerContext
from scanflow_server.store import token_store
from scanflow_server.token_roles import TokenHolder

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"
_USED: Final = "The login was used already, or is older than a minute. Repeat it: scanflow dashboard"


class LoginPages:
    """The pages of login and logout. ``provider``: the name of where people sign in; empty: nowhere."""

    def __init__(self, context: ServerContext, sessions: Sessions, *, provider: str) -> None:
        self._context, self._sessions, self._provider = context, sessions, provider
        self.routes = [
            Route(LOGIN, self._show, methods=["GET"]),
            Route(LOGIN, self._log_in, methods=["POST"]),
            Route(BY_CODE, self._log_in_by_code, methods=["POST"]),
            Route(LOGOUT, self._log_out, methods=["POST"]),
        ]

    async def _show(self, request: Request) -> Response:
        after = check_next(request.query_params.get("next", ""))
        return self._make_page(after) if request.state.caller is None else redirect(after)

    def _make_page(self, after: str, problem: str = "", status: int = 200) -> Response:
        page = page_html.render("login", title="Log in", after=after, problem=problem, provider=self._provider)
        return make_page_response(page, status)

    async def _log_in(self, request: Request) -> Response:
        form = await read_form(request)
        after, session = check_next(form.get("next", "")), await self._sessions.begin(form.get("token", "").strip())
        caller = None if session is None else await self._sessions.find_caller(session.id)
        if session is None or caller is None:
            return self._make_page(after, "The token is not valid or has expired.", 401)
        return self._enter(request, caller, session, after)

    async def _log_in_by_code(self, request: Request) -> Response:
        """Begin a session by a code, which a form in a file of the user's sends: a page of another origin, as others
        are. One of somebody else's could bring the reader in under its author's name, with the author's code. So it is
        asked first, and by a code of its own, unless it is the home's name: whoever has that token has the server, and
        could show the reader anything."""
        form = await read_form(request)
        after, owner = check_next(form.get("next", "")), await self._sessions.take_code(form.get("code", ""))
        if owner is None:
            return self._make_page(after, _USED, 401)
        is_foreign = refuse_request(request.scope["headers"], hosts={ANY_HOST}) is not None
        if is_foreign and not await run_in_threadpool(self._is_home, owner.token_hash):
            return await self._confirm(request, owner, after)
        session = await self._sessions.begin_by_hash(owner.token_hash)
        if session is None:  # the token was revoked in between
            return self._make_page(after, _USED, 401)
        return self._enter(request, owner.holder, session, after)

    async def _confirm(self, request: Request, owner: CodeOwner, after: str) -> Response:
        request.state.caller = owner.holder
        setattr(request.state, WHAT, "asked before a login")
        code = await self._sessions.make_code(owner.token_hash)
        page = page_html.render("confirm_login", title="Log in", person=owner.holder, code=code, after=after)
        return make_page_response(page)

    def _enter(self, request: Request, caller: TokenHolder, session: NewSession, after: str) -> Response:
        request.state.caller = caller
        return make_signed_in_page(
            request, self._context.settings, session, lifetime_s=SESSION_S, person=caller.name, after=after
        )

    async def _log_out(self, request: Request) -> Response:
        token_hash = await self._sessions.end(read_session(request))
        if token_hash is not None:
            await run_in_threadpool(self._revoke, token_hash)
        answer = redirect(LOGIN)
        answer.delete_cookie(get_cookie_name(request), httponly=True, samesite="strict")
        return answer

    def _revoke(self, token_hash: str) -> None:
        with self._context.store.write() as connection:
            row = token_store.find_by_hash(connection, token_hash)
            if row is not None:
                token_store.revoke(connection, row, at=self._context.clock())
        self._context.token_notifier.notify()

    def _is_home(self, token_hash: str) -> bool:
        with self._context.store.read() as connection:
            row = token_store.find_by_hash(connection, token_hash)
        return row is not None and row.name == token_store.HOME
