"""The label queue in a browser: pages on which people label, and how they get in.

Beside the API and not of it: a browser sends forms and a cookie. The cookie names a session of these pages alone, since
a browser sends it to every port of the same host: whoever gets hold of it can label, and run nothing. It lets in as
long as the token is valid that it was begun with. ``Host``, ``Origin`` and ``Sec-Fetch-Site`` are checked as for the
API.
"""

from __future__ import annotations

import json
import secrets
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias
from urllib.parse import parse_qsl, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from scanflow.agent.records import JSON
from scanflow.errors import InvalidError, NotFoundError, ScanflowError
from scanflow.http_security import App, Receive, RequestGuard, Scope, Send
from scanflow.problems import problem_of
from scanflow_server import label_html as html
from scanflow_server.access import TokenHolder
from scanflow_server.bodies import check_text
from scanflow_server.context import ServerContext
from scanflow_server.routes.labels import LabelBody, give_one
from scanflow_server.store import labels as kept
from scanflow_server.store.labels import Label

PATH: Final = "/labels"
COOKIE: Final = "scanflow_labels"
SESSION_S: Final = 12 * 3600.0
_MOST_SESSIONS = 1000
_MOST_FORM = 64 * 1024

FindCaller: TypeAlias = Callable[[str], Awaitable[TokenHolder | None]]


