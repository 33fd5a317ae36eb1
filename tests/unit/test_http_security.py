"""Which requests a program answers: hosts, origins, media types and tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from scanflow.http.security import RequestGuard, read_bearer_token, refuse_media, refuse_request

LOCAL = (b"host", b"127.0.0.1:46666")


def answer(app: Any, headers: Sequence[tuple[bytes, bytes]], *, path: str = "/runs", method: str = "GET") -> Any:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("the body is none of the guard's business")

    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


async def hello(scope: Any, _receive: Any, send: Any) -> None:
    body = json.dumps({"caller": scope.get("state", {}).get("caller")}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize(
    ("status", "name", "values"),
    [
        (None, b"host", b"127.0.0.1:46666 127.8.9.1 localhost:1 LOCALHOST. [::1]:80 a.example:443"),
        (421, b"host", b"evil.example 127.0.0.1.evil.example localhost.evil 127.0.0.1@evil 10.0.0.1 [::1 a/b"),
        (403, b"origin", b"https://evil.example null http://127.0.0.1:8888 file://127.0.0.1:46666"),
        (None, b"origin", b"http://127.0.0.1:46666"),
        (403, b"sec-fetch-site", b"cross-site same-site"),
        (None, b"sec-fetch-site", b"same-origin none"),
    ],
)
def test_only_known_hosts_and_own_pages_are_answered(status: int | None, name: bytes, values: bytes) -> None:
    for value in values.split():
        headers = [(name, value), *([] if name == b"host" else [LOCAL])]
        refusal = refuse_request(headers, hosts={"a.example"})
        assert (None if refusal is None else refusal.status) == status, value


def test_pages_of_other_origins_lead_a_browser_to_landings_alone() -> None:
    guarded = RequestGuard(hello, landings={("POST", "/login/code")})
    site, mode = (b"sec-fetch-site", b"cross-site"), (b"sec-fetch-mode", b"navigate")
    form = [LOCAL, (b"origin", b"null"), site, mode]
    assert answer(guarded, form, path="/login/code", method="POST")[0] == 200
    for path, method, headers in (
        ("/login", "POST", form),
        ("/login/code", "GET", form),
        ("/login/code", "POST", [*form[:-1], (b"sec-fetch-mode", b"cors")]),
        ("/login/code", "POST", [*form[:-1], (b"sec-fetch-mode", b"no-cors")]),
        ("/login/code", "POST", [LOCAL, (b"origin", b"https://evil.example")]),
    ):
        assert answer(guarded, headers, path=path, method=method)[0] == 403, (path, method, headers)
    assert answer(guarded, [(b"host", b"evil.example"), *form[1:]], path="/login/code", method="POST")[0] == 421


def test_one_host_is_named_and_none_is_what_no_browser_sends() -> None:
    for status, hosts in ((400, [LOCAL, (b"host", b"evil.example")]), (421, [(b"host", b"")])):
        refusal = refuse_request(hosts)
        assert refusal is not None
        assert refusal.status == status
    assert refuse_request([]) is None


@pytest.mark.parametrize(
    ("media", "refused"),
    [
        (b"application/json", False),
        (b"Application/JSON; charset=utf-8", False),
        (b"application/merge-patch+json", False),
        (b"text/plain", True),
        (b"application/x-www-form-urlencoded", True),
        (None, True),
    ],
)
def test_a_body_has_to_say_that_it_is_json(media: bytes | None, refused: bool) -> None:
    headers = [(b"content-length", b"2"), *([] if media is None else [(b"content-type", media)])]
    refusal = refuse_media("POST", headers)
    assert (refusal is not None and refusal.status == 415) is refused
    assert refuse_media("POST", [(b"content-length", b"0")]) is None
    assert refuse_media("POST", [(b"transfer-encoding", b"chunked")]) is not None


def test_a_bearer_token_is_read_once() -> None:
    header = (b"authorization", b"bearer  secret ")
    assert read_bearer_token([header]) == "secret"
    assert read_bearer_token([header, header]) is None
    assert read_bearer_token([(b"authorization", b"Basic c2VjcmV0")]) is None


def test_a_guarded_application_knows_the_caller_and_asks_others_for_a_token() -> None:
    async def authenticate(token: str) -> str | None:
        return "ada" if token == "good" else None

    guarded = RequestGuard(hello, authenticate=authenticate, open_paths=["/healthz"], json_only=True)
    good = (b"authorization", b"Bearer good")
    assert answer(guarded, [LOCAL, good]) == (200, {"caller": "ada"})
    assert answer(guarded, [LOCAL], path="/healthz") == (200, {"caller": None})
    for headers in ([LOCAL], [LOCAL, (b"authorization", b"Bearer bad")]):
        status, problem = answer(guarded, headers)
        assert status == 401
        assert "scanflow token show" in problem["detail"]
    body = [(b"content-length", b"2"), (b"content-type", b"text/plain")]
    assert answer(guarded, [LOCAL, good, *body], method="POST")[0] == 415
    assert answer(guarded, [(b"host", b"evil.example"), good], path="/healthz")[0] == 421
