"""The pages of settings: what each role sees of tokens, webhooks, usage and the audit log."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from scanflow_server.control.notifications import build_targets
from scanflow_server.dashboard.settings_pages import mask_webhook
from scanflow_server.store import application_store, audit_store, event_store, usage, webhook_positions
from scanflow_server.store.audit_store import AuditEntry
from tests.page_reader import PageBrowser, PageReader, browse
from tests.server import bearer
from tests.unit.server.server_rows import Api


@pytest.fixture
def enter(api: Api) -> Iterator[Callable[..., PageBrowser]]:
    """Logs in with a new token of that name, role and team."""
    with ExitStack() as stack:

        def log_in_as(name: str, role: str, team: str | None = None) -> PageBrowser:
            token = api.post("/tokens", json={"name": name, "role": role, "team": team}).json()["token"]
            return stack.enter_context(browse(str(api.base_url).removesuffix("/api/v1/"), token))

        yield log_in_as


def get_token(api: Api, name: str) -> dict[str, Any]:
    (row,) = (row for row in api.get("/tokens").json() if row["name"] == name)
    return dict(row)


def test_an_admin_makes_a_token_that_is_shown_once_and_revokes_it(api: Api, enter: Callable[..., PageBrowser]) -> None:
    ada = enter("ada", "admin")
    page = ada.submit("/settings/tokens", name="bo", role="viewer", team="red", days="2")
    assert (page.status_code, page.headers["cache-control"]) == (200, "no-store")
    (token,) = re.findall(r"SCANFLOW_TOKEN=([^<]+)<", page.text)
    assert "with the role viewer for the team red" in page.text
    assert api.get("/runs", headers=bearer(token)).status_code == 200
    row = get_token(api, "bo")
    assert row["expires"] - row["created"] == 2 * 86_400.0
    assert api.get("/audit").json()[0]["what"] == "made the token 'bo': viewer, team red"
    listed = ada.get("/settings/tokens")
    assert token not in listed.text
    forms = {form.action for form in PageReader(listed.text).forms}
    assert forms == {"/logout", "/settings/tokens", "/settings/tokens/bo/revoke", "/settings/tokens/ada/revoke"}
    assert "for good." in listed.text, "what cannot be undone asks"
    ada.submit("/settings/tokens/bo/revoke")
    assert api.get("/runs", headers=bearer(token)).status_code == 401
    assert "revoked" in ada.get("/settings/tokens").text


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"name": "ada"}, 409, "in use"),
        ({"name": "A b"}, 422, "name: write small letters, digits and hyphens"),
        ({"name": "bo", "team": "Red_1"}, 422, "team: write small letters, digits and hyphens"),
        ({"name": "bo", "role": "root"}, 422, "role: Input should be"),
        ({"name": "bo", "days": "soon"}, 422, "no number of days"),
        *(({"name": "bo", "days": days}, 422, "is no number of days") for days in ("-1", "0", "nan", "1e9", "40000")),
        ({}, 422, "name: Field required"),
    ],
)
def test_a_wrong_form_says_what_is_wrong_and_makes_no_token(
    api: Api, enter: Callable[..., PageBrowser], fields: dict[str, str], status: int, text: str
) -> None:
    ada = enter("ada", "admin")
    before = api.get("/tokens").json()
    refused = ada.submit("/settings/tokens", **fields)
    assert (refused.status_code, text in refused.text) == (status, True), refused.text
    assert api.get("/tokens").json() == before


def test_an_admin_of_a_team_sees_and_makes_only_its_own(api: Api, enter: Callable[..., PageBrowser]) -> None:
    ada, bo = enter("ada", "admin", "red"), enter("bo", "viewer", "blue")
    assert bo.get("/settings").status_code == 200
    ada.submit("/settings/tokens", name="cy")
    assert get_token(api, "cy")["team"] == "red"
    assert ada.submit("/settings/tokens", name="di", team="blue").status_code == 403
    assert ada.submit("/settings/tokens/bo/revoke").status_code == 404
    assert "bo" not in PageReader(ada.get("/settings/tokens").text).texts
    audit = PageReader(ada.get("/settings/audit").text).texts
    assert ("ada" in audit, "bo" in audit) == (True, False)


@pytest.mark.parametrize("role", ["viewer", "agent", "editor"])
def test_who_is_no_admin_sees_neither_tokens_nor_the_audit_log(enter: Callable[..., PageBrowser], role: str) -> None:
    person = enter("eve", role)
    page = PageReader(person.get("/settings").text)
    assert not {"/settings/tokens", "/settings/audit"} & page.addresses
    for path in ("/settings/tokens", "/settings/audit"):
        answer = person.get(path)
        assert (answer.status_code, "scanflow token make" in answer.text) == (403, True)
        with person.stream("GET", f"/live{path}") as stream:
            assert "scanflow token make" in next(stream.iter_text()), "nor by the stream"


def test_webhooks_say_where_they_lead_without_their_secrets(api: Api, enter: Callable[..., PageBrowser]) -> None:
    notify = [
        {"url": "https://hooks.example/services/s3cret", "secret": "env:KEY"},
        {"url": "env:SLACK", "on": ["drift"]},
    ]
    with api.context.store.write() as connection:
        for team in ("red", "blue"):
            document = {"name": "shop", "team": team, "app_dir": "/nowhere", "notify": notify}
            application_store.put(connection, name="shop", team=team, document=document, source=None, at=1.0)
        (row,) = application_store.list_all(connection, team="red")
        webhook_positions.put_position(connection, build_targets(row)[0].key, 41)
        event_store.record(connection, "notification.failed", "s", at=5.0, app="shop", team="red", data={})
        usage.add(connection, "red", 3 * 2**20)
        usage.add(connection, "blue", 5 * 2**20)
    page = enter("eve", "viewer", "red").get("/settings").text
    texts = PageReader(page).texts
    assert texts >= {"https://hooks.example/…", "env:SLACK", "drift", "41", "1970-01-01 00:00:05 UTC", "3.0 MiB"}
    assert "s3cret" not in page
    assert not {"blue", "5.0 MiB"} & texts


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://10.0.0.5:8080/a?token=b", "http://10.0.0.5:8080/…"),
        ("https://hooks.example", "https://hooks.example/…"),
        ("file:hook", "file:hook"),
    ],
)
def test_an_address_is_shown_without_its_path(address: str, shown: str) -> None:
    assert mask_webhook(address) == shown


def test_the_audit_log_is_filtered_and_goes_on_with_older_entries(api: Api, enter: Callable[..., PageBrowser]) -> None:
    ada = enter("ada", "admin")
    whose: dict[str, Any] = {"address": "127.0.0.1", "method": "POST"}
    with api.context.store.write() as connection:
        for number in range(60):
            entry = AuditEntry(at=1.0, who="bo", path=f"/runs/{number}", status=403 if number % 2 else 201, **whose)
            audit_store.add(connection, entry)
    first = PageReader(ada.get("/settings/audit").text)
    second = PageReader(ada.get(first.links["Older →"]).text)
    numbers = [{int(text[11:]) for text in page.texts if text.startswith("POST /runs/")} for page in (first, second)]
    assert (numbers[0] | numbers[1], numbers[0] & numbers[1]) == (set(range(60)), set())
    assert second.links["← Newer"] == "/settings/audit"
    refusals = PageReader(ada.get("/settings/audit?answers=refused&who=bo").text).texts
    assert {int(text[11:]) for text in refusals if text.startswith("POST /runs/")} == set(range(1, 60, 2))
    for odd in ("x", "9" * 5000):
        assert ada.get(f"/settings/audit?before={odd}").status_code == 200


def test_times_are_in_the_readers_zone(enter: Callable[..., PageBrowser]) -> None:
    ada = enter("ada", "admin")
    ada.cookies.set("scanflow_zone", "Asia%2FKolkata")
    page = ada.get("/settings/tokens").text
    assert '<time datetime="2027-01-15T08:00:00+00:00">2027-01-15 13:30:00</time>' in page
    assert "Times are in Asia/Kolkata." in ada.get("/settings").text
