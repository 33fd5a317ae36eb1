"""The client of our own server: JSON and bytes, and streams that resume after the server was unavailable."""

from __future__ import annotations

import json
import math
import re
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2

from scanflow.errors import InvalidError, ScanflowError, UnavailableError
from scanflow.http.problems import parse_error
from scanflow.text.masking import mask_addresses
from scanflow.transport.clients import (
    CONNECT_TIMEOUT_S,
    build_client_options,
    build_trust_options,
    drop_none,
    read_reply,
    retry,
    retry_request,
)
from scanflow.transport.sse import Message, Parser

BASE = "/api/v1"
TIMEOUT_S = 60.0
"""The longest pause within a response; longer work is an operation, whose progress is streamed."""

EVENTS_SILENCE_S = 45.0
"""After this long without a byte, a stream of events is reopened at its last position: the peer may be gone."""

BYTES_SILENCE_S = 600.0
"""The same for a stream of bytes, which restarts at its beginning when it is reopened."""

PATIENCE_S = 30.0
"""How long a server may be unavailable (during a restart) before a stream fails."""

_TOO_MANY = 429
MAX_WAIT_S = 5.0
"""The longest wait that a server may ask for, in seconds, before a request is repeated."""

_UNAVAILABLE_STATUSES = frozenset({502, 503, 504})


def build_path(*parts: str) -> str:
    """Build a path such as ``/runs/tall-fox``; each part is quoted."""
    for part in parts:
        if part in {"", ".", ".."} or "/" in part:  # the server would see other parts
            raise InvalidError(
                f"{part!r:.200} is not a name. Give that of a run, a service, a step or an action, as `scanflow runs`, "
                "`scanflow services` and `scanflow why` list them."
            )
    return "".join(f"/{quote(part, safe='@')}" for part in parts)


