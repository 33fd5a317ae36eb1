"""Shared by all our clients: connection options, retries, and reading of replies."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2

from scanflow.errors import UnavailableError
from scanflow.http.client_tls import add_client_files
from scanflow.http.problems import parse_error
from scanflow.http.security import is_loopback_host
from scanflow.pki import find_authority_file, find_client_certificate

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
FIRST_WAIT_S, MAX_WAIT_S = 0.1, 2.0


def build_client_options(url: str, token: str | None, timeout_s: float) -> dict[str, Any]:
    """Return the options of an httpx2 client. No answer takes longer than ``timeout_s`` between two bytes."""
    return {
        "base_url": url,
        "headers": {} if token is None else {"authorization": f"Bearer {token}"},
        "timeout": httpx2.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
        **build_trust_options(url),
    }


def build_trust_options(url: str) -> dict[str, Any]:
    """Return the options of httpx2 that say whom a client goes by: a proxy that the environment names cannot reach this
    machine's own address. Errors: see :func:`build_tls_context`."""
    return {"trust_env": not is_loopback(url), "verify": build_tls_context(url)}


def build_tls_context(url: str) -> ssl.SSLContext:
    """Build the TLS context for a server: the system's authorities, and those in ``SCANFLOW_TLS_CA``; unset: the home's
    own; and the certificate in ``SCANFLOW_TLS_CLIENT_CERT``, for services that ask for one.

    Nobody is trusted where the address speaks no TLS: to read the authorities takes longer than a request.

    Raises:
        UsageError: that file cannot be used.
    """
    if url.startswith("http://"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    files = [find_authority_file(), *(find_client_certificate() or ())]
    return load_context(*(("", 0) if file is None else (str(file), _read_time(file)) for file in files))


def _read_time(file: Path) -> int:
    try:
        return file.expanduser().stat().st_mtime_ns
    except OSError:  # which is said when it is read
        return 0


@lru_cache(maxsize=4)
def load_context(
    authority: tuple[str, int] = ("", 0), certificate: tuple[str, int] = ("", 0), key: tuple[str, int] = ("", 0)
) -> ssl.SSLContext:
    """Load files, each with the time of its writing: one that is written anew is read again."""
    context = httpx2.create_ssl_context()
    add_client_files(context, authority[0], certificate[0], key[0])
    return context


def is_loopback(url: str) -> bool:
    return is_loopback_host(urlsplit(url).hostname or "")


def read_reply(reply: httpx2.Response, who: str) -> Any:
    """Return the content of a reply from a scanflow server or agent, or raise the error in it."""
    if reply.status_code >= 300:
        raise parse_error(reply.status_code, reply.content, who=who)
    if not reply.content:
        return None
    try:
        return json.loads(reply.content)
    except ValueError as error:
        raise UnavailableError(
            f"{who} is not a scanflow server: its answer is not JSON ({error}). See: scanflow status"
        ) from error


def fetch_reply(url: str, path: str, *, token: str | None, timeout_s: float) -> Any:
    """Fetch a path from a scanflow server or agent; return the reply's content, or raise the error in it.

    Raises:
        UnavailableError: it does not answer.
    """
    try:
        with httpx2.Client(**build_client_options(url, token, timeout_s)) as client:
            return read_reply(client.get(path), url)
    except httpx2.HTTPError as error:
        raise UnavailableError(f"{url} cannot be reached ({type(error).__name__}: {error}).") from error


def drop_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


class _BusyError(Exception):
    """The server has done nothing of a request yet."""

    def __init__(self, reply: httpx2.Response) -> None:
        super().__init__(str(reply.status_code))
        self.reply = reply


def parse_retry_after(reply: httpx2.Response, max_wait_s: float) -> float:
    """Return how long a server asks to wait before a request is sent again, in seconds."""
    after = reply.headers.get("retry-after", "")
    return min(float(after), max_wait_s) if after.isdecimal() else FIRST_WAIT_S


def retry_request(
    send: Callable[[], httpx2.Response],
    *,
    is_busy: Callable[[httpx2.Response], bool],
    on: Callable[[Exception], bool],
    timeout_s: float,
    max_wait_s: float,
) -> httpx2.Response:
    """Return the reply of a request; retry as :func:`retry` does, and while the server says that it is busy.

    Args:
        send: Sends the request.
        is_busy: Whether a reply says that nothing of the request was done; its ``Retry-After`` says when to try again.
        on: Whether an error may pass.
        timeout_s: Longest to go on, in seconds; then the last reply is returned, or the last error raised.
        max_wait_s: The longest wait that the server may ask for, in seconds.
    """

    def send_once() -> httpx2.Response:
        reply = send()
        if is_busy(reply):
            raise _BusyError(reply)
        return reply

    def may_pass(error: Exception) -> bool | float:
        if isinstance(error, _BusyError):
            return parse_retry_after(error.reply, max_wait_s)
        return on(error)

    try:
        return retry(send_once, on=may_pass, timeout_s=timeout_s)
    except _BusyError as error:
        return error.reply


def retry(call: Callable[[], T], *, on: Callable[[Exception], bool | float], timeout_s: float) -> T:
    """Return what ``call`` returns; retry with exponential backoff while it raises transient errors.

    Args:
        call: Sends a request.
        on: Whether an error may pass; a number is how many seconds to wait this time.
        timeout_s: Longest to go on, in seconds; then the last error is raised.
    """
    try:
        return call()
    except Exception as error:
        if not on(error):
            raise
        failed = error
    import stamina

    for attempt in stamina.retry_context(
        on=on, attempts=None, timeout=timeout_s, wait_initial=FIRST_WAIT_S, wait_max=MAX_WAIT_S, wait_jitter=0.1
    ):
        with attempt:
            if attempt.num == 1:
                raise failed
            return call()
    raise failed
