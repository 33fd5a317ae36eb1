"""Errors of requests as problem documents (RFC 9457)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec

from scanflow.errors import did_you_mean
from scanflow.http.problems import PROBLEM_JSON, build_problem_document
from scanflow_serving.messages import Headers, Response

_MAX_SHOWN = 2000
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class ProblemError(Exception):
    """An error of a request: what was wrong, where, and what is right."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        title: str | None = None,
        retry_after_s: float | None = None,
        headers: Headers = (),
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.title = title or _PHRASES.get(status, "Error")
        self.detail = detail if len(detail) <= _MAX_SHOWN else detail[: _MAX_SHOWN - 1] + "…"
        self.retry_after_s = retry_after_s
        self.headers = headers
        self.extra = extra or {}
        self.is_lasting = False
        """Whether this process can answer no later request either, so that it is to be replaced."""

    def build_response(self) -> Response:
        """Return the response; ``retry-after`` is in whole seconds, at least 1."""
        # Clients of the Open Inference Protocol read the message from `error`.
        more = {"error": self.detail, **self.extra}
        body = _encode({**build_problem_document(self.status, self.detail, title=self.title), **more})
        headers = self.headers
        if self.retry_after_s is not None:
            headers = (*headers, ("retry-after", str(max(1, math.ceil(self.retry_after_s)))))
        return Response(self.status, body, PROBLEM_JSON, headers)


def invalid(detail: str, **extra: Any) -> ProblemError:
    return ProblemError(400, detail, extra=extra)


def refuse_multipart(media: str) -> None:
    """Refuse a form of several parts (415): its fields have no meaning in any of the protocols."""
    if media.lower().startswith("multipart/"):
        raise ProblemError(
            415, "The body is a form of several parts (multipart/form-data). Send JSON: content-type: application/json."
        )


def make_not_found(kind: str, name: str, names: Iterable[str]) -> ProblemError:
    short = name if len(name) <= 80 else name[:79] + "…"
    return ProblemError(404, f"There is no {kind} {short!r} here.{did_you_mean(name[:200], names)}")


def _encode(document: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:  # surrogates in a user's exception: Python's own encoder writes them as \\u
        return json.dumps(document, default=repr).encode()
