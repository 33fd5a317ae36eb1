"""Translates the errors of requests into problem documents (RFC 9457)."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from scanflow.errors import InvalidError, ScanflowError
from scanflow.http.problems import PROBLEM_JSON, build_problem, build_problem_document
from scanflow.text.masking import mask_addresses

LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
"""The names of applications, teams and holders of tokens."""

_log = logging.getLogger(__name__)
_MAX_SHOWN = 5


class Problem(BaseModel):
    """The error of a request (RFC 9457)."""

    type: str
    """``urn:scanflow:error:`` and the name of the error's class, or ``about:blank`` where the HTTP status suffices."""

    title: str
    status: int
    detail: str


_WORDS = {
    400: "The request is invalid; the detail says why.",
    401: "The token is missing or invalid.",
    403: "The token does not allow that, or a page of another origin sent the request.",
    404: "The resource does not exist.",
    409: "Another client is already changing the resource.",
    413: "The body is too large.",
    415: "The body is not sent as application/json.",
    421: "The request names a host that is not one of this server's.",
    422: "A value cannot be accepted.",
    429: "More requests at once than the caller's share. Nothing was done; repeat it after Retry-After.",
    500: "A bug in the server; see its log.",
    503: "An external system does not respond. Retry later.",
}


def describe_problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {
        status: {
            "description": _WORDS[status],
            "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in statuses
    }


PROBLEMS = describe_problems(400, 401, 403, 404, 409, 413, 415, 421, 422, 429, 500, 503)
"""The error responses of a route."""


def make_problem_response(error: Exception) -> Response:
    status, document = build_problem(error)
    return _make_response(status, document, {"retry-after": "1"} if status in {429, 503} else None)


def handle_problems(app: FastAPI) -> None:
    app.add_exception_handler(ScanflowError, _handle_scanflow_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(Exception, _handle_defect)


async def _handle_scanflow_error(request: Request, error: Exception) -> Response:
    if build_problem(error)[0] >= 500:
        _log.warning("%s %s: %s", request.method, request.url.path, mask_addresses(str(error)))
    return make_problem_response(error)


async def _handle_validation_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return make_problem_response(InvalidError(format_errors(error.errors())))


async def _handle_http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    document = build_problem_document(error.status_code, error.detail, title=error.detail)
    return _make_response(error.status_code, document, dict(error.headers or {}))


async def _handle_defect(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return make_problem_response(error)


def format_errors(errors: Sequence[Any]) -> str:
    """Return what pydantic found wrong in a body, in words."""
    lines = []
    for error in errors[:_MAX_SHOWN]:
        where = ".".join(str(part) for part in error["loc"] if part != "body") or "the body"
        is_label = error["type"] == "string_pattern_mismatch" and error["ctx"]["pattern"] == LABEL
        what = "write small letters, digits and hyphens" if is_label else error["msg"].removeprefix("Value error, ")
        lines.append(f"{where}: {what}")
    more = len(errors) - len(lines)
    return "; ".join(lines) + (f"; and {more} more" if more else "") + "."


def _make_response(status: int, document: dict[str, Any], headers: dict[str, str] | None) -> Response:
    # Escaped as ASCII, so that no text can make the response itself fail.
    body = json.dumps(document).encode("ascii")
    return Response(body, status, headers, PROBLEM_JSON)
