"""Sessions of pages: what ends them, what is stored of them, and that they outlast the server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import pytest
from sqlalchemy import select
from starlette.requests import HTTPConnection

from scanflow.http.home_token import hash_token
from scanflow_server import page_sessions, streams
from scanflow_server.auth import Callers
from scanflow_server.control.retention import RetentionController
from scanflow_server.dashboard import live_pages
from scanflow_server.dashboard.live_pages import RenderPace, read_marker
from scanflow_server.page_sessions import CODE_S, COOKIE, SESSION_S, CodeOwner, NewSession, Sessions, get_cookie_name
from scanflow_server.server_context import ServerContext
from scanflow_server.store import session_store, token_store
from scanflow_server.store.tables import sessions as table
from scanflow_server.store.token_store import TokenRow
from scanflow_server.token_roles import TokenHolder
from tests.http_requests import http_client
from tests.page_reader import find_session, log_in
from tests.unit.server.answering import answering
from tests.unit.server.server_rows import Api
from tests.waiting import patient, wait_until

DATABASES = ["sqlite", "postgresql"]
ADA = TokenHolder("ada", "editor")
T = TypeVar("T")


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def make_sessions(context: ServerContext) -> Sessions:
    """Return the sessions as a server of that database has them."""
    return Sessions(context, Callers(context).find_holder)


def begin(sessions: Sessions, token: str = "secret", **options: Any) -> NewSession:
    session = wait_for(sessions.begin(token, **options))
    assert session is not None
    return session


@pytest.fixture
def sessions(context: ServerContext) -> Sessions:
    add_token(context, "ada", "secret")
    return make_sessions(context)


def add_token(context: ServerContext, name: str, token: str, person: str | None = None) -> None:
    with context.store.write() as connection:
        row = TokenRow(name=name, role="editor", created=0.0, person=person)
        token_store.add(connection, row, hash_token(token))


def revoke(context: ServerContext) -> None:
    with context.store.write() as connection:
        row = token_store.find(connection, "ada")
        assert row is not None
        token_store.revoke(connection, row, at=1.0)
    context.token_notifier.notify()


def test_a_session_ends_with_its_token_and_after_half_a_day(context: ServerContext, sessions: Sessions) -> None:
    assert wait_for(sessions.begin("other")) is None
    assert wait_for(sessions.begin("")) is None
    session, now = begin(sessions), context.clock()
    assert wait_for(sessions.find_caller(session.id)) == ADA
    assert [wait_for(sessions.find_caller(other)) for other in ("", "é", session.key)] == [None, None, None]
    context.clock = lambda: now + SESSION_S - 1
    assert wait_for(sessions.find_caller(session.id)) == ADA
    context.clock = lambda: now + SESSION_S
    assert wait_for(sessions.find_caller(session.id)) is None
    assert not wait_for(sessions.has_key(session.id, session.key))
    second = begin(sessions)
    revoke(context)
    assert wait_for(sessions.find_caller(second.id)) is None
    with context.store.read() as connection:
        assert session_store.find(connection, hash_token(second.id)) is None, "it does not come back with the token"


def test_a_form_needs_the_key_of_its_own_session(sessions: Sessions) -> None:
    session, other = begin(sessions), begin(sessions)
    keys = (session.key, other.key, "", session.id, "é")
    assert [wait_for(sessions.has_key(session.id, key)) for key in keys] == [True, False, False, False, False]
    assert not wait_for(sessions.has_key("", session.key))


def test_of_too_many_sessions_those_that_end_first_go(
    context: ServerContext, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_sessions, "MAX_SESSIONS", 3)
    short, *long = begin(sessions, lifetime_s=60.0), begin(sessions), begin(sessions), begin(sessions)
    callers = [wait_for(sessions.find_caller(session.id)) for session in (short, *long)]
    assert callers == [None, ADA, ADA, ADA]


def test_whoever_begins_many_sessions_ends_only_their_own(
    context: ServerContext, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_sessions, "MAX_SESSIONS", 3)
    add_token(context, "eve", "other", person="eve")
    add_token(context, "eve-2", "another", person="eve")
    ada, eve = begin(sessions, lifetime_s=60.0), begin(sessions, "other")
    for _ in range(5):
        begin(sessions, "another")
        make_code(sessions, "another")
    assert wait_for(sessions.find_caller(ada.id)) == ADA
    assert wait_for(sessions.find_caller(eve.id)) is None, "a person's tokens have their sessions in common"
    with context.store.read() as connection:
        assert len(connection.execute(select(table)).all()) == 4


def test_sessions_outlast_the_server_and_servers_share_them(context: ServerContext, sessions: Sessions) -> None:
    session = begin(sessions, is_own=True)
    other = make_sessions(context)
    assert wait_for(other.find_caller(session.id)) == ADA
    assert wait_for(other.has_key(session.id, session.key))
    assert wait_for(other.end(session.id)) == hash_token("secret"), "a token of its own is to be revoked"
    assert wait_for(sessions.find_caller(session.id)) is None
    assert wait_for(sessions.end(session.id)) is None
    assert wait_for(sessions.end(begin(sessions).id)) is None, "a token that a person sent stays valid"


def test_no_row_of_a_session_lets_anyone_in(context: ServerContext, sessions: Sessions) -> None:
    session = begin(sessions)
    with context.store.read() as connection:
        rows = [dict(row) for row in connection.execute(select(table)).mappings()]
    assert {"secret", session.id, session.key}.isdisjoint(map(str, rows[0].values()))
    for value in rows[0].values():
        assert wait_for(sessions.find_caller(str(value))) is None
        assert not wait_for(sessions.has_key(session.id, str(value)))


def make_code(sessions: Sessions, token: str = "secret") -> str:
    return wait_for(sessions.make_code(hash_token(token)))


def test_a_code_begins_one_session_within_a_minute(context: ServerContext, sessions: Sessions) -> None:
    code, late, now = make_code(sessions), make_code(sessions), context.clock()
    assert [wait_for(sessions.take_code(other)) for other in ("", "é", hash_token(code))] == [None, None, None]
    assert wait_for(sessions.take_code(code)) == CodeOwner(hash_token("secret"), ADA)
    assert wait_for(sessions.take_code(code)) is None, "it is used up"
    context.clock = lambda: now + CODE_S - 1
    assert wait_for(sessions.has_code(hash_token(late), hash_token("secret")))
    context.clock = lambda: now + CODE_S
    assert not wait_for(sessions.has_code(hash_token(late), hash_token("secret")))
    assert wait_for(sessions.take_code(late)) is None


def test_a_code_ends_with_its_token_and_is_known_to_that_alone(context: ServerContext, sessions: Sessions) -> None:
    code = make_code(sessions)
    tokens = map(hash_token, ("secret", "other", ""))
    assert [wait_for(sessions.has_code(hash_token(code), token)) for token in tokens] == [True, False, False]
    revoke(context)
    assert wait_for(sessions.take_code(code)) is None


def test_a_code_is_no_session_and_a_session_is_no_code(sessions: Sessions) -> None:
    code, session = make_code(sessions), begin(sessions)
    assert wait_for(sessions.find_caller(code)) is None
    assert not wait_for(sessions.has_key(code, ""))
    assert wait_for(sessions.end(code)) is None
    assert wait_for(sessions.take_code(session.id)) is None
    assert not wait_for(sessions.has_code(hash_token(session.id), hash_token("secret")))
    assert (wait_for(sessions.find_caller(session.id)), wait_for(sessions.take_code(code)) is None) == (ADA, False)


def test_of_several_who_use_a_code_at_once_one_gets_in(context: ServerContext, sessions: Sessions) -> None:
    code, servers = make_code(sessions), [make_sessions(context) for _ in range(4)]

    async def take_at_once() -> list[CodeOwner | None]:
        return await asyncio.gather(*(server.take_code(code) for server in servers))

    assert sum(owner is not None for owner in wait_for(take_at_once())) == 1


def test_ended_sessions_are_deleted(context: ServerContext, sessions: Sessions) -> None:
    short, long = begin(sessions, lifetime_s=60.0), begin(sessions)
    now = context.clock()
    context.clock = lambda: now + 60.0
    RetentionController(context).forget()
    with context.store.read() as connection:
        rows = [session_store.find(connection, hash_token(session.id)) for session in (short, long)]
    assert [row is None for row in rows] == [True, False]


def test_a_page_goes_on_after_a_restart_of_the_server_and_its_stream_too(api: Api) -> None:
    token = api.post("/tokens", json={"name": "ada"}).json()["token"]
    with http_client(base_url=str(api.base_url).removesuffix("/api/v1/"), timeout=patient(60)) as browser:
        log_in(browser, token)
        session = find_session(browser) or "none"
    with answering(api.context) as url, http_client(base_url=url, timeout=patient(60)) as browser:
        browser.cookies.set(f"{COOKIE}_{browser.base_url.port}", session)
        assert browser.get("/runs").status_code == 200
        with browser.stream("GET", "/live/runs") as stream:
            assert 'data-copy="scanflow runs"' in next(stream.iter_text())


def test_a_browser_is_logged_in_to_two_servers_of_a_host_until_it_logs_out_of_one(api: Api) -> None:
    token = api.post("/tokens", json={"name": "ada"}).json()["token"]
    first = str(api.base_url).removesuffix("/api/v1/")
    with answering(api.context) as second, http_client(timeout=patient(60)) as browser:
        for url in (first, second):
            assert browser.post(f"{url}/login", data={"token": token}).status_code == 200
        assert [browser.get(f"{url}/runs").status_code for url in (first, second)] == [200, 200]
        assert browser.post(f"{second}/logout").status_code == 303
        assert [browser.get(f"{url}/runs").status_code for url in (first, second)] == [200, 303]


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("ml.example.org", COOKIE),
        ("ml.example.org:8443", f"{COOKIE}_8443"),
        ("[::1]", COOKIE),
        ("[::1]:80", f"{COOKIE}_80"),
        ("", COOKIE),
    ],
)
def test_the_cookie_of_a_session_is_named_by_the_port_that_the_browser_uses(host: str, name: str) -> None:
    assert get_cookie_name(HTTPConnection({"type": "http", "headers": [(b"host", host.encode())]})) == name


@pytest.mark.parametrize("end", ["log out", "revoke"])
def test_a_stream_shows_nothing_more_when_its_session_ends(api: Api, end: str) -> None:
    token = api.post("/tokens", json={"name": "ada"}).json()["token"]
    with http_client(base_url=str(api.base_url).removesuffix("/api/v1/"), timeout=patient(60)) as browser:
        log_in(browser, token)
        with browser.stream("GET", "/live/") as stream:
            blocks = stream.iter_text()
            assert "Nothing is waiting." in next(blocks)
            if end == "revoke":
                api.delete("/tokens/ada").raise_for_status()
            else:
                assert browser.post("/logout").status_code == 303
            api.post("/labels", json={"app": "mnist", "items": [{"id": "later"}]}).raise_for_status()
            assert not any("1 sample" in block for block in blocks)
        assert browser.get("/live/").status_code == 401


@pytest.mark.parametrize("end", ["log out", "revoke", "expire"])
def test_a_stream_of_a_page_that_is_not_rendered_again_ends_with_its_session(
    api: Api, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RenderPace, "compute_wait", lambda *_, may_have_changed: 0.0 if may_have_changed else 1e9)
    monkeypatch.setattr(streams, "add_pings", partial(streams.add_pings, every_s=0.5))
    looks = list[Hashable]()

    def look(*args: Any) -> Hashable:
        looks.append(read_marker(*args))
        return looks[-1]

    monkeypatch.setattr(live_pages, "read_marker", look)
    token = api.post("/tokens", json={"name": "ada"}).json()["token"]
    with http_client(base_url=str(api.base_url).removesuffix("/api/v1/"), timeout=patient(60)) as browser:
        log_in(browser, token)
        with browser.stream("GET", "/live/runs") as stream:
            blocks, now = stream.iter_text(), api.context.clock()
            next(blocks)
            wait_until(lambda: len(looks) > 3, "the stream waits")
            if end == "revoke":
                api.delete("/tokens/ada").raise_for_status()
            elif end == "expire":
                api.context.clock = lambda: now + SESSION_S
            else:
                browser.post("/logout")
            assert len(list(islice(blocks, 99))) < 99, "it ends, with no error in the browser's console"
