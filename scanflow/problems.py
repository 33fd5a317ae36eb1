"""Errors and HTTP answers: the one place that turns one into the other, both ways.

Our own server writes problem documents (RFC 9457) whose ``type`` names the error's class. Services that speak the Open
Inference Protocol have no such type; :func:`refusal_of` reads theirs by status.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scanflow.errors import (
    AccessDeniedError,
    AlreadyRunningError,
    InternalError,
    InvalidError,
    MissingExtraError,
    NotFoundError,
    ScanflowError,
    ServiceFailedError,
    StepFailedError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)

PROBLEM_JSON = "application/problem+json"
_TYPE = "urn:scanflow:error:"
_STATUSES: Mapping[type[ScanflowError], int] = {
    AccessDeniedError: 401,
    AlreadyRunningError: 409,
    InternalError: 500,
    InvalidError: 422,
    MissingExtraError: 400,
    NotFoundError: 404,
    ServiceFailedError: 502,
    StepFailedError: 424,
    UnavailableError: 503,
    UnsupportedError: 400,
    UsageError: 400,
}
_TITLES: Mapping[type[ScanflowError], str] = {
    AccessDeniedError: "Access denied",
    AlreadyRunningError: "Somebody else is at it",
    InternalError: "A defect of scanflow",
    InvalidError: "A value cannot be accepted",
    MissingExtraError: "Something optional is not installed",
    NotFoundError: "There is nothing of that name",
    ServiceFailedError: "A service failed on the request",
    StepFailedError: "A step failed",
    UnavailableError: "It may pass: try again",
    UnsupportedError: "This backend cannot do that",
    UsageError: "The request needs a change",
}
_KINDS: Mapping[str, type[ScanflowError]] = {kind.__name__: kind for kind in _STATUSES}

_REFUSALS: Mapping[int, type[ScanflowError]] = {
    400: InvalidError,
    401: AccessDeniedError,
    403: AccessDeniedError,
    404: NotFoundError,
    405: InvalidError,
    406: InvalidError,
    409: AlreadyRunningError,
    413: InvalidError,
    415: InvalidError,
    421: AccessDeniedError,
    422: InvalidError,
    429: UnavailableError,
    500: ServiceFailedError,
    501: UnsupportedError,
    502: ServiceFailedError,
    503: UnavailableError,
    504: UnavailableError,
}
_PASSING = frozenset({408, 425, 429, 502, 503, 504})
_MOST_SHOWN = 500


def problem_of(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return the status and the problem document of an error.

    Of what is none of ours its class is told; its words stay in the log, since they may hold secrets.
    """
    kind = next((one for one in type(error).__mro__ if one in _STATUSES), InternalError)
    if isinstance(error, ScanflowError):
        detail = str(error)
    else:
        detail = f"{type(error).__name__} was raised where nothing should have been. The server's log has the details."
    return _STATUSES[kind], problem_document(
        _STATUSES[kind], detail, type=f"{_TYPE}{kind.__name__}", title=_TITLES[kind]
    )


def problem_document(status: int, detail: str, *, title: str, type: str = "about:blank", **more: Any) -> dict[str, Any]:
    """Return a problem document; ``about:blank``: HTTP's own words say all that its type would."""
    return {"type": type, "title": title, "status": status, "detail": detail, **more}


def status_of(error: Exception) -> int:
    return problem_of(error)[0]


def error_of(status: int, body: bytes, *, who: str = "The server") -> ScanflowError:
    """Return the error that an answer of our server tells of; one of a class we do not know is read by its status."""
    document = _document(body)
    kind, detail = _KINDS.get(str(document.get("type", "")).removeprefix(_TYPE)), document.get("detail")
    if kind is not None and isinstance(detail, str):
        return kind(detail)
    told = f"{who} answered {status}: {_message(body)}"
    if status in _PASSING:
        return UnavailableError(f"{told} Is it up? See: scanflow status. Start it: scanflow up")
    if status in {401, 403}:
        return UsageError(f"{told} Give the token that it accepts: SCANFLOW_TOKEN, or Client(url, token=...).")
    return UsageError(told) if 400 <= status < 500 else InternalError(told)


def refusal_of(status: int, body: bytes, *, retry_after: str | None = None, who: str = "It") -> ScanflowError:
    """Return the error that a service's answer tells of: a problem document, or whatever else it is."""
    kind = _REFUSALS.get(status) or (UsageError if 400 <= status < 500 else UnavailableError)
    again = f" Try again in {retry_after} s." if retry_after and retry_after.isdecimal() else ""
    return kind(f"{who} answered {status}: {_message(body)}{again}")


def _document(body: bytes) -> dict[str, Any]:
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _message(body: bytes) -> str:
    text = body.decode(errors="replace").strip()
    if document := _document(body):
        # Servers other than ours say it in `error`, or in Seldon's `status.info`.
        status = document.get("status")
        told = document.get("detail") or document.get("error") or (isinstance(status, dict) and status.get("info"))
        text = told if isinstance(told, str) else text
    text = text or "without a word."
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 1] + "…"
