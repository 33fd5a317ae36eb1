"""The server's pages for a browser: the overview, the label queue, and reports.

They are not part of the API: a browser sends forms and a cookie. ``Host``, ``Origin`` and ``Sec-Fetch-Site`` are
checked as for the API.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any, Final
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scanflow.errors import NotFoundError, ScanflowError, UnsupportedError
from scanflow.http.home_token import hash_token
from scanflow.http.problems import build_problem
from scanflow.http.security import App, Receive, RequestGuard, Scope, Send, is_loopback_host, parse_host_name
from scanflow.reports.event_report import report_page
from scanflow.reports.loop_events import TYPES
from scanflow_server import overview_html, page_html, run_requests
from scanflow_server.audit import CALLBACK
from scanflow_server.bodies import check_text
from scanflow_server.control.agent_controller import describe_agent
from scanflow_server.label_pages import LabelPages
from scanflow_server.overview_html import Overview
from scanflow_server.page_requests import (
    check_next,
    is_private,
    make_page_response,
    read_form,
    redirect,
    set_session_cookie,
)
from scanflow_server.page_sessions import COOKIE, SESSION_S, NoSessionError, Sessions
from scanflow_server.request_shares import SharedRequests
from scanflow_server.response_masking import mask_action
from scanflow_server.server_context import ServerContext
from scanflow_server.sign_in_pages import SignInPages
from scanflow_server.store import agent_store, event_store, intent_store, label_store, token_store
from scanflow_server.store.secret_store import cache_maskers
from scanflow_server.token_roles import TokenHolder

_PAGE_PATHS: Final = ("/labels", "/reports", "/login", "/logout")
_STYLES: Final = re.compile(r"<style>(.*?)</style>", re.DOTALL)
_MAX_SHOWN: Final = 20
_MAX_EVENTS: Final = 1_000
"""The newest events of an application that its report is made of."""

_MAX_LABELS: Final = 2_000
_MAX_DETAILS: Final = 300
"""The newest labels whose rows and pictures are read, of which a report shows those of the last detection."""

_STRICT: Final = (b"strict-transport-security", b"max-age=31536000")


class Pages:
    """Serves ``/`` and below ``/labels`` and ``/reports``, and passes on all other requests. ASGI middleware."""

    def __init__(self, app: App, *, context: ServerContext, sessions: Sessions) -> None:
        self._app, self._context, self._sessions = app, context, sessions
        settings = context.settings.sign_in
        self._provider = "" if settings is None else settings.name
        self.routes = [
            Route("/", self._show_overview, methods=["GET"]),
            Route("/login", self._login_page, methods=["GET"]),
            Route("/login", self._login, methods=["POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/reports/{app}", self._report, methods=["GET"]),
            *LabelPages(context, self._authenticate).routes,
            *([] if settings is None else SignInPages(context, sessions).routes),
        ]
        pages = Starlette(
            routes=self.routes, exception_handlers={ScanflowError: _handle_error, NoSessionError: _redirect_to_login}
        )
        shared = SharedRequests(pages, shares=context.requests)

        async def find_caller(scope: Scope, receive: Receive, send: Send) -> None:
            # Who comes back from the provider is not yet known, whoever's session the browser has.
            session = "" if scope["path"] == CALLBACK else Request(scope).cookies.get(COOKIE, "")
            scope.setdefault("state", {})["caller"] = await sessions.find_caller(session)
            await shared(scope, receive, send)

        self._pages = RequestGuard(find_caller, hosts=context.settings.names, landing_paths={CALLBACK})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        here = path == "/" or any(path == prefix or path.startswith(f"{prefix}/") for prefix in _PAGE_PATHS)
        if scope["type"] != "http" or not here:
            await self._app(scope, receive, send)
        else:
            await self._pages(scope, receive, _demand_tls(send) if _may_demand_tls(scope) else send)

    async def _login_page(self, request: Request) -> Response:
        return self._make_login_page(check_next(request.query_params.get("next", "")))

    def _make_login_page(self, after: str, problem: str = "", status: int = 200) -> Response:
        return make_page_response(
            page_html.render("login", title="Log in", after=after, problem=problem, provider=self._provider), status
        )

    async def _login(self, request: Request) -> Response:
        form = await read_form(request)
        after, session = check_next(form.get("next", "")), await self._sessions.begin(form.get("token", "").strip())
        if session is None:
            return self._make_login_page(after, "The token is not valid or has expired.", 401)
        request.state.caller = await self._sessions.find_caller(session)
        answer = redirect(after)
        secure = is_private(request, self._context.settings)
        set_session_cookie(answer, session, lifetime_s=SESSION_S, secure=secure)
        return answer

    async def _logout(self, request: Request) -> Response:
        token = self._sessions.end(request.cookies.get(COOKIE, ""))
        if token is not None:
            await run_in_threadpool(self._revoke, token)
        answer = redirect("/login")
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    def _revoke(self, token: str) -> None:
        with self._context.store.write() as connection:
            row = token_store.find_by_hash(connection, hash_token(token))
            if row is not None:
                token_store.revoke(connection, row, at=self._context.clock())
        self._context.token_notifier.notify()

    async def _show_overview(self, request: Request) -> Response:
        caller = await self._authenticate(request)
        return make_page_response(
            overview_html.render_overview(
                await run_in_threadpool(self._load_overview, caller), caller.name, signs_in=bool(self._provider)
            )
        )

    async def _report(self, request: Request) -> Response:
        caller, app = await self._authenticate(request), str(request.path_params["app"])
        check_text(app)
        page = await run_in_threadpool(self._render_report, app, caller)
        # Its drawings have their own style sheets. All else is escaped, so no other style sheet can be among these.
        return make_page_response(page, headers=page_html.make_headers(*dict.fromkeys(_STYLES.findall(page))))

    def _load_overview(self, caller: TokenHolder) -> Overview:
        context = self._context
        with context.store.read() as connection:
            rows = [agent for agent in agent_store.list_all(connection) if caller.can_see(agent.team)]
            maskers = cache_maskers(connection)
            waiting = [
                mask_action(action, maskers)[0]
                for action in intent_store.list_actions(
                    connection, state="pending", verdict="approve", team=caller.team, limit=_MAX_SHOWN
                )
            ]
            labels = label_store.count_waiting(connection, own=caller.team)
            reported = event_store.list_apps(connection, type=TYPES, team=caller.team)
        try:
            services = [service for service in context.deployer.services() if caller.can_see(service.team)]
        except UnsupportedError:  # the backend has no services
            services = []
        runs = run_requests.list_runs(context, limit=_MAX_SHOWN, team=caller.team)
        return Overview(
            approvals=waiting,
            labels=labels,
            agents=[describe_agent(context, row) for row in rows],
            services=services,
            runs=runs,
            reports=reported,
        )

    def _render_report(self, app: str, caller: TokenHolder) -> str:
        with self._context.store.read() as connection:
            shown_events = event_store.list_newest(connection, type=TYPES, app=app, team=caller.team, limit=_MAX_EVENTS)
            about: Any = {"app": app, "own": caller.team, "state": "given"}
            labels = label_store.list_labels(connection, **about, details=True, limit=_MAX_DETAILS)
            labels += label_store.list_labels(connection, **about, limit=_MAX_LABELS, offset=_MAX_DETAILS)
        if not shown_events:
            raise NotFoundError(f"No agent of {app!r} has reported anything yet.")
        return report_page(app, shown_events, [label.model_dump(mode="json") for label in labels])

    async def _authenticate(self, request: Request) -> TokenHolder:
        caller: TokenHolder | None = request.state.caller
        if caller is None:
            raise NoSessionError
        return caller


def _may_demand_tls(scope: Scope) -> bool:
    """Return whether a page came over TLS, by a name that is this server's alone: loopback has other programs, too."""
    host = parse_host_name(dict(scope["headers"]).get(b"host", b""))
    return scope.get("scheme") == "https" and bool(host) and not is_loopback_host(host)


def _demand_tls(send: Send) -> Send:
    """Have browsers use nothing but TLS with this server from now on (RFC 6797)."""

    async def send_with_header(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], _STRICT]}
        await send(message)

    return send_with_header


async def _redirect_to_login(request: Request, _error: Exception) -> Response:
    after = check_next(request.url.path)
    return redirect("/login" if after == "/" else f"/login?{urlencode({'next': after})}")


async def _handle_error(_request: Request, error: Exception) -> Response:
    return make_page_response(
        page_html.render_problem("Error", str(error), "/", "Go to the overview"), build_problem(error)[0]
    )
