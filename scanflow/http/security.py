"""Decides which HTTP requests a program on this machine may answer: by ``Host``, origin and bearer token.

A page in the user's browser can send requests to loopback, and a name that its owner points at 127.0.0.1 (DNS
rebinding) makes them look like the same site. Imports nothing but the standard library.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import urlsplit

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Authenticate: TypeAlias = Callable[[str], Awaitable[object | None]]
"""Returns the owner of a token; None: the token is unknown."""

ANY_HOST = "*"
_OWN_SITES = frozenset({b"same-origin", b"none"})
_CHECKED_HEADERS = (b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a request is refused, as a problem document (RFC 9457)."""

    status: int
    title: str
    detail: str

    @property
    def body(self) -> bytes:
        """The problem document, which the client raises as :class:`~scanflow.errors.AccessDeniedError`."""
        kind = "urn:scanflow:error:AccessDeniedError"
        document = {"type": kind, "title": self.title, "status": self.status, "detail": self.detail}
        return json.dumps(document).encode("ascii")

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        plain = [(b"content-type", b"application/problem+json"), (b"content-length", b"%d" % len(self.body))]
        return [*plain, (b"www-authenticate", b"Bearer")] if self.status == 401 else plain


def refuse_request(
    headers: Headers, *, hosts: Collection[str] = (), may_lead: bool = False, may_send: bool = False
) -> Refusal | None:
    """Return the refusal of a request because of its host or origin; None: it is allowed.

    ``hosts``: names beside loopback's under which the program may be reached, in lower case, without ports; ``*`` is
    any, for a program that nobody's loopback leads to. ``may_lead``: a page of another origin may lead the browser to
    this address, as a link or a redirect does. ``may_send``: its form may, which names that origin.
    """
    checked = [(name, value) for name, value in headers if name in _CHECKED_HEADERS]
    if sum(name == b"host" for name, _ in checked) > 1:
        return Refusal(400, "More than one Host", "The request has more than one Host header. Send one.")
    host, origin, site, mode = map(dict(checked).get, _CHECKED_HEADERS)
    if host is not None and not _is_allowed(host, hosts):
        return Refusal(
            421,
            "Unknown host",
            f"This server is not known as {_format_bytes(host)}. "
            "Use its loopback address, or ask its administrator to add the name to SCANFLOW_ALLOWED_HOSTS.",
        )
    is_led = mode == b"navigate" and (may_lead or may_send)
    is_foreign = site is not None and site not in _OWN_SITES and not is_led
    if is_foreign or (origin is not None and not _is_own(origin, host) and not (is_led and may_send)):
        return Refusal(
            403,
            "Cross-origin request",
            f"A page of another origin ({_format_bytes(origin or site or b'')}) sent this request. "
            "The server answers only its own pages and programs that are not browsers.",
        )
    return None


def refuse_media(method: str, headers: Headers) -> Refusal | None:
    """Return the refusal of a request whose body is not JSON; None: it is JSON, or empty."""
    if method not in {"POST", "PUT", "PATCH", "DELETE"}:
        return None
    header_by_name = dict(headers)
    if header_by_name.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in header_by_name:
        return None
    media = header_by_name.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if media == b"application/json" or (media.startswith(b"application/") and media.endswith(b"+json")):
        return None
    return Refusal(
        415,
        "Unsupported media type",
        f"The body is sent as {_format_bytes(media) if media else 'an unnamed type'}. Send JSON with the header "
        "Content-Type: application/json",
    )


def read_bearer_token(headers: Headers) -> str | None:
    """Return the token of ``Authorization: Bearer …``; None: there is none, or more than one."""
    values = [value for name, value in headers if name == b"authorization"]
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(b" ")
    return token.strip().decode("latin-1") or None if scheme.lower() == b"bearer" else None


def parse_host_name(host: bytes) -> str:
    """Return the name in a ``Host`` header, in lower case and without its port; empty: it is malformed."""
    try:
        parts = urlsplit(f"//{host.decode('ascii')}")
        parts.port  # noqa: B018  # raises where the port is no number
    except ValueError:
        return ""
    return "" if parts.path or parts.query or parts.username is not None else (parts.hostname or "").rstrip(".")


def is_loopback_host(name: str) -> bool:
    """Return whether a name or an address, without a port, can only mean this machine."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class RequestGuard:
    """Answers only requests of this origin, for a known host, with a valid token. Pure ASGI middleware.

    The token's owner is in ``scope["state"]["caller"]``; ``scope["state"]["still"]()`` tells whether the token is valid
    after a while, too. ``authenticate``: None: no token is asked for. ``landings``: methods and paths to which pages of
    other origins may lead a browser.
    """

    def __init__(
        self,
        app: App,
        *,
        hosts: Collection[str] = (),
        authenticate: Authenticate | None = None,
        open_paths: Collection[str] = (),
        landings: Collection[tuple[str, str]] = (),
        json_only: bool = False,
    ) -> None:
        self._app, self._authenticate, self._open, self._json = app, authenticate, frozenset(open_paths), json_only
        self._landings = frozenset(landings)
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        headers = scope["headers"]
        method = scope.get("method")
        may_lead = (method, scope["path"]) in self._landings
        may_send = may_lead and method == "POST"
        refusal = refuse_request(headers, hosts=self._hosts, may_lead=may_lead, may_send=may_send)
        if refusal is None and self._authenticate is not None:
            refusal = await self._refuse_caller(scope, self._authenticate)
        if refusal is None and self._json:
            refusal = refuse_media(scope.get("method", "GET"), headers)
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": refusal.status, "headers": refusal.headers})
            await send({"type": "http.response.body", "body": refusal.body})

    async def _refuse_caller(self, scope: Scope, authenticate: Authenticate) -> Refusal | None:
        token = read_bearer_token(scope["headers"])
        caller = None if token is None else await authenticate(token)
        state = scope.setdefault("state", {})
        state["caller"], state["still"] = caller, partial(_is_still_valid, authenticate, token)
        if caller is not None or scope["path"] in self._open:
            return None
        what = "No token was sent." if token is None else "The token is invalid or has expired."
        return Refusal(
            401,
            "A token is needed",
            f"{what} Set SCANFLOW_TOKEN to one that this server accepts: 'scanflow token show' prints it where the "
            "server runs, in its home (SCANFLOW_HOME). Where people sign in, the server's login page makes one.",
        )


async def _is_still_valid(authenticate: Authenticate, token: str | None) -> bool:
    return token is not None and await authenticate(token) is not None


def _is_allowed(host: bytes, hosts: Collection[str]) -> bool:
    name = parse_host_name(host)
    return bool(name) and (is_loopback_host(name) or name in hosts or ANY_HOST in hosts)


def _is_own(origin: bytes, host: bytes | None) -> bool:
    scheme, separator, place = origin.lower().partition(b"://")
    return bool(separator) and scheme in {b"http", b"https"} and host is not None and place == host.lower()


def _format_bytes(text: bytes) -> str:
    return repr(text.decode("ascii", "replace")[:80])
