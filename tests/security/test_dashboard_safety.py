"""Attacks on the dashboard: forms of other pages and sessions, other teams, small roles, hostile text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from sqlalchemy import select

from scanflow.http.home_token import make_step_token, read_home_token
from scanflow_server.dashboard.dashboard_page import LIVE
from scanflow_server.dashboard.page_html import SECTIONS
from scanflow_server.dashboard.pages import ACTIONS, FILES, PAGES
from scanflow_server.server_context import ServerContext
from scanflow_server.store import event_store, intent_store, label_store
from scanflow_server.store.label_store import LabelCandidate
from scanflow_server.store.tables import audit, metadata, sessions
from tests.http_requests import http_client
from tests.page_reader import Form, PageBrowser, PageReader, browse, find_session
from tests.security.two_teams import Two
from tests.unit.server.server_rows import make_action_row
from tests.waiting import patient

ELSEWHERE = ("/mlflow", "/login")
"""Where links lead that are no pages for who is logged in."""

AWAY = ("/services/alpha-service", "/models", "/tuning")
"""Pages that ask a process which does not run here: a service's, or MLflow."""

READING = {action.path for action in ACTIONS if action.permission == "read"}
"""Forms that change nothing."""

EVIL = "\"'><evil onload='&amp;"
NAMES = {
    "app": "alpha-app", "agent": "alpha-agent", "team": "alpha", "service": "alpha-service", "step": "fit",
    "task": "fit", "name": "scores.csv", "model": "alpha-model", "version": "1", "workflow": "alpha-work",
    "environment": "alpha-app",
}  # fmt: skip
"""What names the team alpha's things in addresses; of another parameter's, add it."""


SAMPLE = {"app": "alpha-app", "team": "alpha", "id": "alpha-sample", "label": "1"}


def enter(two: Two, team: str | None, role: str) -> AbstractContextManager[PageBrowser]:
    return browse(two.root, two.token(team, role)["authorization"].removeprefix("Bearer "))


def fill_path(two: Two, path: str) -> str:
    """Return a path of the team alpha's things."""
    by_page = {
        "actions": "alpha-intent", "events": "1", "tokens": "alpha-viewer", "mpi": two.run, "tuning": two.run,
        "services": "alpha-service", "models": "alpha-model", "files": "result", "applications": "alpha-app",
    }  # fmt: skip
    names = {**NAMES, "run": two.run, "other": two.run, "job": two.run}
    for name in re.findall(r"{(\w+)", path):
        value = names[name] if name in names else by_page[path.split("{", maxsplit=1)[0].strip("/").split("/")[-1]]
        path = re.sub(rf"{{{name}[^}}]*}}", value, path)
    return path


def dump(context: ServerContext) -> dict[str, list[Any]]:
    """Return all that could be changed."""
    with context.store.read() as connection:
        return {
            table.name: [tuple(row) for row in connection.execute(select(table))]
            for table in metadata.sorted_tables
            if table not in (audit, sessions)
        }


def crawl(browser: PageBrowser, start: str = "/", *, may_lack: tuple[str, ...] = ()) -> dict[str, PageReader]:
    """Follow all links from a page, and return the pages by their addresses; each is answered 200.

    ``may_lack``: the beginnings of addresses to which a test made links without what is there.
    """
    served = {page.path for page in PAGES}
    missing = tuple(address for address, _ in SECTIONS if address not in served)
    pages, waiting = dict[str, PageReader](), [start]
    while waiting:
        address = waiting.pop()
        answer = browser.get(address)
        may_be_away = answer.status_code in {404, 503} and address.startswith((*AWAY, *may_lack))
        assert answer.status_code == 200 or may_be_away, (address, answer.text)
        pages[address] = PageReader(answer.text)
        for link in sorted(pages[address].addresses):
            assert link.startswith(("/", "#")), f"{address} leads to {link!r}"
            target = urlsplit(link)._replace(fragment="").geturl()
            if target and target not in {*pages, *waiting} and not target.startswith((*ELSEWHERE, *missing)):
                waiting.append(target)
    return pages


def list_actions(pages: dict[str, PageReader]) -> Iterator[tuple[str, Form]]:
    for address, page in pages.items():
        for form in page.forms:
            if form.method == "post" and form.action not in {"/logout", *READING}:
                yield address, form


def test_the_page_of_each_section_is_reached_from_the_first(two: Two) -> None:
    with two.context.store.write() as connection:
        event_store.record(connection, "predictions.counted", "s", at=1.0, app="alpha-app", team="alpha", data={})
    with enter(two, None, "admin") as admin:
        pages = crawl(admin)
    assert {page.path for page in PAGES if "{" not in page.path} <= pages.keys()
    assert {f"/runs/{two.run}", "/reports/alpha-app", "/settings/audit"} <= pages.keys()


@pytest.mark.parametrize(
    ("team", "role"), [("alpha", "viewer"), ("alpha", "editor"), ("alpha", "admin"), (None, "viewer")]
)
def test_no_link_and_no_form_that_a_page_shows_is_refused(two: Two, team: str | None, role: str) -> None:
    with enter(two, team, role) as person:
        forms = {(form.action, *form.fields.items()): form for _, form in list_actions(crawl(person))}
        readable = {action.path for action in ACTIONS if action.permission == "read"}
        assert ({form.action for form in forms.values()} <= readable) is (role == "viewer")
        for form in forms.values():
            fields = {name: value or "1" for name, value in form.fields.items()}
            answer = person.submit(form.action, **fields)
            assert answer.status_code not in {403, *range(500, 600)}, (form, answer.text)


