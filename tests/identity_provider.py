"""A provider of OpenID Connect for tests: it signs in whomever a test says, honestly or not."""

from __future__ import annotations

import base64
import hashlib
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import httpx2
import uvicorn
from joserfc import jwt
from joserfc.jwk import ECKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from scanflow_server.server_context import ServerContext
from scanflow_server.sign_in_settings import SignInSettings
from tests.http_requests import http_client
from tests.unit.server.answering import answering
from tests.waiting import PATIENCE_S, patient, wait_until

CLIENT, SECRET = "scanflow", "a secret: of the client"
LED = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
"""What a browser says that a page elsewhere led here."""

Claims = dict[str, Any]


class StandInProvider:
    """Its answers, which a test changes. ``now``: the time by its clock, in seconds since the epoch."""

    def __init__(self, issuer: str, now: float) -> None:
        self.issuer, self.now = issuer, now
        self.key = ECKey.generate_key("P-256", {"kid": "first"})
        self.keys: list[Any] = [self.key]
        self.person: Claims = {"sub": "u1", "email": "ada@example.org", "groups": ["vision-editors"]}
        self.changes: Claims = {}
        """Claims of ID tokens that differ from what is right; None: left out."""

        self.sign: Callable[[Claims], str] = self.encode_token
        self.document: Claims = {}
        self.answers: dict[str, tuple[int, Any]] = {}
        """Answers of paths in place of what is right."""

        self.asked: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}

    def encode_token(self, claims: Claims) -> str:
        return jwt.encode({"alg": "ES256", "kid": self.key.kid}, claims, self.key)

    def rotate(self) -> None:
        """Sign with a new key from now on, and withdraw the one before."""
        self.key = ECKey.generate_key("P-256", {"kid": secrets.token_hex(4)})
        self.keys = [self.key]

    async def serve(self, request: Request) -> Response:
        path = request.url.path
        self.asked.append(path)
        if path in self.answers:
            status, content = self.answers[path]
            return JSONResponse(content, status)
        form = dict(parse_qsl((await request.body()).decode()))
        answer: Response = getattr(self, f"_serve_{path.rpartition('/')[2].replace('-', '_')}")(request, form)
        return answer

    def _serve_openid_configuration(self, _request: Request, _form: Mapping[str, str]) -> Response:
        places = ("authorization_endpoint", "authorize"), ("token_endpoint", "token"), ("jwks_uri", "jwks")
        return JSONResponse(
            {"issuer": self.issuer, **{name: f"{self.issuer}/{path}" for name, path in places}, **self.document}
        )

    def _serve_authorize(self, request: Request, _form: Mapping[str, str]) -> Response:
        query = dict(request.query_params)
        code = secrets.token_hex(8)
        self._codes[code] = query
        back = {"code": code, "state": query["state"], "iss": self.issuer}
        return RedirectResponse(f"{query['redirect_uri']}?{urlencode(back)}", 302)

    def _serve_token(self, request: Request, form: Mapping[str, str]) -> Response:
        began = self._codes.pop(form.get("code", ""), None)
        if began is None or not self._is_client(request, form) or began["redirect_uri"] != form["redirect_uri"]:
            return JSONResponse({"error": "invalid_grant"}, 400)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        if challenge.decode() != began["code_challenge"] or began["code_challenge_method"] != "S256":
            return JSONResponse({"error": "invalid_grant"}, 400)
        now = int(self.now)
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 60,
            "nonce": began["nonce"],
            **self.person,
        }
        claims = {name: value for name, value in {**claims, **self.changes}.items() if value is not None}
        return JSONResponse({"token_type": "Bearer", "access_token": "access", "id_token": self.sign(claims)})

    def _is_client(self, request: Request, form: Mapping[str, str]) -> bool:
        pair = f"{quote(CLIENT, safe='')}:{quote(SECRET, safe='')}"  # RFC 6749, section 2.3.1
        basic = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return request.headers.get("authorization") == basic or form.get("client_secret") == SECRET

    def _serve_jwks(self, _request: Request, _form: Mapping[str, str]) -> Response:
        return JSONResponse(
            {"keys": [key if isinstance(key, dict) else key.as_dict(private=False) for key in self.keys]}
        )


@contextmanager
def serve_identity_provider(now: float) -> Iterator[StandInProvider]:
    """Answer on a free port while inside."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        provider = StandInProvider(f"http://127.0.0.1:{listener.getsockname()[1]}/realm", now)
        app = Starlette(routes=[Route("/{path:path}", provider.serve, methods=["GET", "POST"])])
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            wait_until(lambda: server.started, "the provider answers")
            yield provider
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)


class Browser(httpx2.Client):
    """A person's browser, on a server whose people sign in at the provider."""

    url: str

    def begin(self, **query: str) -> httpx2.Response:
        return self.get("/login/oidc", params=query, headers={"sec-fetch-site": "same-origin"})

    def visit_provider(self, **query: str) -> str:
        """Go to the provider, and return the address to which it leads back."""
        began = self.begin(**query)
        assert began.status_code == 303, began.text
        with http_client() as elsewhere:
            return str(elsewhere.get(began.headers["location"]).headers["location"])

    def come_back(self, address: str) -> httpx2.Response:
        return self.get(address, headers=LED)

    def sign_in(self, **query: str) -> httpx2.Response:
        return self.come_back(self.visit_provider(**query))


def configure(context: ServerContext, provider: StandInProvider, **changes: Any) -> None:
    """Have people of a server sign in at the provider."""
    (context.settings.home / "client-secret").write_text(f"{SECRET}\n")
    sign_in = SignInSettings.model_validate(
        {
            "issuer": provider.issuer,
            "client_id": CLIENT,
            "client_secret": "file:client-secret",
            "groups": "vision-editors=vision:editor\nvision-staff=vision:viewer;speech=speech:admin; root=*:admin",
            **changes,
        }
    )
    context.settings = context.settings.model_copy(update={"sign_in": sign_in})


@contextmanager
def browsing(context: ServerContext) -> Iterator[Browser]:
    with answering(context) as url, Browser(base_url=url, timeout=patient(60)) as browser:
        browser.url = url
        yield browser
