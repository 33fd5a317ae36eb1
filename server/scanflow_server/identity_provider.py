"""The provider of OpenID Connect: what it says of itself, and who it says has signed in.

Signatures and claims are checked by joserfc. No key is cached: each sign-in reads the provider's, so that one that it
withdraws counts no more, and a new one at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from scanflow.errors import (
    AccessDeniedError,
    InvalidError,
    MissingExtraError,
    ScanflowError,
    UnavailableError,
    UsageError,
)
from scanflow.files.secret_sources import read_secret_source
from scanflow.installation import explain_install
from scanflow.transport.json_requests import TIMEOUT_S, request_json
from scanflow_server.server_settings import ServerSettings
from scanflow_server.sign_in_settings import SignInSettings, check_address

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

DISCOVERY: Final = "/.well-known/openid-configuration"
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""The signatures that an ID token may have. None of a shared secret is among them, nor ``none``."""

CLOCK_SKEW_S: Final = 60
"""By how much the provider's clock may differ from this server's, in seconds."""

_log = logging.getLogger(__name__)

_FRESH_S: Final = 3600.0
"""How long what the provider says of itself is cached, in seconds."""

_RETRY_S: Final = 5.0
"""How long after a failure nobody asks again, in seconds."""

MAX_EXCHANGES: Final = 16
"""How many sign-ins ask the provider at once; more wait their turn, within the same time."""

_MAX_KEYS: Final = 100


class ProviderDocument(BaseModel):
    """What a provider says of itself (OpenID Connect Discovery 1.0), as far as it is used here."""

    model_config = ConfigDict(frozen=True)

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    token_endpoint_auth_methods_supported: list[str] = ["client_secret_basic"]


@dataclass(frozen=True, kw_only=True)
class CodeExchange:
    """The code that a browser brought back, and what this server began its sign-in with."""

    code: str
    redirect_uri: str
    verifier: str
    nonce: str


class IdentityProvider:
    """The provider that the settings name. Belongs to one event loop.

    ``clock`` returns the time in seconds since the epoch.
    """

    def __init__(self, settings: ServerSettings, *, clock: Callable[[], float] = time.time) -> None:
        assert settings.sign_in is not None
        self.settings: SignInSettings = settings.sign_in
        self._home, self._clock, self._lock = settings.home, clock, asyncio.Lock()
        self._document: ProviderDocument | None = None
        self._read, self._failure = float("-inf"), ""
        self._exchanges = asyncio.Semaphore(MAX_EXCHANGES)

    async def get_document(self) -> ProviderDocument:
        """Return what the provider says of itself.

        Raises:
            UnavailableError: it does not answer, or did not a moment ago, or not as a provider does.
        """
        async with self._lock:
            age_s = time.monotonic() - self._read
            if age_s >= (_FRESH_S if self._document else _RETRY_S):
                self._document = None
                try:
                    self._document = await read_document(self.settings.issuer)
                except ScanflowError as error:
                    self._failure = str(error)
                self._read = time.monotonic()
            if self._document is None:
                raise UnavailableError(f"{self._failure} Try again, or log in with a token.")
            return self._document

    async def redeem(self, exchange: CodeExchange) -> Mapping[str, Any]:
        """Exchange a code, and return the claims of the person who signed in, groups included if there are any.

        Raises:
            AccessDeniedError: the provider refuses the code, or its ID token is not valid.
            UnavailableError: the provider does not answer in time.
        """
        try:
            async with asyncio.timeout(TIMEOUT_S), self._exchanges:
                return await self._redeem(exchange)
        except TimeoutError as error:
            raise UnavailableError(f"{self.settings.name} did not answer within {TIMEOUT_S:g} s.") from error

    async def _redeem(self, exchange: CodeExchange) -> Mapping[str, Any]:
        document = await self.get_document()
        tokens = await self._request_tokens(document, exchange)
        status, keys = await request_json("GET", document.jwks_uri)
        if status != 200:
            raise UnavailableError(f"{self.settings.name} answered with status {status} when asked for its keys.")
        claims = self._verify(tokens.get("id_token"), parse_keys(keys), exchange.nonce)
        access = tokens.get("access_token")
        if self.settings.groups_claim in claims or document.userinfo_endpoint is None or not isinstance(access, str):
            return claims
        status, more = await request_json("GET", document.userinfo_endpoint, token=access)
        if status != 200 or not isinstance(more, dict):
            raise UnavailableError(f"{self.settings.name} answered with status {status} when asked for groups.")
        if more.get("sub") != claims["sub"]:
            raise AccessDeniedError(f"{self.settings.name} gave the groups of another person.")
        return {**more, **claims}

    async def _request_tokens(self, document: ProviderDocument, exchange: CodeExchange) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": exchange.code,
            "redirect_uri": exchange.redirect_uri,
            "code_verifier": exchange.verifier,
        }
        id, reference, credentials = self.settings.client_id, self.settings.client_secret, None
        if reference is None:
            form["client_id"] = id
        else:
            secret = self._read_secret(reference.get_secret_value())
            if "client_secret_basic" in document.token_endpoint_auth_methods_supported:
                credentials = id, secret
            else:
                form |= {"client_id": id, "client_secret": secret}
        status, tokens = await request_json("POST", document.token_endpoint, form=form, credentials=credentials)
        if status >= 500 or not isinstance(tokens, dict):
            raise UnavailableError(f"{self.settings.name} answered with status {status}.")
        if status != 200:
            raise AccessDeniedError(f"{self.settings.name} refused the code: {str(tokens.get('error'))!r:.60}.")
        return tokens

    def _read_secret(self, reference: str) -> str:
        try:
            return read_secret_source(reference, self._home)
        except InvalidError as error:  # which says where it is, and so is for the log alone
            _log.error("SCANFLOW_OIDC_CLIENT_SECRET: %s", error)
            raise UnavailableError("This server cannot read its secret for the provider; its log says why.") from None

    def _verify(self, token: Any, keys: KeySet, nonce: str) -> dict[str, Any]:
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jws import JWSRegistry

        checks = jwt.JWTClaimsRegistry(
            now=int(self._clock()),
            leeway=CLOCK_SKEW_S,
            iss={"essential": True, "value": self.settings.issuer},
            sub={"essential": True},
            aud={"essential": True, "value": self.settings.client_id},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True, "value": nonce},
            azp={"value": self.settings.client_id},
        )
        try:
            if not isinstance(token, str):
                raise InvalidError("there is none")
            registry = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
            claims = jwt.decode(token, keys, registry=registry).claims
            checks.validate(claims)
            if isinstance(claims["aud"], list) and len(claims["aud"]) > 1 and "azp" not in claims:
                raise InvalidError("it is for several clients, and does not say which of them it was issued to")
        except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise AccessDeniedError(f"The ID token of {self.settings.name} is not valid ({error})."[:300]) from error
        return claims


