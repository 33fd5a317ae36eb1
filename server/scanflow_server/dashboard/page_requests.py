"""Requests and responses of the pages: forms and HTML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from scanflow.http.body_limits import SEND_LESS, read_body
from scanflow.http.security import is_loopback_host
from scanflow_server.dashboard.page_html import make_page_headers
from scanflow_server.server_settings import ServerSettings

_NEXT: Final = re.compile(r"/(?![/\\])[!-\[\]-~]{0,500}")
_MAX_FORM_BYTES: Final = 64 * 1024


def make_page_response(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return HTMLResponse(text, status, headers or make_page_headers())


def redirect(address: str) -> Response:
    return RedirectResponse(address, 303, headers=make_page_headers())


def check_next(address: str) -> str:
    """Return the address to go to after the login, if it is one of these pages; else the first page."""
    return address if _NEXT.fullmatch(address) else "/"


def is_private(request: Request, settings: ServerSettings) -> bool:
    """Return whether the browser speaks TLS, with this server or with the proxy before it."""
    is_behind = settings.behind_proxy and not is_loopback_host(request.url.hostname or "")
    return request.url.scheme == "https" or is_behind


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form without files."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "Send a form: application/x-www-form-urlencoded.")
    body = await read_body(request.receive, max_bytes=_MAX_FORM_BYTES, advice=SEND_LESS)
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
