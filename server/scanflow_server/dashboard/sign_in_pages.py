"""The pages of sign-in by OpenID Connect: the way to the provider, and the way back."""

from __future__ import annotations

import secrets
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scanflow.errors import ScanflowError
from scanflow.http.problems import build_problem
from scanflow_server.audit import CALLBACK, WHAT
from scanflow_server.dashboard import page_html
from scanflow_server.dashboard.page_requests import check_next, is_private, make_page_response, redirect
from scanflow_server.page_sessions import NewSession, Sessions, get_cookie_name
from scanflow_server.server_context import ServerContext
from scanflow_server.server_settings import ServerSettings
from scanflow_server.sign_in import LIFETIME_S, Person, SignIn

PATH: Final = "/login/oidc"
_COOKIE: Final = "scanflow_sign_in"
_TOKEN: Final = "token"  # noqa: S105 - what a sign-in is for


class SignInPages:
    """The pages of sign-in. A session begins with one, and each token that a person makes takes one of its own: so a
    cookie of a session, which other programs of its host may see, makes none."""

    def __init__(self, context: ServerContext, sessions: Sessions) -> None:
        self._context, self._sessions, self._sign_in = context, sessions, SignIn(context)
        self.routes = [Route(PATH, self._begin, methods=["GET"]), Route(CALLBACK, self._finish, methods=["GET"])]

    async def _begin(self, request: Request) -> Response:
        query = request.query_params
        after = _TOKEN if query.get("for") == _TOKEN else check_next(query.get("next", ""))
        address, cookie = await self._sign_in.begin(self._build_callback(request), after)
        answer = redirect(address)
        # Lax: the provider's page leads back, and a cookie that is Strict would not come along.
        answer.set_cookie(
            _COOKIE, cookie, max_age=int(LIFETIME_S), path=CALLBACK, httponly=True, samesite="lax",
            secure=is_private(request, self._context.settings),
        )  # fmt: skip
        return answer

    async def _finish(self, request: Request) -> Response:
        try:
            person, after = await self._sign_in.finish(
                self._build_callback(request), request.cookies.get(_COOKIE, ""), request.query_params
            )
            request.state.caller = person.holder
            make = self._make_token if after == _TOKEN else self._begin_session
            answer = await make(request, person, after)
        except ScanflowError as error:
            setattr(request.state, WHAT, f"the sign-in failed: {error}")
            page = page_html.render_problem("Sign-in failed", str(error), "/login", "Go to the login")
            answer = make_page_response(page, build_problem(error)[0])
        answer.delete_cookie(_COOKIE, path=CALLBACK, httponly=True, samesite="lax")
        return answer

    async def _begin_session(self, request: Request, person: Person, after: str) -> Response:
        lifetime_s = self._sign_in.settings.session_hours * 3600
        row, token = await run_in_threadpool(self._sign_in.make_token, person, lifetime_s)
        setattr(request.state, WHAT, f"signed in as {person.subject!r:.200}: session {row.name!r}")
        session = await self._sessions.begin(token, lifetime_s, is_own=True)
        assert session is not None
        # A redirect would still be the provider's to the browser, which then leaves out the cookie that is Strict.
        return make_signed_in_page(
            request, self._context.settings, session, lifetime_s=lifetime_s, person=person.holder.name, after=after
        )

    async def _make_token(self, request: Request, person: Person, _after: str) -> Response:
        lifetime_s = self._sign_in.settings.token_hours * 3600
        row, token = await run_in_threadpool(self._sign_in.make_token, person, lifetime_s)
        setattr(request.state, WHAT, f"signed in as {person.subject!r:.200}, and made the token {row.name!r}")
        title, server = "A token for the command line", self._build_base(request)
        return make_page_response(page_html.render("token", title=title, row=row, token=token, server=server, back="/"))

    def _build_callback(self, request: Request) -> str:
        return f"{self._build_base(request)}{CALLBACK}"

    def _build_base(self, request: Request) -> str:
        """Return this server's address as the browser knows it. Its host was checked, as of every request."""
        return f"{'https' if is_private(request, self._context.settings) else 'http'}://{request.url.netloc}"


def make_signed_in_page(
    request: Request, settings: ServerSettings, session: NewSession, *, lifetime_s: float, **shown: str
) -> Response:
    """Return the page after a login of a ``person``, with the session's cookie. It keeps the session's key in the
    browser and goes on to the page ``after``."""
    nonce = secrets.token_urlsafe(16)
    page = page_html.render("signed_in", title="Signed in", session_key=session.key, nonce=nonce, **shown)
    answer = make_page_response(page, headers=page_html.make_page_headers(nonce))
    answer.set_cookie(
        get_cookie_name(request), session.id, max_age=int(lifetime_s), httponly=True, samesite="strict",
        secure=is_private(request, settings),
    )  # fmt: skip
    return answer