def test_a_form_counts_with_the_key_of_its_session_and_from_this_origin_alone(two: Two) -> None:
    with enter(two, None, "admin") as admin, enter(two, "alpha", "admin") as other:
        before, right = dump(two.context), {"session_key": admin.session_key}
        attacks: tuple[tuple[dict[str, str], dict[str, str]], ...] = (
            ({"service": "x"}, {}),
            ({"session_key": ""}, {}),
            ({"session_key": other.session_key}, {}),
            ({"session_key": find_session(admin) or "none"}, {}),
            (right, {"origin": "https://evil.example"}),
            (right, {"origin": "http://127.0.0.1:1"}),
            (right, {"origin": "null"}),
            (right, {"sec-fetch-site": "cross-site"}),
            (right, {"sec-fetch-site": "same-site"}),
        )
        for path in [fill_path(two, action.path) for action in ACTIONS if action.needs_key]:
            for fields, headers in attacks:
                answer = admin.post(path, data=fields, headers=headers)
                assert answer.status_code == 403, (path, fields, headers, answer.text)
            admin.get(path)
            assert admin.post(path, json=right).status_code == 415, path
        assert dump(two.context) == before


def test_no_page_stream_or_form_leads_to_another_teams_things(two: Two) -> None:
    with enter(two, "beta", "admin") as beta:
        before = dump(two.context)
        for page in PAGES:
            path = fill_path(two, page.path)
            answer = beta.get(path)
            assert answer.status_code == (404 if "{" in page.path and not path.startswith(AWAY) else 200), (
                path,
                answer.text,
            )
            texts = answer.text.replace(path, "").replace(quote(path, safe=""), "").replace("alpha-viewer", "")
            names = [value for value in (two.run, *NAMES.values()) if value.startswith("alpha") and value in path]
            for name in names:  # an error says what was asked for
                texts = texts.replace(name, "")
            assert "alpha" not in texts, path
            with beta.stream("GET", LIVE + path) as stream:
                assert "alpha" not in strip_names(next(stream.iter_text()), [*names, path]), path
        for path in [fill_path(two, file.path) for file in FILES]:
            answer = beta.get(path)
            assert (answer.status_code, "alpha" in answer.text.replace(path, "")) == (404, False), answer.text
        for file in FILES:
            assert beta.get(fill_path(two, file.path)).status_code == 404, file.path
        for action in [action for action in ACTIONS if action.permission != "read"]:
            answer = beta.submit(fill_path(two, action.path), **SAMPLE, name="x")
            assert answer.status_code in {403, 404, 422, 503}, (action.path, answer.text)
        assert dump(two.context) == before


def strip_names(text: str, names: list[str]) -> str:
    for name in names:
        text = text.replace(name, "")
    return text


@pytest.mark.parametrize("role", ["viewer", "agent"])
def test_a_small_role_changes_nothing_by_any_form(two: Two, role: str) -> None:
    with enter(two, "alpha", role) as person:
        before = dump(two.context)
        for action in ACTIONS:
            if action.path in READING or (role == "agent" and action.permission == "propose"):
                continue
            answer = person.submit(fill_path(two, action.path), **SAMPLE)
            assert answer.status_code == 403 or action.permission == "read", (action.path, answer.text)
        assert dump(two.context) == before


def test_no_page_is_framed_cached_or_runs_what_is_not_its_own(two: Two) -> None:
    with enter(two, None, "admin") as admin:
        nonces = set[str]()
        for address in crawl(admin):
            answer = admin.get(address)
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; style-src 'sha256-")
            assert policy.endswith("form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
            assert "unsafe" not in policy
            headers = ("x-content-type-options", "cache-control", "cross-origin-opener-policy")
            assert [answer.headers[name] for name in headers] == ["nosniff", "no-store", "same-origin"], address
            for tag, attributes in PageReader(answer.text).tags:
                assert not [name for name in attributes if name.startswith("on") or name == "style"], (address, tag)
                if tag == "script":
                    assert f"script-src 'nonce-{attributes['nonce']}';" in policy
                    nonces.add(str(attributes["nonce"]))
        assert len(nonces) > 3, "each answer has a nonce of its own"


def test_hostile_text_is_text_on_every_page(two: Two) -> None:
    about: Any = {"app": "alpha-app", "team": "alpha"}
    with two.context.store.write() as connection:
        row = make_action_row("evil", "pending", "approve", **about, agent=EVIL, key=EVIL, arguments={"workflow": EVIL})
        intent_store.add(connection, row)
        sample = LabelCandidate(id=EVIL, run=EVIL, guess=EVIL, row={EVIL: EVIL}, score=1.0)
        label_store.enqueue(connection, "alpha-app", [sample], at=2.0, team="alpha")
        for type in ("drift.found", "labels.given", "predictions.counted", EVIL):
            event_store.record(connection, type, EVIL, at=two.context.clock(), **about, data={"agent": EVIL})
    with enter(two, None, "admin") as admin:
        admin.submit("/settings/tokens", name=EVIL)
        admin.get("/labels", headers={"user-agent": EVIL})
        shown = 0
        for address, page in crawl(admin, may_lack=("/agents/alpha-app/",)).items():
            assert not [tag for tag, _ in page.tags if tag == "evil"], address
            shown += sum(EVIL in text for text in page.texts)
        assert shown >= 4


def test_a_step_begins_no_session(two: Two) -> None:
    home = read_home_token(two.context.settings.home)
    assert home is not None
    with http_client(base_url=two.root, timeout=patient(60)) as browser:
        assert browser.post("/login", data={"token": make_step_token(home, "alpha-app", "alpha")}).status_code == 401