class ServerClient:
    """One server, by its address. It keeps its connections until closed or deleted, and may be used by several threads.

    Every method raises what the server raised (a problem document becomes the same error again), and
    ``UnavailableError`` where it cannot be reached: at once if it never answered, and after ``patience_s`` if it is
    away in the middle of something.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = TIMEOUT_S,
        patience_s: float = PATIENCE_S,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self.url, self.token = _check_url(url), token
        self._patience_s = patience_s
        self._met = False
        if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token and token):
            raise InvalidError(
                "The token cannot be sent: it contains spaces or characters that no token has. Copy it again."
            )
        self._client = httpx2.Client(transport=transport, **build_client_options(self.url, token, timeout_s))
        self._finalizer = weakref.finalize(self, self._client.close)

    def get(self, path: str, **query: Any) -> Any:
        """Return the document at ``path`` (below ``/api/v1``)."""
        return self._request("GET", path, query=query)

    def post(self, path: str, body: Any = None, *, key: str | None = None) -> Any:
        """Send a document and return the answer.

        ``key`` names this one wish: with it, an answer that was lost on the way is asked for again, and the wish is
        acted on once.
        """
        return self._request("POST", path, body={} if body is None else body, key=key)

    def patch(self, path: str, body: Any, *, key: str | None = None) -> Any:
        """Send a PATCH request with a JSON body, and return the response's JSON."""
        return self._request("PATCH", path, body=body, key=key)

    def put(self, path: str, body: Any) -> Any:
        """Send a PUT request with a JSON body, and return the response's JSON."""
        return self._request("PUT", path, body=body)

    def delete(self, path: str, *, key: str | None = None) -> Any:
        """Send a DELETE request, and return the response's JSON."""
        return self._request("DELETE", path, key=key)

    def is_ready(self, *, timeout_s: float = 1.0) -> tuple[bool, str]:
        """Return whether the server is ready, and its message; an unreachable server is not ready."""
        try:
            reply = self._client.get("/readyz", timeout=timeout_s)
        except httpx2.HTTPError as error:
            return False, str(error) or type(error).__name__
        return reply.status_code == 200, reply.text

    @staticmethod
    def found_no_listener(error: UnavailableError) -> bool:
        """Return whether a request failed as nothing listens at the address."""
        return isinstance(error.__cause__, httpx2.ConnectError)

    def events(
        self, path: str, *, after: str | None = None, timeout_s: float | None = None, **query: Any
    ) -> Iterator[Message]:
        """Yield the events streamed at ``path`` until the server ends the stream, or for ``timeout_s``.

        When the connection is lost it is opened anew with ``Last-Event-ID``, so no event is lost and none told twice;
        where the server numbers nothing, as many as were told are passed over. ``after`` is the id of the last event
        that is known already.
        """
        n_yielded, last = 0, after
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while (remaining_s := until - time.monotonic()) > 0:
            headers = {"accept": "text/event-stream"} | ({} if last is None else {"last-event-id": last})
            n_skipped, parser = n_yielded if last is None else 0, Parser()
            try:
                for block in self._read_blocks(path, query, headers, min(EVENTS_SILENCE_S, remaining_s)):
                    for message in parser.feed(block):
                        if n_skipped:
                            n_skipped -= 1
                        elif not _is_past(message.id, last):
                            n_yielded, last = n_yielded + 1, message.id if message.id is not None else last
                            yield message
                    if timeout_s is not None and time.monotonic() + EVENTS_SILENCE_S > until:
                        break  # opened anew, for as long as there is left
                else:
                    return
            except httpx2.TransportError:
                continue  # it was open, and is opened again

    def stream(self, path: str, *, reopened: Callable[[], None] | None = None, **query: Any) -> Iterator[bytes]:
        """Yield the bytes at ``path`` as they arrive. A lost connection is reopened; bytes already yielded are skipped.

        With ``reopened``, for bytes that may come in another order the second time, it is called when the connection
        was opened anew, and everything is told again.
        """
        n_yielded = 0
        while True:
            n_skipped = n_yielded
            try:
                for block in self._read_blocks(path, query, {}, BYTES_SILENCE_S):
                    fresh, n_skipped = block[n_skipped:], max(0, n_skipped - len(block))
                    if fresh:
                        n_yielded += len(fresh)
                        yield fresh
                return
            except httpx2.TransportError:
                if reopened is not None:
                    n_yielded = 0
                    reopened()

    def close(self) -> None:
        """Close the connections to the server."""
        self._finalizer()

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        key: str | None = None,
    ) -> Any:
        headers = {} if key is None else {"idempotency-key": key}
        content = None if body is None else _encode(body)
        if content is not None:
            headers["content-type"] = "application/json"
        params, may_repeat = drop_none(query or {}), method == "GET" or key is not None

        def send() -> httpx2.Response:
            return self._client.request(method, BASE + path, content=content, headers=headers, params=params)

        lost = False

        def may_pass(error: Exception) -> bool:
            # What may have been done already is only sent again where the server sees that it is the same request.
            nonlocal lost
            refused = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            lost = lost or (may_repeat and not refused)
            return isinstance(error, httpx2.TransportError) and lost

        try:
            reply = retry_request(
                send, is_busy=_has_too_many, on=may_pass, timeout_s=self._patience_s, max_wait_s=MAX_WAIT_S
            )
        except httpx2.HTTPError as error:
            raise self._build_unreachable_error(error) from error
        self._met = True
        return read_reply(reply, self._who)

    def _read_blocks(
        self, path: str, query: Mapping[str, Any], headers: Mapping[str, str], silence_s: float
    ) -> Generator[bytes, None, None]:
        """Yield the blocks of one connection. Wait for a server that was available before.

        Raises:
            httpx2.TransportError: the connection was lost after something came, or nothing came for too long.
            UnavailableError: there is no connection.
        """

        def begin() -> tuple[Generator[bytes, None, None], bytes | None]:
            opened = self._open(path, query, headers, silence_s)
            return opened, next(opened, None)

        def may_pass(error: Exception) -> bool:
            if isinstance(error, _AwayError):
                return True
            return isinstance(error, httpx2.TransportError) and not isinstance(error, httpx2.ReadTimeout) and self._met

        try:
            blocks, block = retry(begin, on=may_pass, timeout_s=self._patience_s)
        except _AwayError as error:
            raise error.error from None
        except httpx2.ReadTimeout:
            raise
        except httpx2.HTTPError as error:
            raise self._build_unreachable_error(error) from error
        with closing(blocks):
            while block is not None:
                yield block
                block = next(blocks, None)

    def _open(
        self, path: str, query: Mapping[str, Any], headers: Mapping[str, str], silence_s: float
    ) -> Generator[bytes, None, None]:
        timeout = httpx2.Timeout(silence_s, connect=CONNECT_TIMEOUT_S)
        with self._client.stream(
            "GET", BASE + path, params=drop_none(query), headers=dict(headers), timeout=timeout
        ) as reply:
            if reply.status_code >= 300:
                error = parse_error(reply.status_code, reply.read(), who=self._who)
                raise _AwayError(error) if reply.status_code in _UNAVAILABLE_STATUSES and self._met else error
            self._met = True
            yield from reply.iter_bytes()

    @property
    def _who(self) -> str:
        return f"The server at {self.url}"

    def _build_unreachable_error(self, error: httpx2.HTTPError) -> UnavailableError:
        if isinstance(error, httpx2.ReadTimeout):
            words = "did not answer in time. It may be busy: try again, or see: scanflow status"
        else:
            why = re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__
            words = f"cannot be reached ({why}). Start it: scanflow up"
        return UnavailableError(f"{self._who} {words}")


class _AwayError(Exception):
    """The server, or a proxy before it, reports that it is temporarily unavailable."""

    def __init__(self, error: ScanflowError) -> None:
        super().__init__(str(error))
        self.error = error


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment or port == 0:
        raise InvalidError(
            f"{mask_addresses(url)!r} is not the address of a server. Write it as http://127.0.0.1:46666."
        )
    if parts.username or parts.password:
        raise InvalidError("The server's address contains a password. Remove it, and set a token: SCANFLOW_TOKEN.")
    return url.rstrip("/").removesuffix(BASE)


def _encode(body: Any) -> bytes:
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise InvalidError(f"The request cannot be serialized as JSON: {error}. Use plain values.") from error


def _has_too_many(reply: httpx2.Response) -> bool:
    """Return whether the server answers too many requests of this token already, and has done nothing of this one."""
    return reply.status_code == _TOO_MANY


def _is_past(id: str | None, last: str | None) -> bool:
    """Return whether an event was yielded before: a server that numbers events may still begin at the first."""
    return id is not None and last is not None and id.isdecimal() and last.isdecimal() and int(id) <= int(last)


def fetch_json(url: str, *, timeout_s: float = 2.0) -> Any:
    """Fetch JSON from an address; None for other content, or an error."""
    try:
        reply = httpx2.get(url, timeout=timeout_s, **build_trust_options(url))
        return reply.json() if reply.is_success else None
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError):
        return None


def is_reachable(url: str, *, timeout_s: float = 1.0) -> bool:
    """Return whether something answers at an address with a status of success, within ``timeout_s`` seconds."""
    try:
        return httpx2.get(url, timeout=timeout_s, **build_trust_options(url)).is_success
    except httpx2.HTTPError:
        return False