class LabelPages:
    """Answers below ``/labels``, and hands on what is asked elsewhere. ASGI middleware.

    ``callers`` returns whose token it is; None: it is not valid.
    """

    def __init__(self, app: App, *, context: ServerContext, callers: FindCaller) -> None:
        self._app, self._context = app, context
        self._sessions = Sessions(callers)
        self.routes = [
            Route(PATH, self._show, methods=["GET"]),
            Route(PATH, self._label, methods=["POST"]),
            Route(f"{PATH}/picture", self._picture, methods=["GET"]),
            Route(f"{PATH}/login", self._login_page, methods=["GET"]),
            Route(f"{PATH}/login", self._login, methods=["POST"]),
            Route(f"{PATH}/logout", self._logout, methods=["POST"]),
        ]
        pages = Starlette(routes=self.routes, exception_handlers={ScanflowError: _wrong, _NoSessionError: _to_login})
        self._pages = RequestGuard(pages, hosts=context.settings.names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        here = scope["type"] == "http" and (scope["path"] == PATH or scope["path"].startswith(f"{PATH}/"))
        await (self._pages if here else self._app)(scope, receive, send)

    async def _login_page(self, _request: Request) -> Response:
        return _page(html.login())

    async def _login(self, request: Request) -> Response:
        token = (await _form(request)).get("token", "").strip()
        session = await self._sessions.begin(token)
        if session is None:
            return _page(html.login("The token is not valid here, or not any more."), 401)
        answer = RedirectResponse(PATH, 303, headers=html.HEADERS)
        secure = request.url.scheme == "https"
        answer.set_cookie(
            COOKIE, session, max_age=int(SESSION_S), path=PATH, httponly=True, samesite="strict", secure=secure
        )
        return answer

    async def _logout(self, request: Request) -> Response:
        self._sessions.end(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse(f"{PATH}/login", 303, headers=html.HEADERS)
        answer.delete_cookie(COOKIE, path=PATH, httponly=True, samesite="strict")
        return answer

    async def _show(self, request: Request) -> Response:
        caller = await self._caller(request)
        return _page(await run_in_threadpool(self._shown, dict(request.query_params), caller))

    async def _picture(self, request: Request) -> Response:
        caller = await self._caller(request)

        def find() -> Label:
            with self._context.store.read() as connection:
                return kept.show(connection, *_key(dict(request.query_params)), own=caller.team)

        found = (await run_in_threadpool(find)).picture
        if found is None:
            raise NotFoundError("It has no picture.")
        return Response(b64decode(found), headers=html.HEADERS, media_type="image/png")

    async def _label(self, request: Request) -> Response:
        caller, given = await self._caller(request), await _form(request)
        caller.check("propose", caller.team)
        label = check_text(_value(given))

        def give() -> str:
            at = self._context.clock()
            with self._context.store.write() as connection:
                known = kept.show(connection, *_key(given), own=caller.team)
                how = LabelBody(label=label, app=known.app, team=known.team, replace=True)
                give_one(connection, known.id, label, how, caller, at=at)
                return _address(_next_wanted(kept.picked_with(connection, known), known.id))

        return RedirectResponse(await run_in_threadpool(give), 303, headers=html.HEADERS)

    def _shown(self, asked: dict[str, str], caller: TokenHolder) -> str:
        with self._context.store.read() as connection:
            left = kept.waiting(connection, own=caller.team)
            if "id" in asked:
                known = kept.show(connection, *_key(asked), own=caller.team)
            elif first := kept.listed(
                connection, app=asked.get("app"), team=asked.get("team"), own=caller.team, state="wanted", limit=1
            ):
                known = kept.show(connection, first[0].app, first[0].team, first[0].id)
            else:
                return html.nothing(caller.name)
            together = kept.picked_with(connection, known)
        at = next((at for at, one in enumerate(together) if one.id == known.id), 0)
        before, after = together[at - 1] if at else None, together[at + 1] if at + 1 < len(together) else None
        return html.sample(
            known,
            caller=caller.name,
            position=at + 1,
            labelled=sum(one.state == "given" for one in together),
            total=len(together),
            left=left,
            before=None if before is None else _address(before),
            after=None if after is None else _address(after),
            picture=None if known.picture is None else _address(known, "/picture"),
            choices=_choices(together),
        )

    async def _caller(self, request: Request) -> TokenHolder:
        caller = await self._sessions.caller(request.cookies.get(COOKIE, ""))
        if caller is None:
            raise _NoSessionError
        return caller


class Sessions:
    """Who has logged in, until the server ends: twelve hours, or as long as the token is valid."""

    def __init__(self, callers: FindCaller, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._find, self._clock = callers, clock
        self._began: dict[str, tuple[str, float]] = {}

    async def begin(self, token: str) -> str | None:
        """Return what names the new session; None: the token is not valid."""
        if not token or await self._find(token) is None:
            return None
        while len(self._began) >= _MOST_SESSIONS:
            del self._began[next(iter(self._began))]
        session = secrets.token_urlsafe(32)
        self._began[session] = token, self._clock()
        return session

    async def caller(self, session: str) -> TokenHolder | None:
        token, began = self._began.get(session, ("", 0.0))
        if not token:
            return None
        caller = await self._find(token) if self._clock() - began < SESSION_S else None
        if caller is None:
            self.end(session)
        return caller

    def end(self, session: str) -> None:
        self._began.pop(session, None)


class _NoSessionError(Exception):
    pass


async def _to_login(_request: Request, _error: Exception) -> Response:
    return RedirectResponse(f"{PATH}/login", 303, headers=html.HEADERS)


async def _wrong(_request: Request, error: Exception) -> Response:
    return _page(html.wrong(str(error)), problem_of(error)[0])


def _page(text: str, status: int = 200) -> Response:
    return HTMLResponse(text, status, html.HEADERS)


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form, without a library for those that hold files."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "Send a form: application/x-www-form-urlencoded.")
    body = bytearray()
    async for block in request.stream():
        body += block
        if len(body) > _MOST_FORM:
            raise HTTPException(413, f"The form has more than {_MOST_FORM} bytes. Send less.")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


def _value(given: dict[str, str]) -> JSON:
    """Return the label that a form gives: JSON as its value, other text as it is."""
    text = given.get("pick") or given.get("label", "").strip()
    if not text:
        raise InvalidError("There is no label. Write one, or go on to the next sample.")
    try:
        value: JSON = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    if value is None:
        raise InvalidError("null is no label. Go on to the next sample; this one goes on waiting.")
    return value


def _key(asked: dict[str, str]) -> tuple[str, str, str]:
    key = asked.get("app", ""), asked.get("team", ""), asked.get("id", "")
    check_text(key)
    return key


def _address(one: Label | None, below: str = "") -> str:
    return PATH if one is None else f"{PATH}{below}?{urlencode({'app': one.app, 'team': one.team, 'id': one.id})}"


def _next_wanted(together: Sequence[Label], id: str) -> Label | None:
    """Return what waits for a label after that one, or before it; None: nothing does."""
    at = next((at for at, one in enumerate(together) if one.id == id), -1)
    return next((one for one in (*together[at + 1 :], *together[: at + 1]) if one.state == "wanted"), None)


def _choices(together: Sequence[Label]) -> list[JSON]:
    """Return the labels that were given or guessed until now, to choose from. One alone would tell the guess: none."""
    found: dict[str, JSON] = {}
    for one in together:
        for label in (one.label, one.guess):
            if label is not None:
                found.setdefault(json.dumps(label, sort_keys=True), label)
    texts = sorted(found, key=lambda text: (len(text), text))[: html.MOST_CHOICES]
    return [found[text] for text in texts] if len(texts) > 1 else []
