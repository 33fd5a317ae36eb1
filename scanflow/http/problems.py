"""Converts errors to HTTP problem documents, and responses to errors: the only module that does so.

Our own server writes problem documents (RFC 9457) whose ``type`` names the error's class. Services that speak the Open
Inference Protocol have no such type; :func:`parse_refusal` reads theirs by status.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scanflow import errors
from scanflow.errors import InternalError, ScanflowError, UnavailableError, UsageError
from scanflow.text.masking import mask_addresses

PROBLEM_JSON = "application/problem+json"

_TYPE = "urn:scanflow:error:"
_STATUS_AND_TITLE: Mapping[type[ScanflowError], tuple[int, str]] = {
    errors.AccessDeniedError: (401, "Access denied"),
    errors.AlreadyRunningError: (409, "Already running in another process"),
    errors.ForbiddenError: (403, "The token does not allow this request"),
    errors.InternalError: (500, "Internal error of scanflow"),
    errors.InvalidError: (422, "Invalid value"),
    errors.MissingExtraError: (400, "An optional dependency is not installed"),
    errors.NotFoundError: (404, "Not found"),
    errors.OverLimitError: (429, "Too many requests at once"),
    errors.ServiceFailedError: (502, "The service failed on the request"),
    errors.StepFailedError: (424, "A step failed"),
    errors.TooLargeError: (413, "Too large"),
    errors.UnavailableError: (503, "Temporarily unavailable: try again"),
    errors.UnsupportedError: (400, "Not supported by this backend"),
    errors.UsageError: (400, "Invalid request"),
}
"""The status and the title of each error's problem document."""

_KINDS: Mapping[str, type[ScanflowError]] = {kind.__name__: kind for kind in _STATUS_AND_TITLE}
_STATUSES_BY_KIND: Mapping[type[ScanflowError], tuple[int, ...]] = {
    errors.AccessDeniedError: (401, 403, 421),
    errors.AlreadyRunningError: (409,),
    errors.InvalidError: (400, 405, 406, 413, 415, 422),
    errors.NotFoundError: (404,),
    errors.ServiceFailedError: (500, 502),
    errors.UnavailableError: (429, 503, 504),
    errors.UnsupportedError: (501,),
}
_REFUSALS = {status: kind for kind, statuses in _STATUSES_BY_KIND.items() for status in statuses}
_PASSING = frozenset({408, 425, 429, 502, 503, 504})
_MAX_SHOWN = 500


def build_problem(error: Exception) -> tuple[int, dict[str, Any]]:
    """Build the status and the problem document of an error.

    Credentials in addresses are masked. Of foreign errors only the class is included; the message stays in the log,
    since it may hold secrets.
    """
    kind = next((base for base in type(error).__mro__ if base in _STATUS_AND_TITLE), InternalError)
    if isinstance(error, ScanflowError):
        detail = mask_addresses(str(error))
    else:
        detail = f"{type(error).__name__} was raised unexpectedly. The server's log has the details."
    status, title = _STATUS_AND_TITLE[kind]
    return status, build_problem_document(status, detail, type=f"{_TYPE}{kind.__name__}", title=title)


def build_problem_document(
    status: int, detail: str, *, title: str, type: str = "about:blank", **more: Any
) -> dict[str, Any]:
    return {"type": type, "title": title, "status": status, "detail": detail, **more}


def get_status(error: Exception) -> int:
    return build_problem(error)[0]


def parse_error(status: int, body: bytes, *, who: str = "The server") -> ScanflowError:
    """Parse the error in a response of our server; an unknown class is mapped by the status."""
    document = _parse_document(body)
    kind, detail = _KINDS.get(str(document.get("type", "")).removeprefix(_TYPE)), document.get("detail")
    if kind is not None and isinstance(detail, str):
        return kind(detail)
    text = f"{who} answered {status}: {_extract_message(body)}"
    if status in _PASSING:
        return UnavailableError(f"{text} Is it running? See: scanflow status. Start it: scanflow up")
    if status in {401, 403}:
        return UsageError(f"{text} Give the token that it accepts: SCANFLOW_TOKEN, or Client(url, token=...).")
    return UsageError(text) if 400 <= status < 500 else InternalError(text)


def parse_refusal(status: int, body: bytes, *, retry_after: str | None = None, who: str = "It") -> ScanflowError:
    """Parse the error in a service's response: a problem document, or any other body."""
    kind = _REFUSALS.get(status) or (UsageError if 400 <= status < 500 else UnavailableError)
    again = f" Try again in {retry_after} s." if retry_after and retry_after.isdecimal() else ""
    return kind(f"{who} answered {status}: {_extract_message(body)}{again}")


def _parse_document(body: bytes) -> dict[str, Any]:
    try:
        document: Any = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _extract_message(body: bytes) -> str:
    text = body.decode(errors="replace").strip()
    if document := _parse_document(body):
        # Servers other than ours say it in `error`, or in Seldon's `status.info`.
        status = document.get("status")
        detail = document.get("detail") or document.get("error") or (isinstance(status, dict) and status.get("info"))
        text = detail if isinstance(detail, str) else text
    text = text or "no message."
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"
