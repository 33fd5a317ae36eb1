"""Sends webhooks, signed as Standard Webhooks (standardwebhooks.com) specifies, and retries transient errors."""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import urlsplit

import httpx2

from scanflow.errors import InvalidError, UnavailableError
from scanflow.transport.clients import CONNECT_TIMEOUT_S, build_trust_options, retry

TIMEOUT_S = 5.0
_MAY_PASS = frozenset({408, 425, 429})


def compute_signature(secret: str, id: str, at: int, body: bytes) -> str:
    """Return the header ``webhook-signature``. A secret with the prefix ``whsec_`` is base64."""
    try:
        key = base64.b64decode(secret[6:], validate=True) if secret.startswith("whsec_") else secret.encode()
    except ValueError as error:
        raise InvalidError("The secret of a webhook begins with 'whsec_', but the rest is not base64.") from error
    mac = hmac.new(key, f"{id}.{at}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(mac.digest()).decode()}"


def post(url: str, body: bytes, *, id: str, at: int, secret: str | None, patience_s: float = 10.0) -> None:
    """Post JSON, and retry transient errors for ``patience_s`` seconds. Redirects are not followed.

    Errors name the host alone: the rest of an address may be a secret.

    Raises:
        UnavailableError: nobody answers, or asks to be left alone for now.
        InvalidError: it is refused.
    """
    headers = {"content-type": "application/json", "webhook-id": id, "webhook-timestamp": str(at)}
    if secret is not None:
        headers["webhook-signature"] = compute_signature(secret, id, at, body)
    timeout, host = httpx2.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S), urlsplit(url).hostname

    def send() -> None:
        try:
            trust = build_trust_options(url)
            with httpx2.stream("POST", url, content=body, headers=headers, timeout=timeout, **trust) as reply:
                status = reply.status_code  # what else it says is not read: it could go on for ever
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise UnavailableError(f"The webhook at {host!r} cannot be reached: {type(error).__name__}.") from None
        if status in _MAY_PASS or status >= 500:
            raise UnavailableError(f"The webhook at {host!r} answered with status {status}.")
        if status >= 300:
            raise InvalidError(f"The webhook at {host!r} refused the request with status {status}.")

    retry(send, on=lambda error: isinstance(error, UnavailableError), timeout_s=patience_s)
