"""What all clients of ours share: how they connect, when they send a request again, and how they read an answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from scanflow.errors import UnavailableError
from scanflow.http_security import is_loopback_host
from scanflow.problems import error_of

T = TypeVar("T")

CONNECT_TIMEOUT_S = 5.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0


def client_options(url: str, token: str | None, timeout_s: float) -> dict[str, Any]:
    """Return the options of an httpx client. No answer takes longer than ``timeout_s`` between two bytes."""
    return {
        "base_url": url,
        "headers": {} if token is None else {"authorization": f"Bearer {token}"},
        "timeout": httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
        # A proxy that the environment names cannot reach this machine's own address.
        "trust_env": not is_loopback(url),
    }


def is_loopback(url: str) -> bool:
    return is_loopback_host(urlsplit(url).hostname or "")


def read_reply(reply: httpx.Response, who: str) -> Any:
    """Return what an answer of a scanflow server or agent holds, or raise the error that it tells of."""
    if reply.status_code >= 300:
        raise error_of(reply.status_code, reply.content, who=who)
    if not reply.content:
        return None
    try:
        return json.loads(reply.content)
    except ValueError as error:
        raise UnavailableError(
            f"{who} is no scanflow server: what it answered is not JSON ({error}). See: scanflow status"
        ) from error


def retried(call: Callable[[], T], *, on: Callable[[Exception], bool | float], timeout_s: float) -> T:
    """Return what ``call`` returns; call it again, with growing waits, while it raises what may pass.

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
        on=on, attempts=None, timeout=timeout_s, wait_initial=FIRST_WAIT_S, wait_max=LONGEST_WAIT_S, wait_jitter=0.1
    ):
        with attempt:
            if attempt.num == 1:
                raise failed
            return call()
    raise failed
