"""Attacks on the sign-in by OpenID Connect: on its tokens, its way back, its groups and its end."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

from scanflow.http.home_token import ensure_home_token
from scanflow.transport import build_path
from scanflow_server.audit import FREE_FAILURES
from scanflow_server.page_sessions import COOKIE
from scanflow_server.server_context import ServerContext
from scanflow_server.sign_in import LIFETIME_S
from tests.http_requests import HTTP, http_client
from tests.identity_provider import (
    CLIENT,
    LED,
    SECRET,
    Browser,
    Claims,
    StandInProvider,
    browsing,
    configure,
    serve_identity_provider,
)
from tests.page_reader import find_session, read_signed_in
from tests.server import bearer

NOW = 1_800_000_000.0
RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
OTHER = ECKey.generate_key("P-256", {"kid": "first"})


@pytest.fixture
def provider(context: ServerContext, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInProvider]:
    monkeypatch.setattr("scanflow_server.audit.MAX_DELAY_S", 0.0)
    with serve_identity_provider(NOW) as server:
        context.clock = lambda: server.now
        configure(context, server)
        yield server


@pytest.fixture
def browser(context: ServerContext, provider: StandInProvider) -> Iterator[Browser]:
    with browsing(context) as browser:
        yield browser


def as_admin(context: ServerContext) -> dict[str, str]:
    return bearer(ensure_home_token(context.settings.home))


def read_audit(context: ServerContext, browser: Browser, **query: Any) -> list[dict[str, Any]]:
    return list(HTTP.get(f"{browser.url}/api/v1/audit", params=query, headers=as_admin(context)).json())


def encode(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def encode_unsigned(claims: Claims) -> str:
    return f"{encode(json.dumps({'alg': 'none'}).encode())}.{encode(json.dumps(claims).encode())}."


def encode_with_public_key(claims: Claims) -> str:
    """Sign with what everybody knows of the provider's RSA key, as if it were a shared secret."""
    header = {"alg": "HS256", "kid": "rsa"}  # by hand: the library refuses to do so
    signed = f"{encode(json.dumps(header).encode())}.{encode(json.dumps(claims).encode())}"
    return f"{signed}.{encode(hmac.digest(RSA.as_pem(private=False), signed.encode(), 'sha256'))}"


def encode_with_secret(claims: Claims) -> str:
    return jwt.encode({"alg": "HS256", "kid": "oct"}, claims, OctKey.import_key("a secret: of the client"))


def encode_with_another_key(claims: Claims) -> str:
    return jwt.encode({"alg": "ES256", "kid": "first"}, claims, OTHER)


def encode_with_an_enclosed_key(claims: Claims) -> str:
    header = {"alg": "ES256", "kid": "first", "jwk": OTHER.as_dict(private=False)}
    return jwt.encode(header, claims, OTHER)


