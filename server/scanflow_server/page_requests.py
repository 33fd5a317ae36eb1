"""Requests and responses of the pages: forms and HTML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from scanflow.http.body_limits import SEND_LESS, read_body
from scanflow_server.page_html import HEADERS

_MAX_FORM_BYTES: Final = 64 * 1024


def make_page_response(text: str, status: int = 200, headers: Mapping[str, str] = HEADERS) -> Response:
    return HTMLResponse(text, status, dict(headers))


def redirect(address: str) -> Response:
    return RedirectResponse(address, 303, headers=HEADERS)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form without files."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "Send a form: application/x-www-form-urlencoded.")
    body = await read_body(request.receive, max_bytes=_MAX_FORM_BYTES, advice=SEND_LESS)
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
