"""Ask our own server and agents from an event loop: JSON there and back, and their refusals as our errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx

from scanflow.errors import UnavailableError
from scanflow.transport.predictions import CONNECT_TIMEOUT_S, is_loopback
from scanflow.transport.problems import error_of

__all__ = ["AsyncJson"]

TIMEOUT_S = 10.0


class AsyncJson:
    """One server or agent, by its address. It keeps its connections until :meth:`close`."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = TIMEOUT_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Speak to who is at ``url``, such as ``http://127.0.0.1:46666``. No answer takes longer than ``timeout_s``."""
        self.url = url.rstrip("/")
        self._client = httpx.AsyncClient(
            base_url=self.url,
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            transport=transport,
            headers={} if token is None else {"authorization": f"Bearer {token}"},
            # A proxy that the environment names cannot reach this machine's own address.
            trust_env=not is_loopback(self.url),
        )

    async def ask(self, method: str, path: str, body: Any = None, *, key: str | None = None) -> Any:
        """Send a request, its body as JSON, and return what the answer holds.

        Args:
            method: ``GET``, ``POST``, ``PUT`` or ``DELETE``.
            path: Where, such as ``/api/v1/intents``.
            body: What JSON can hold; text is sent as it is, as it is JSON already. None: nothing.
            key: The idempotency key.

        Raises:
            UnavailableError: nobody answers.
            ScanflowError: what was answered, if that is a refusal.
        """
        headers: Mapping[str, str] = {"content-type": "application/json"} | (
            {} if key is None else {"idempotency-key": key}
        )
        content = None if body is None else body if isinstance(body, str) else json.dumps(body)
        try:
            reply = await self._client.request(method, path, content=content, headers=headers)
        except httpx.HTTPError as error:
            raise UnavailableError(
                f"{self.url} cannot be reached ({type(error).__name__}: {error}). Is it up? See: scanflow status"
            ) from error
        if reply.status_code >= 300:
            raise error_of(reply.status_code, reply.content, who=self.url)
        if not reply.content:
            return None
        try:
            return json.loads(reply.content)
        except ValueError as error:
            raise UnavailableError(f"What {self.url} answered is not JSON: {error}.") from error

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.aclose()
