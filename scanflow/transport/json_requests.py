"""One request to a server that is not ours and answers in JSON, within limits of time and size."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx2

from scanflow.errors import UnavailableError
from scanflow.transport.clients import build_trust_options

TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 2**20


async def request_json(
    method: str,
    url: str,
    *,
    form: Mapping[str, str] | None = None,
    credentials: tuple[str, str] | None = None,
    token: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> tuple[int, Any]:
    """Send a request; return the status and the document of its answer. Redirects are not followed.

    Args:
        method: Of HTTP.
        url: Where to. Errors name its host alone.
        form: Fields to send as a form.
        credentials: An OAuth client's id and secret, for HTTP Basic (RFC 6749, section 2.3.1).
        token: A bearer token.
        timeout_s: The longest to wait for the whole answer, in seconds.

    Raises:
        UnavailableError: nobody answers in time, or with more than ``MAX_BYTES``, or not with JSON.
    """
    host = urlsplit(url).hostname
    headers = {"accept": "application/json", "accept-encoding": "identity"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    id, secret = credentials or ("", "")
    auth = None if credentials is None else httpx2.BasicAuth(quote(id, safe=""), quote(secret, safe=""))
    content = bytearray()
    try:
        client = httpx2.AsyncClient(timeout=timeout_s, **build_trust_options(url))
        async with (
            asyncio.timeout(timeout_s),
            client,
            client.stream(method, url, data=form, headers=headers, auth=auth) as reply,
        ):
            async for block in reply.aiter_bytes():
                content += block
                if len(content) > MAX_BYTES:
                    raise UnavailableError(f"{host!r} answered with more than {MAX_BYTES:,} bytes.")
    except TimeoutError as error:
        raise UnavailableError(f"{host!r} did not answer within {timeout_s:g} s.") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise UnavailableError(f"{host!r} cannot be reached ({type(error).__name__}: {error}).") from error
    try:
        return reply.status_code, json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UnavailableError(f"{host!r} answered with status {reply.status_code}, and not with JSON.") from error
