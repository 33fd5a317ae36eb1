"""Errors and HTTP answers: the one place that turns one into the other, both ways.

Our own server writes problem documents (RFC 9457) whose ``type`` names the error's class. Services that speak the Open
Inference Protocol have no such type; :func:`refusal_of` reads theirs by status.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scanflow import errors
from scanflow.errors import InternalError, ScanflowError, UnavailableError, UsageError

PROBLEM_JSON = "application/problem+json"

_TYPE = "urn:scanflow:error:"
_TOLD_AS: Mapping[type[ScanflowError], tuple[int, str]] = {
    errors.AccessDeniedError: (401, "Access denied"),
    errors.AlreadyRunningError: (409, "Somebody else is at it"),
    errors.ForbiddenError: (403, "The token does not allow that"),
    errors.InternalError: (500, "A defect of scanflow"),
    errors.InvalidError: (422, "A value cannot be accepted"),
    errors.MissingExtraError: (400, "Something optional is not installed"),
    errors.NotFoundError: (404, "There is nothing of that name"),
    errors.ServiceFailedError: (502, "A service failed on the request"),
    errors.StepFailedError: (424, "A step failed"),
    errors.UnavailableError: (503, "It may pass: try again"),
    errors.UnsupportedError: (400, "This backend cannot do that"),
    errors.UsageError: (400, "The request needs a change"),
}
"""The status and the title of each error's problem document."""

_KINDS: Mapping[str, type[ScanflowError]] = {kind.__name__: kind for kind in _TOLD_AS}
_STATUSES_OF: Mapping[type[ScanflowError], tuple[int, ...]] = {
    errors.AccessDeniedError: (401, 403, 421),
    errors.AlreadyRunningError: (409,),
    errors.InvalidError: (400, 405, 406, 413, 415, 422),
    errors.NotFoundError: (404,),
    errors.ServiceFailedError: (500, 502),
    errors.UnavailableError: (429, 503, 504),
    errors.UnsupportedError: (501,),
}
_REFUSALS = {status: kind for kind, statuses in _STATUSES_OF.items() for status in statuses}
_PASSING = frozenset({408, 425, 429, 502, 503, 504})
_MOST_SHOWN = 500


def problem_of(error: Exception) -> tuple[int, dict[str, Any]]:
    """Return the status and the problem document of an error.

    Of what is none of ours its class is told; its words stay in the log, since they may hold secrets.
    """
    kind = next((one for one in type(error).__mro__ if one in _TOLD_AS), InternalError)
    if isinstance(error, ScanflowError):
        detail = str(error)
    else:
        detail = f"{type(error).__name__} was raised where nothing should have been. The server's log has the details."
    status, title = _TOLD_AS[kind]
    return status, problem_document(status, detail, type=f"{_TYPE}{kind.__name__}", title=title)


def problem_document(status: int, detail: str, *, title: str, type: str = "about:blank", **more: Any) -> dict[str, Any]:
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