async def read_document(issuer: str) -> ProviderDocument:
    """Read what a provider says of itself.

    Raises:
        UnavailableError: nobody answers there.
        UsageError: it is no provider, or another one; the message says what to set.
    """
    url = issuer.rstrip("/") + DISCOVERY
    status, answer = await request_json("GET", url)
    if status >= 500:
        raise UnavailableError(f"{url} answers with status {status}.")
    try:
        document = ProviderDocument.model_validate(answer)
        for address in (document.authorization_endpoint, document.token_endpoint, document.jwks_uri):
            check_address(address.partition("?")[0])
        check_address(document.userinfo_endpoint or issuer)
    except (ValidationError, InvalidError) as error:
        what = error.errors()[0]["loc"][:1] if isinstance(error, ValidationError) else error
        raise UsageError(
            f"No provider of OpenID Connect answers at {url} (status {status}; {what}). Set SCANFLOW_OIDC_ISSUER to "
            f"the address below which it has {DISCOVERY}."
        ) from error
    if document.issuer != issuer:
        raise UsageError(
            f"The provider at {issuer!r} calls itself {document.issuer!r:.200}, and its tokens would not count. If "
            f"that is the one you mean, set SCANFLOW_OIDC_ISSUER={document.issuer:.200}"
        )
    return document


def parse_keys(document: Any) -> KeySet:
    """Return the keys of a JWK set with which ID tokens may be signed; those that cannot be used are left out."""
    from joserfc.errors import JoseError
    from joserfc.jwk import JWKRegistry, KeySet

    keys = []
    listed = document.get("keys") if isinstance(document, dict) else None
    for key in listed[:_MAX_KEYS] if isinstance(listed, list) else ():
        if isinstance(key, dict) and key.get("kty") != "oct" and key.get("use", "sig") == "sig":
            try:
                keys.append(JWKRegistry.import_key(key))
            except (JoseError, ValueError, TypeError, KeyError):  # of a kind that this library does not know
                continue
    return KeySet(keys)


def check_provider(settings: ServerSettings, *, is_known: bool) -> None:
    """Refuse settings with which nobody could sign in.

    Args:
        settings: The server's.
        is_known: The same provider could be used before: that it does not answer now is no fault of the settings.

    Raises:
        UsageError: what to set.
        UnavailableError: the provider does not answer, and never did.
    """
    assert settings.sign_in is not None
    if find_spec("joserfc") is None:
        raise MissingExtraError(
            f"SCANFLOW_OIDC_ISSUER is set, but joserfc, which checks sign-ins, cannot be imported. "
            f"{explain_install('oidc')}"
        )
    if settings.sign_in.client_secret is not None:
        read_secret_source(settings.sign_in.client_secret.get_secret_value(), settings.home)
    try:
        asyncio.run(read_document(settings.sign_in.issuer))
    except UnavailableError as error:
        if not is_known:
            raise UnavailableError(
                f"Nobody could sign in: {error} Correct SCANFLOW_OIDC_ISSUER, or start when it answers."
            ) from error
