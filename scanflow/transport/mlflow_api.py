"""Access to an MLflow server by its REST API (https://mlflow.org/docs/latest/api_reference/rest-api.html)."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2

from scanflow.errors import UnavailableError
from scanflow.text.masking import mask_addresses
from scanflow.transport.clients import build_client_options, drop_none
from scanflow.transport.unix_socket import UnixTransport

TIMEOUT_S = 60.0
"""Longest wait for the next byte of an answer: SQLite executes writes one after the other."""

MLFLOW_PATH = "/mlflow"
"""Where Scanflow's server has MLflow."""

TEAM_HEADER = "x-scanflow-team"
"""The header that tells MLflow's server, behind Scanflow's, for which team a request is. Without it: for all."""

_API, _ARTIFACTS = "/api/2.0/mlflow", "/api/2.0/mlflow-artifacts/artifacts"


class MlflowApiError(Exception):
    """An error response of MLflow."""

    def __init__(self, error_code: str, text: str) -> None:
        super().__init__(text)
        self.error_code = error_code
        """The same as in MLflow's own exceptions, such as ``RESOURCE_DOES_NOT_EXIST``."""


class MlflowApi:
    """Thread-safe. It keeps its connections."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        socket: Path | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        """``socket``: the Unix socket that the server listens on, in place of the host in ``url``."""
        self.url = url if socket is None else str(socket)
        chosen = transport if socket is None else UnixTransport(socket)
        self._client = httpx2.Client(transport=chosen, **build_client_options(url, token=token, timeout_s=TIMEOUT_S))
        weakref.finalize(self, self._client.close)

    def get(self, path: str, parameters: Mapping[str, str | int | None]) -> dict[str, Any]:
        """Return the response; parameters that are None are left out.

        Raises:
            MlflowApiError: it refuses.
            UnavailableError: it does not answer.
        """
        return self._request("GET", _API + path, params=drop_none(parameters))

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a document without the fields that are None, and return the response. Errors: see :meth:`get`."""
        return self._request("POST", _API + path, json=drop_none(body))

    def list_artifacts(self, path: str) -> list[dict[str, Any]]:
        """List a folder of artifacts: ``path``, relative to it, and ``is_dir``. Errors: see :meth:`get`."""
        answer = self._request("GET", _ARTIFACTS, params={"path": path})
        entries: list[dict[str, Any]] = answer.get("files", [])
        return entries

    def upload_artifact(self, path: str, file: Path) -> None:
        """Write a file below the server's artifacts, streamed. Errors: see :meth:`get`."""
        with file.open("rb") as content:
            headers = {"content-type": "application/octet-stream", "content-length": str(file.stat().st_size)}
            self._send("PUT", f"{_ARTIFACTS}/{quote(path)}", content=content, headers=headers)

    def download_artifact(self, path: str, file: Path) -> None:
        """Read a file of the server's artifacts, streamed, into ``file``. Errors: see :meth:`get`."""
        address = f"{_ARTIFACTS}/{quote(path)}"
        with self._translate_errors(), self._client.stream("GET", address) as reply:
            if reply.status_code >= 300:
                reply.read()
                raise _build_error("GET", address, reply)
            with file.open("wb") as content:
                for block in reply.iter_bytes():
                    content.write(block)

    def _request(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        reply = self._send(method, path, **content)
        answer = _parse(reply)
        if answer is None:
            raise _build_error(method, path, reply)
        return answer

    def _send(self, method: str, path: str, **content: Any) -> httpx2.Response:
        with self._translate_errors():
            reply = self._client.request(method, path, **content)
        if reply.status_code >= 300:
            raise _build_error(method, path, reply)
        return reply

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except httpx2.HTTPError as error:
            reason = f"{type(error).__name__}: {error}"
            raise UnavailableError(
                f"The tracker at {mask_addresses(self.url)} does not answer: {reason}. Try again."
            ) from error


def _build_error(method: str, path: str, reply: httpx2.Response) -> MlflowApiError:
    problem = _parse(reply) or {}
    text = problem.get("message") or f"{method} {path.removeprefix(_API)}: {reply.status_code} {reply.text[:200]}"
    return MlflowApiError(str(problem.get("error_code", "INTERNAL_ERROR")), str(text))


def _parse(reply: httpx2.Response) -> dict[str, Any] | None:
    """Return the JSON object in a response; None: it is none."""
    try:
        document = json.loads(reply.content)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
