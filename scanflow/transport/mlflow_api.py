"""Access to an MLflow server by its REST API (https://mlflow.org/docs/latest/api_reference/rest-api.html)."""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping
from typing import Any

import httpx

from scanflow.errors import UnavailableError
from scanflow.transport.clients import build_client_options

TIMEOUT_S = 60.0
"""Longest wait for the next byte of an answer: SQLite executes writes one after the other."""


class MlflowApiError(Exception):
    """An error response of MLflow."""

    def __init__(self, error_code: str, text: str) -> None:
        super().__init__(text)
        self.error_code = error_code
        """The same as in MLflow's own exceptions, such as ``RESOURCE_DOES_NOT_EXIST``."""


class MlflowApi:
    """Thread-safe. It keeps its connections."""

    def __init__(self, url: str, *, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url
        self._client = httpx.Client(
            transport=transport, **build_client_options(f"{url}/api/2.0/mlflow", token=None, timeout_s=TIMEOUT_S)
        )
        weakref.finalize(self, self._client.close)

    def get(self, path: str, parameters: Mapping[str, str | int | None]) -> dict[str, Any]:
        """Return the response; parameters that are None are left out.

        Raises:
            MlflowApiError: it refuses.
            UnavailableError: it does not answer.
        """
        return self._request("GET", path, params=_drop_none(parameters))

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a document without the fields that are None, and return the response. Errors: see :meth:`get`."""
        return self._request("POST", path, json=_drop_none(body))

    def _request(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        try:
            reply = self._client.request(method, path, **content)
        except httpx.HTTPError as error:
            reason = f"{type(error).__name__}: {error}"
            raise UnavailableError(f"The tracker at {self.url} does not answer: {reason}. Try again.") from error
        try:
            answer = json.loads(reply.content)
        except ValueError:
            answer = None
        if reply.status_code >= 300 or not isinstance(answer, dict):
            problem = answer if isinstance(answer, dict) else {}
            text = problem.get("message") or f"{method} {path}: {reply.status_code} {reply.text[:200]}"
            raise MlflowApiError(str(problem.get("error_code", "INTERNAL_ERROR")), str(text))
        return answer


def _drop_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
