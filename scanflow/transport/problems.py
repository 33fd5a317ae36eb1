"""Errors and HTTP statuses: the one place that turns one into the other, both ways."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scanflow.errors import (
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

__all__ = ["error_of", "status_of"]

_ERRORS: Mapping[int, type[ScanflowError]] = {
    400: InvalidError,
    404: NotFoundError,
    405: InvalidError,
    406: InvalidError,
    409: AlreadyRunningError,
    413: InvalidError,
    415: InvalidError,
    422: InvalidError,
    429: UnavailableError,
    500: ServiceFailedError,
    501: UnsupportedError,
    502: ServiceFailedError,
    503: UnavailableError,
    504: UnavailableError,
}
_STATUSES: Mapping[type[ScanflowError], int] = {
    AlreadyRunningError: 409,
    InternalError: 500,
    InvalidError: 400,
    MissingExtraError: 501,
    NotFoundError: 404,
    ServiceFailedError: 500,
    StepFailedError: 422,
    UnavailableError: 503,
    UnsupportedError: 501,
    UsageError: 422,
}
_MOST_SHOWN = 500


def status_of(error: ScanflowError) -> int:
    """Return the status of an answer that tells of this error."""
    return next((_STATUSES[kind] for kind in type(error).__mro__ if kind in _STATUSES), 500)


def error_of(status: int, body: bytes, *, retry_after: str | None = None, who: str = "It") -> ScanflowError:
    """Return the error that an answer of ``who`` tells of: a problem document (RFC 9457), or whatever else it is."""
    kind = _ERRORS.get(status) or (UsageError if 400 <= status < 500 else UnavailableError)
    again = f" Try again in {retry_after} s." if retry_after and retry_after.isdecimal() else ""
    return kind(f"{who} answered {status}: {_words(body)}{again}")


def _words(body: bytes) -> str:
    text = body.decode(errors="replace").strip()
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        # Servers other than ours say it in `error`, or in Seldon's `status.info`.
        status = document.get("status")
        told = document.get("detail") or document.get("error") or (isinstance(status, dict) and status.get("info"))
        text = told if isinstance(told, str) else text
    text = text or "without a word."
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 1] + "…"