FORGERIES: tuple[Callable[[Claims], str], ...] = (
    encode_unsigned, encode_with_public_key, encode_with_secret, encode_with_another_key, encode_with_an_enclosed_key,
)  # fmt: skip
WRONG: tuple[Claims, ...] = (
    {"iss": "https://elsewhere.example"}, {"iss": None}, {"aud": "another"}, {"aud": None}, {"aud": []},
    {"aud": "another", "azp": CLIENT}, {"aud": [CLIENT, "another"]}, {"azp": "another"},
    {"exp": NOW - 61}, {"exp": None}, {"exp": "never"}, {"iat": None}, {"iat": NOW + 120}, {"nbf": NOW + 120},
    {"nonce": "another"}, {"nonce": None}, {"nonce": ""}, {"sub": None}, {"sub": 5},
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
def test_an_id_token_without_the_providers_signature_is_refused(browser: Browser, provider: StandInProvider) -> None:
    secret = {"kty": "oct", "kid": "oct", "k": encode(SECRET.encode())}
    provider.keys = [provider.key, RSA, secret, {"kty": 1}]
    for sign in FORGERIES:
        provider.sign = sign
        assert is_refused(browser.sign_in(), browser), sign
    provider.sign = lambda claims: jwt.encode({"alg": "RS256", "kid": "rsa"}, claims, RSA)
    assert browser.sign_in().status_code == 200, "with that key, rightly used, it is valid"


def is_refused(answer: httpx2.Response, browser: Browser) -> bool:
    return (answer.status_code, "not valid" in answer.text, find_session(browser)) == (401, True, None)


def test_an_id_token_for_someone_else_or_another_time_is_refused(browser: Browser, provider: StandInProvider) -> None:
    for changes in WRONG:
        provider.changes = changes
        assert is_refused(browser.sign_in(), browser), changes
    provider.changes = {"aud": [CLIENT, "another"], "azp": CLIENT}
    assert browser.sign_in().status_code == 200


def test_what_is_no_id_token_at_all_is_refused(browser: Browser, provider: StandInProvider) -> None:
    for token in (None, "", "a.b.c", "é", 5, ["x"], "." * 9, "e30.e30.e30", "A" * 200_000, f"{'W' * 9000}.e30.e30"):
        provider.answers["/realm/token"] = 200, {"access_token": "access", "id_token": token}
        assert is_refused(browser.sign_in(), browser), token


def test_a_key_that_the_provider_withdraws_counts_no_more_and_a_new_one_at_once(
    browser: Browser, provider: StandInProvider
) -> None:
    old = provider.key
    assert browser.sign_in().status_code == 200
    provider.rotate()
    assert browser.sign_in().status_code == 200
    provider.sign = lambda claims: jwt.encode({"alg": "ES256", "kid": old.kid}, claims, old)
    assert browser.sign_in().status_code == 401


def test_a_way_back_counts_once_in_the_browser_where_it_began(
    browser: Browser, provider: StandInProvider, context: ServerContext
) -> None:
    back = browser.visit_provider()
    with http_client(base_url=browser.url) as victim:  # an attacker's sign-in, given to someone else
        assert victim.get(back, headers=LED).status_code == 401
        victim.get("/login/oidc")
        assert victim.get(back, headers=LED).status_code == 401, "also where another one has begun"
    for forged in (back.replace("state=", "state=x"), back.replace("state=", "x="), f"{browser.url}/login/callback"):
        assert browser.come_back(forged).status_code == 401
    assert "/realm/token" not in provider.asked, "no code of a stranger is tried"
    browser.begin()  # each page that was refused took the cookie away
    back = browser.visit_provider()
    cookie = {"cookie": f"scanflow_sign_in={browser.cookies['scanflow_sign_in']}"}
    assert HTTP.get(back, headers=LED | cookie).status_code == 200
    again = HTTP.get(back, headers=LED | cookie)
    assert (again.status_code, "came back a second time" in again.text) == (401, True)
    assert provider.asked.count("/realm/token") == 1


def test_a_sign_in_that_is_refused_is_not_recorded_for_the_user_of_the_browsers_session(
    browser: Browser, context: ServerContext
) -> None:
    back = browser.visit_provider()
    assert browser.come_back(back).status_code == 200
    assert read_audit(context, browser)[0]["who"] == "ada@example.org"
    assert browser.come_back(back).status_code == 401
    refused = read_audit(context, browser)[0]
    assert (refused["status"], refused["who"], refused["team"]) == (401, "", None)


def test_a_sign_in_that_took_too_long_is_refused(browser: Browser, provider: StandInProvider) -> None:
    back = browser.visit_provider()
    provider.now += LIFETIME_S + 1
    assert "longer than 10 minutes" in browser.come_back(back).text


def test_a_code_that_the_provider_refuses_and_its_own_errors_are_reported_plainly(
    browser: Browser, provider: StandInProvider, context: ServerContext
) -> None:
    back = browser.visit_provider()
    state = back.partition("state=")[2]
    response = browser.come_back(f"{browser.url}/login/callback?error=access_denied<b>&state={state}")
    assert (response.status_code, "access_denied&lt;b&gt;" in response.text, "<b>" in response.text) == (
        401,
        True,
        False,
    )
    stolen = browser.visit_provider().replace("code=", "code=x")
    assert "refused the code: &#39;invalid_grant&#39;" in browser.come_back(stolen).text
    mixed = browser.visit_provider().replace("iss=", "iss=x")
    assert "Another provider" in browser.come_back(mixed).text
    whats = [entry["what"] for entry in read_audit(context, browser)]
    assert any("access_denied" in what for what in whats)


def test_no_sign_in_leads_to_another_server(browser: Browser) -> None:
    for page in ("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:x", "token"):
        assert read_signed_in(browser.sign_in(next=page).text)["data-next"] == "/", page
    assert read_signed_in(browser.sign_in(next="/labels").text)["data-next"] == "/labels"


def test_a_page_elsewhere_leads_to_the_way_back_alone_and_begins_no_sign_in(browser: Browser) -> None:
    back = browser.visit_provider()
    assert browser.get("/login/oidc", headers=LED).status_code == 403
    assert browser.get("/login", headers=LED).status_code == 403
    assert browser.get(back, headers={**LED, "sec-fetch-mode": "no-cors"}).status_code == 403
    assert browser.get(back, headers={**LED, "origin": "https://evil.example"}).status_code == 403
    assert browser.post(back, headers=LED).status_code == 403
    assert browser.get(back, headers={**LED, "host": "evil.example"}).status_code == 421
    assert browser.come_back(back).status_code == 200


GROUPS: tuple[tuple[Any, tuple[str, str | None] | None], ...] = (
    (["xroot", "roo", "ROOT", {"root": 1}, None], None),
    ("vision-editors,root", None),
    ({"root": True}, None),
    (None, None),
    (["vision-editors"], ("editor", "vision")),
    (["vision-staff", "vision-editors"], ("editor", "vision")),
    (["speech", "vision-staff"], ("viewer", "vision")),
    ("speech", ("admin", "speech")),
    (["root"], ("admin", None)),
)


def test_a_person_has_what_the_first_rule_of_a_group_gives_and_no_more(
    browser: Browser, provider: StandInProvider, context: ServerContext
) -> None:
    for groups, whose in GROUPS:
        provider.changes, provider.now = {"groups": groups}, provider.now + 20
        led = browser.sign_in()
        entry = read_audit(context, browser)[0]
        if whose is None:
            assert (led.status_code, "Ask its administrator" in led.text, find_session(browser)) == (403, True, None)
            assert (entry["who"], entry["status"], "ada@example.org" in entry["what"]) == ("", 403, True)
        else:
            assert led.status_code == 200
            assert (entry["who"], entry["role"], entry["team"]) == ("ada@example.org", *whose)
            assert (entry["address"], entry["path"], "'u1'" in entry["what"]) == ("127.0.0.1", "/login/callback", True)


def test_groups_that_only_the_userinfo_endpoint_gives_are_the_same_persons(
    browser: Browser, provider: StandInProvider, context: ServerContext
) -> None:
    provider.document = {"userinfo_endpoint": f"{provider.issuer}/userinfo"}
    provider.changes = {"groups": None}
    provider.answers["/realm/userinfo"] = 200, {"sub": "u1", "groups": ["speech"], "email": "eve@example.org"}
    assert browser.sign_in().status_code == 200
    assert [read_audit(context, browser)[0][name] for name in ("who", "team")] == ["ada@example.org", "speech"]
    provider.answers["/realm/userinfo"] = 200, {"sub": "u2", "groups": ["root"]}
    assert browser.sign_in().status_code == 401
    provider.answers["/realm/userinfo"] = 500, {}
    assert browser.sign_in().status_code == 503


NAMES: tuple[tuple[Claims, str], ...] = (
    ({"email_verified": True}, "ada@example.org"),
    ({"email_verified": False}, "oidc:u1"),
    ({"email": None}, "oidc:u1"),
    ({"email": "home"}, "oidc:u1"),
    ({"email": "agent shop/watch"}, "oidc:u1"),
    ({"email": "oidc:u2@x"}, "oidc:u1"),
    ({"email": "a@b@c"}, "oidc:u1"),
    ({"email": ["ada@example.org"]}, "oidc:u1"),
    ({"email": None, "sub": "steps of shop"}, "oidc:"),
    ({"email": None, "sub": "x" * 900}, "oidc:"),
)


def test_nobody_signs_in_under_the_name_of_a_token(
    browser: Browser, provider: StandInProvider, context: ServerContext
) -> None:
    for claims, who in NAMES:
        provider.changes = claims
        assert browser.sign_in().status_code == 200
        named = read_audit(context, browser)[0]["who"]
        assert named == who or (len(claims["sub"]) > 10 and re.fullmatch("oidc:[0-9a-f]{32}", named)), claims


def test_a_session_ends_at_its_time_and_with_a_log_out(
    browser: Browser, provider: StandInProvider, context: ServerContext
) -> None:
    signed_in = browser.sign_in()
    (cookie,) = (text for text in signed_in.headers.get_list("set-cookie") if text.startswith(COOKIE))
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Max-Age=28800"))
    assert browser.get("/").status_code == 200
    provider.now += 8 * 3600 + 1
    assert browser.get("/").headers["location"] == "/login"
    browser.sign_in()
    session = browser.cookies[name := cookie.partition("=")[0]]
    assert browser.post("/logout", headers={"origin": browser.url}).status_code == 303
    assert HTTP.get(f"{browser.url}/", headers={"cookie": f"{name}={session}"}).headers["location"] == "/login"
    rows = [row for row in HTTP.get(f"{browser.url}/api/v1/tokens", headers=as_admin(context)).json() if row["person"]]
    assert [(row["name"], row["revoked"]) for row in rows] == [
        ("ada@example.org:1", None), ("ada@example.org:2", provider.now),
    ]  # fmt: skip


def test_an_admin_ends_a_session_and_its_cookie_makes_no_token(browser: Browser, context: ServerContext) -> None:
    browser.sign_in()
    issuer = getattr(context.settings.sign_in, "issuer", "none")
    assert browser.get("/login/oidc", params={"for": "token"}).headers["location"].startswith(issuer)
    path = build_path("tokens", "ada@example.org:1")
    assert HTTP.delete(f"{browser.url}/api/v1{path}", headers=as_admin(context)).json()["revoked"] == NOW
    assert browser.get("/").headers["location"] == "/login"


def test_a_token_that_a_person_makes_has_the_persons_rights_and_an_end(
    browser: Browser, provider: StandInProvider, context: ServerContext
) -> None:
    page = browser.sign_in(**{"for": "token"}).text
    assert find_session(browser) is None
    token = page.partition("SCANFLOW_TOKEN=")[2].partition("<")[0]
    assert f"SCANFLOW_URL={browser.url}<" in page
    api, mine = f"{browser.url}/api/v1", bearer(token)
    assert HTTP.get(f"{api}/runs", headers=mine).status_code == 200
    assert HTTP.post(f"{api}/tokens", json={"name": "eve"}, headers=mine).status_code == 403
    labels = {"app": "a", "team": "speech", "items": [{"id": "x"}]}
    assert HTTP.post(f"{api}/labels", json=labels, headers=mine).status_code == 403
    provider.changes = {"groups": ["vision-staff"]}
    browser.sign_in()
    assert HTTP.post(f"{api}/labels", json={**labels, "team": "vision"}, headers=mine).status_code == 201
    other, *_, last = read_audit(context, browser)
    assert (last["who"], last["role"], "and made the token 'ada@example.org:1'" in last["what"]) == (
        "ada@example.org", "editor", True,
    )  # fmt: skip
    assert (other["who"], other["role"]) == ("ada@example.org", "editor")
    provider.now += 24 * 3600
    assert HTTP.get(f"{api}/runs", headers=mine).status_code == 401


def test_behind_a_proxy_that_ends_tls_the_way_back_and_cookies_are_for_tls(
    context: ServerContext, provider: StandInProvider
) -> None:
    changes = {"behind_proxy": True, "allowed_hosts": "ml.example.org"}
    context.settings = context.settings.model_copy(update=changes)
    with browsing(context) as browser:
        began = browser.get("/login/oidc", headers={"host": "ml.example.org"})
        query = dict(parse_qsl(urlsplit(began.headers["location"]).query))
        assert query["redirect_uri"] == "https://ml.example.org/login/callback"
        assert "; Secure" in began.headers["set-cookie"]
        token = {"token": ensure_home_token(context.settings.home)}
        assert (
            "; Secure" in browser.post("/login", data=token, headers={"host": "ml.example.org"}).headers["set-cookie"]
        )
        assert "; Secure" not in browser.post("/login", data=token).headers["set-cookie"]


def test_failed_sign_ins_are_counted_and_slowed(browser: Browser, context: ServerContext) -> None:
    for _ in range(FREE_FAILURES + 1):
        assert browser.come_back(f"{browser.url}/login/callback?code=x&state=y").status_code == 401
    browser.sign_in()
    metrics = HTTP.get(f"{browser.url}/metrics", headers=as_admin(context)).text
    assert f"scanflow_http_wrong_tokens_total {FREE_FAILURES + 1}.0" in metrics
    assert f'scanflow_sign_ins_total{{outcome="refused"}} {FREE_FAILURES + 1}.0' in metrics
    assert 'scanflow_sign_ins_total{outcome="succeeded"} 1.0' in metrics


def test_a_provider_that_is_down_or_never_ends_is_reported_and_waited_for_within_limits(
    browser: Browser, provider: StandInProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scanflow_server.identity_provider.TIMEOUT_S", 0.2)
    provider.sign = lambda claims: "x" * (2**20)
    assert "more than 1,048,576 bytes" in browser.sign_in().text
    for path in ("token", "jwks"):
        provider.answers = {f"/realm/{path}": (502, {})}
        assert browser.sign_in().status_code == 503
    provider.answers = {}
    waiting = browser.visit_provider()

    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.sleep(3600)

    monkeypatch.setattr("scanflow_server.identity_provider.request_json", never)
    response = browser.come_back(waiting)
    assert (response.status_code, "did not answer within 0.2 s" in response.text) == (503, True)


def test_no_page_and_no_step_has_the_secret(
    browser: Browser, provider: StandInProvider, context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OIDC_SECRET", "shh")
    configure(context, provider, client_secret="env:OIDC_SECRET")
    assert "OIDC_SECRET" not in context.environ
    assert "shh" not in repr(context.settings)
    (context.settings.home / "client-secret").unlink()
    response = browser.sign_in()
    assert (response.status_code, "client-secret" in response.text) == (503, False)
