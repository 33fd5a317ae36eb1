"""The server's pages for a browser: who may see them, and where each is.

They are not part of the API: a browser sends forms and a cookie. ``Host``, ``Origin`` and ``Sec-Fetch-Site`` are
checked as for the API; what changes more than labels also takes the session's key.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import MutableMapping
from functools import partial
from math import inf
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scanflow.errors import ForbiddenError, NotFoundError, ScanflowError
from scanflow.http.problems import build_problem
from scanflow.http.security import App, Receive, RequestGuard, Scope, Send, is_loopback_host, parse_host_name
from scanflow_server.application_report import render_application_report
from scanflow_server.arbiter.arbiter_engine import ArbiterEngine
from scanflow_server.audit import BY_CODE, CALLBACK, WHAT
from scanflow_server.bodies import check_text
from scanflow_server.dashboard import (
    action_pages,
    agent_pages,
    application_pages,
    assets,
    event_pages,
    label_pages,
    model_pages,
    mpi_page,
    overview_page,
    page_html,
    run_comparison,
    run_downloads,
    run_pages,
    service_pages,
    settings_pages,
    tuning_pages,
)
from scanflow_server.dashboard.dashboard_page import LIVE, DashboardPage, PageAction, PageFile, PageRequest, PageView
from scanflow_server.dashboard.live_pages import stream_page
from scanflow_server.dashboard.login_pages import LOGIN, LOGOUT, LoginPages
from scanflow_server.dashboard.page_requests import check_next, make_page_response, read_form, redirect
from scanflow_server.dashboard.page_times import read_zone
from scanflow_server.dashboard.sign_in_pages import SignInPages
from scanflow_server.page_sessions import NoSessionError, Sessions, read_session
from scanflow_server.request_shares import SharedRequests
from scanflow_server.server_context import ServerContext
from scanflow_server.stream_limits import LimitedStream
from scanflow_server.streams import make_events_response
from scanflow_server.token_roles import TokenHolder

SERVED: Final[tuple[DashboardPage | PageAction | PageFile, ...]] = (
    *overview_page.SERVED,
    *application_pages.SERVED,
    *run_pages.SERVED,
    *run_comparison.SERVED,
    *run_downloads.SERVED,
    *service_pages.SERVED,
    *agent_pages.SERVED,
    *model_pages.SERVED,
    *action_pages.SERVED,
    *label_pages.SERVED,
    *mpi_page.SERVED,
    *tuning_pages.SERVED,
    *event_pages.SERVED,
    *settings_pages.SERVED,
)
"""What browsers get by an address, and what the modules of pages say of it."""

PAGES: Final = tuple(served for served in SERVED if isinstance(served, DashboardPage))
ACTIONS: Final = tuple(served for served in SERVED if isinstance(served, PageAction))
FILES: Final = tuple(served for served in SERVED if isinstance(served, PageFile))


def _refuse_address(request: PageRequest) -> PageView:
    raise NotFoundError(f"There is no page at {request.path!r:.80}.")


_OTHER: Final = DashboardPage(path="/{path:path}", template="page_problem", load=_refuse_address)
"""What a browser gets at any other address."""

_PAGE_PATHS: Final = {"/reports", "/favicon.ico", LOGIN, LOGOUT, LIVE, assets.PATH, *(page.section for page in PAGES)}
_OTHER_PATHS: Final = {"/api", "/healthz", "/readyz", "/metrics"}
"""What a browser may open, too, and gets as programs do."""

_STYLES: Final = re.compile(r"<style>(.*?)</style>", re.DOTALL)
_STRICT: Final = (b"strict-transport-security", b"max-age=31536000")
_KEEP: Final = {"cache-control": "public, max-age=31536000, immutable", "x-content-type-options": "nosniff"}


class Pages:
    """Serves ``/`` and the paths of pages, and passes on all other requests. ASGI middleware."""

    def __init__(self, app: App, *, context: ServerContext, engine: ArbiterEngine, sessions: Sessions) -> None:
        self._app, self._context, self._engine, self._sessions = app, context, engine, sessions
        settings = context.settings.sign_in
        self._provider = "" if settings is None else settings.name
        self.routes = [
            *map(self._make_route, PAGES),
            *map(self._make_live_route, PAGES),
            *map(self._make_action_route, ACTIONS),
            *map(self._make_file_route, FILES),
            self._make_live_route(_OTHER),
            Route(f"{assets.PATH}/{{name}}", self._serve_script, methods=["GET"]),
            Route("/reports/{app}", self._report, methods=["GET"]),
            Route(f"{label_pages.PATH}/picture", self._serve_picture, methods=["GET"]),
            *LoginPages(context, sessions, provider=self._provider).routes,
            *([] if settings is None else SignInPages(context, sessions).routes),
        ]
        pages = Starlette(
            routes=self.routes, exception_handlers={ScanflowError: _handle_error, NoSessionError: _redirect_to_login}
        )
        pages.router.default = self._explain_absence
        shared = SharedRequests(pages, shares=context.requests)

        async def find_caller(scope: Scope, receive: Receive, send: Send) -> None:
            # Who comes back from the provider is not yet known, whoever's session the browser has.
            session = "" if scope["path"] == CALLBACK else read_session(Request(scope))
            caller = await sessions.find_caller(session)

            async def is_still_valid() -> bool:  # while a stream lasts
                return await sessions.find_caller(session) == caller

            scope.setdefault("state", {}).update(caller=caller, still=is_still_valid)
            await shared(scope, receive, send)

        self._pages = RequestGuard(
            find_caller, hosts=context.settings.names, landings={("GET", CALLBACK), ("POST", BY_CODE)}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not (_get_section(scope) in _PAGE_PATHS or _is_of_browser(scope)):
            await self._app(scope, receive, send)
        else:
            await self._pages(scope, receive, _demand_tls(send) if _may_demand_tls(scope) else send)

    def _make_route(self, page: DashboardPage) -> Route:
        async def show(request: Request) -> Response:
            page_request, nonce = await self._read_request(request), secrets.token_urlsafe(16)
            try:
                content, status = await run_in_threadpool(page.render, page_request, nonce=nonce), 200
            except ScanflowError as error:
                status = build_problem(error)[0]
                content = await run_in_threadpool(page.render_problem, page_request, error, nonce=nonce)
            return make_page_response(content, status, headers=page_html.make_page_headers(nonce))

        return Route(page.path, show, methods=["GET"])

    def _make_live_route(self, page: DashboardPage) -> Route:
        async def stream(request: Request) -> Response:
            page_request, last = await self._read_request(request), request.headers.get("last-event-id")
            blocks = stream_page(page, page_request, request.state.still, last)
            return make_events_response(self._context.streams, blocks, check_s=inf)

        return Route(LIVE + page.path, stream, methods=["GET"])

    def _make_action_route(self, action: PageAction) -> Route:
        async def perform(request: Request) -> Response:
            page_request = await self._read_request(request)
            page_request.caller.check(action.permission, page_request.caller.team)
            form = await read_form(request)
            has_key = await self._sessions.has_key(read_session(request), form.pop("session_key", ""))
            if action.needs_key and not has_key:
                raise ForbiddenError(
                    "The form came without the key that this browser got when you logged in. Nothing was changed. Log "
                    "out and in again, with scripts allowed for this page."
                )
            check_text(form)
            answer = await run_in_threadpool(action.perform, page_request, form)
            return make_page_response(answer) if isinstance(answer, Markup) else redirect(answer)

        return Route(action.path, perform, methods=["POST"])

    def _make_file_route(self, file: PageFile) -> Route:
        async def send(request: Request) -> Response:
            content = await run_in_threadpool(file.open, await self._read_request(request))
            headers = page_html.make_file_headers(content.saved_as)
            return LimitedStream(content.blocks, self._context.streams, media_type=content.media_type, headers=headers)

        return Route(file.path, send, methods=["GET"])

    async def _read_request(self, request: Request) -> PageRequest:
        caller = await self._authenticate(request)
        parameters = {name: str(value) for name, value in request.path_params.items()}
        query = dict(request.query_params)
        check_text({**parameters, **query})
        return PageRequest(
            context=self._context,
            engine=self._engine,
            caller=caller,
            path=request.url.path.removeprefix(LIVE) or "/",
            parameters=parameters,
            query=query,
            zone=read_zone(request.cookies),
            is_live=request.url.path.startswith(f"{LIVE}/"),
            signs_in=bool(self._provider),
            describe=partial(setattr, request.state, WHAT),
        )

    async def _serve_script(self, request: Request) -> Response:
        return Response(
            assets.load_script(str(request.path_params["name"])), headers=_KEEP, media_type="text/javascript"
        )

    async def _serve_picture(self, request: Request) -> Response:
        picture = await run_in_threadpool(label_pages.get_picture, await self._read_request(request))
        return Response(picture, headers=page_html.make_page_headers(), media_type="image/png")

    async def _report(self, request: Request) -> Response:
        caller, app = await self._authenticate(request), str(request.path_params["app"])
        check_text(app)
        zone = read_zone(request.cookies)
        page = await run_in_threadpool(render_application_report, self._context, caller, app, zone)
        # Its drawings have their own style sheets. All else is escaped, so no other style sheet can be among these.
        return make_page_response(page, headers=page_html.make_headers(*dict.fromkeys(_STYLES.findall(page))))

    async def _explain_absence(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_of_browser(scope):
            raise NotFoundError(f"There is no page at {scope['path']!r:.80}.")
        await self._make_route(_OTHER).handle(scope, receive, send)

    async def _authenticate(self, request: Request) -> TokenHolder:
        caller: TokenHolder | None = request.state.caller
        if caller is None:
            raise NoSessionError
        return caller


def _get_section(scope: Scope) -> str:
    return str(scope["path"][:1] + scope["path"][1:].partition("/")[0])


def _is_of_browser(scope: Scope) -> bool:
    """Return whether somebody opens an address in a browser, which no program that sends a token does."""
    headers = dict(scope["headers"])
    is_read = scope["method"] == "GET" and b"text/html" in headers.get(b"accept", b"")
    return is_read and b"authorization" not in headers and _get_section(scope) not in _OTHER_PATHS


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
    if request.url.path.startswith(f"{LIVE}/"):  # a script would follow to a page that is no stream
        return Response("You are not logged in.", 401, headers=page_html.make_page_headers(), media_type="text/plain")
    after = check_next(f"{request.url.path}?{request.url.query}".removesuffix("?"))
    return redirect(LOGIN if after == "/" else f"{LOGIN}?{urlencode({'next': after})}")


async def _handle_error(request: Request, error: Exception) -> Response:
    came_from = urlsplit(request.headers.get("referer", ""))
    back = check_next(came_from._replace(scheme="", netloc="").geturl())
    way_on = (back, "Back") if came_from.netloc == request.url.netloc else ("/", "Go to the overview")
    return make_page_response(page_html.render_problem("Error", str(error), *way_on), build_problem(error)[0])
