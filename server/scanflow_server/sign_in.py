"""Signing in by OpenID Connect: a browser's way to the provider and back, and the token that a person gets for it.

What a sign-in begins with is in a cookie of the browser, and its ``state``, ``nonce`` and PKCE verifier are derived
from that cookie with a key of this process. So beginning sign-ins fills no memory, and each is good once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode

from scanflow.errors import AccessDeniedError, ForbiddenError
from scanflow.http.home_token import hash_token, make_token
from scanflow_server.auth import get_home_owner
from scanflow_server.identity_provider import CodeExchange, IdentityProvider
from scanflow_server.server_context import ServerContext
from scanflow_server.sign_in_settings import choose_rule
from scanflow_server.store import token_store
from scanflow_server.store.token_store import TokenRow
from scanflow_server.token_roles import TokenHolder

LIFETIME_S: Final = 600.0
"""How long a person may take at the provider, in seconds."""

_MAX_USED: Final = 10_000
_EMAIL: Final = re.compile(r"[A-Za-z0-9.!#$&'*+=?^_`{|}~-]{1,64}@[A-Za-z0-9.-]{1,53}")
_SUBJECT: Final = re.compile(r"[!-.0-~]{1,100}")

_AGAIN: Final = "Sign in again."


@dataclass(frozen=True, kw_only=True)
class Person:
    """Who signed in, and what the provider's groups let that person do."""

    holder: TokenHolder
    subject: str
    """The provider's own name for the person, which never changes."""


class PendingSignIns:
    """The sign-ins that began in browsers and have not come back. ``clock`` returns seconds since the epoch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._key = clock, secrets.token_bytes(32)
        self._used: OrderedDict[str, None] = OrderedDict()

    def begin(self, after: str) -> str:
        """Return the cookie of a new sign-in; ``after``: what to do then."""
        return f"{int(self._clock())}.{secrets.token_urlsafe(24)}.{quote(after, safe='')}"

    def derive(self, cookie: str, what: str) -> str:
        """Return the ``state``, ``nonce`` or ``verifier`` of a sign-in: 43 characters."""
        digest = hmac.digest(self._key, f"{what}\0{cookie}".encode(), "sha256")
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")

    def finish(self, cookie: str, state: str) -> str:
        """Return what to do after a sign-in that came back, once.

        Raises:
            AccessDeniedError: it did not begin in this browser, too long ago, or came back before.
        """
        if not hmac.compare_digest(self.derive(cookie, "state").encode(), state.encode()):
            raise AccessDeniedError(f"The sign-in did not begin in this browser, or the server was restarted. {_AGAIN}")
        began, _, after = cookie.split(".", 2)
        if not 0 <= self._clock() - int(began) <= LIFETIME_S:
            raise AccessDeniedError(f"The sign-in took longer than {LIFETIME_S / 60:.0f} minutes. {_AGAIN}")
        if cookie in self._used:
            raise AccessDeniedError(f"The sign-in came back a second time. {_AGAIN}")
        self._used[cookie] = None
        if len(self._used) > _MAX_USED:
            self._used.popitem(last=False)
        return unquote(after)


class SignIn:
    """The sign-ins of one server."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self.provider = IdentityProvider(context.settings, clock=context.clock)
        self.settings = self.provider.settings
        self._pending = PendingSignIns(context.clock)

    async def begin(self, redirect_uri: str, after: str) -> tuple[str, str]:
        """Return the provider's address to send a browser to, and the cookie to send with it.

        Raises:
            UnavailableError: the provider does not answer.
        """
        document = await self.provider.get_document()
        cookie = self._pending.begin(after)
        challenge = hashlib.sha256(self._pending.derive(cookie, "verifier").encode()).digest()
        query = urlencode(
            {
                "response_type": "code",
                "client_id": self.settings.client_id,
                "redirect_uri": redirect_uri,
                "scope": self.settings.scopes,
                "state": self._pending.derive(cookie, "state"),
                "nonce": self._pending.derive(cookie, "nonce"),
                "code_challenge": base64.urlsafe_b64encode(challenge).rstrip(b"=").decode("ascii"),
                "code_challenge_method": "S256",
            }
        )
        address = document.authorization_endpoint
        return f"{address}{'&' if '?' in address else '?'}{query}", cookie

    async def finish(self, redirect_uri: str, cookie: str, query: Mapping[str, str]) -> tuple[Person, str]:
        """Return who signed in, and what to do then, from the query with which the provider sent a browser back.

        Raises:
            AccessDeniedError: the sign-in is refused, here or by the provider.
            ForbiddenError: the person is in no group that may do anything.
            UnavailableError: the provider does not answer.
        """
        after = self._pending.finish(cookie, query.get("state", ""))
        if query.get("iss", self.settings.issuer) != self.settings.issuer:  # RFC 9207
            raise AccessDeniedError(f"Another provider than {self.settings.name} answered. {_AGAIN}")
        if "error" in query or not query.get("code"):
            raise AccessDeniedError(f"{self.settings.name} refused the sign-in: {query.get('error', 'no code')!r:.60}.")
        exchange = CodeExchange(
            code=query["code"],
            redirect_uri=redirect_uri,
            verifier=self._pending.derive(cookie, "verifier"),
            nonce=self._pending.derive(cookie, "nonce"),
        )
        return self._admit(await self.provider.redeem(exchange)), after

    def _admit(self, claims: Mapping[str, Any]) -> Person:
        name, groups = name_person(claims, reserved=get_home_owner()), read_groups(claims, self.settings.groups_claim)
        rule = choose_rule(groups, self.settings.groups)
        if rule is None:
            raise ForbiddenError(
                f"{name} signed in at {self.settings.name}, but is in no group that may use this server. Ask its "
                "administrator to add you to one, or to map one of yours (SCANFLOW_OIDC_GROUPS)."
            )
        return Person(holder=TokenHolder(name, rule.role, rule.team), subject=str(claims["sub"]))

    def make_token(self, person: Person, lifetime_s: float) -> tuple[TokenRow, str]:
        """Make a token of a person's role and team, and return its row and the token."""
        token, at, holder = make_token(), self._context.clock(), person.holder
        assert holder.role != "step"
        with self._context.store.write() as connection:
            row = token_store.add_of_person(
                connection,
                TokenRow(
                    name=holder.name, person=holder.name, role=holder.role, team=holder.team, created=at,
                    expires=at + lifetime_s,
                ),
                hash_token(token),
            )  # fmt: skip
        self._context.token_notifier.notify()
        return row, token


def name_person(claims: Mapping[str, Any], *, reserved: str) -> str:
    """Return the name under which a person acts: the email, unless the provider says that it is not verified.

    Otherwise ``oidc:`` and the provider's own name. No token that an admin makes can have such a name; ``reserved`` is
    that of the home's owner.
    """
    email, subject = claims.get("email"), str(claims["sub"])
    is_verified = claims.get("email_verified", True) in (True, "true")
    if isinstance(email, str) and is_verified and _EMAIL.fullmatch(email) and email != reserved:
        return email
    is_plain = _SUBJECT.fullmatch(subject) is not None
    return f"oidc:{subject if is_plain else hashlib.sha256(subject.encode()).hexdigest()[:32]}"


def read_groups(claims: Mapping[str, Any], claim: str) -> Collection[str]:
    """Return the names of groups in a claim: a list, or a single name."""
    value = claims.get(claim)
    values = value if isinstance(value, list) else [value]
    return frozenset(name for name in values if isinstance(name, str))
