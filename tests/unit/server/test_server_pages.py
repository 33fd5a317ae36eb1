"""The pages on which people label: who gets in, what they see, and what foreign pages cannot do."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Iterator
from html import escape
from typing import Any

import httpx2
import numpy as np
import pytest

from scanflow.agent.agent_records import JSON, Sample
from scanflow.drift.thumbnail import encode_thumbnail
from scanflow_server import application_report
from scanflow_server.arbiter.engine_assembly import build_engine
from scanflow_server.dashboard.page_cells import FIRST_RUN
from scanflow_server.dashboard.pages import Pages
from scanflow_server.page_sessions import Sessions
from scanflow_server.server_context import ServerContext
from scanflow_server.store import agent_store, intent_store, label_store
from scanflow_server.store.label_store import LabelCandidate
from scanflow_server.token_roles import TokenHolder
from tests.http_requests import HTTP, http_client
from tests.page_reader import Form, PageReader, log_in, read_signed_in
from tests.server import bearer
from tests.unit.server.server_rows import Api, enter_run, make_action_row
from tests.waiting import patient


@pytest.fixture
def ada(api: Api) -> Iterator[httpx2.Client]:
    """A browser of somebody who has logged in with a token of their own."""
    token = api.post("/tokens", json={"name": "ada"}).json()["token"]
    with http_client(
        base_url=str(api.base_url).removesuffix("/api/v1/"), follow_redirects=True, timeout=patient(60)
    ) as browser:
        log_in(browser, token)
        yield browser


def ask_for(api: Api, *items: dict[str, Any], **more: Any) -> None:
    api.post("/labels", json={"app": "mnist", "items": list(items), **more}).raise_for_status()


def test_nobody_gets_in_without_a_token_and_the_cookie_is_for_these_pages_alone(api: Api, ada: httpx2.Client) -> None:
    ask_for(api, {"id": "p"})
    with http_client(base_url=ada.base_url) as stranger:
        for method, path, leads in (
            ("GET", "/", "/login"),
            ("GET", "/labels", "/login?next=%2Flabels"),
            ("POST", "/labels", "/login?next=%2Flabels"),
            ("GET", "/labels/picture", "/login?next=%2Flabels%2Fpicture"),
            ("GET", "/reports/mnist", "/login?next=%2Freports%2Fmnist"),
            ("GET", "/runs?start=50", "/login?next=%2Fruns%3Fstart%3D50"),
            ("POST", "/runs/fox-1/stop", "/login?next=%2Fruns%2Ffox-1%2Fstop"),
        ):
            answer = stranger.request(method, path, data={"id": "p"} if method == "POST" else None)
            assert (answer.status_code, answer.headers["location"]) == (303, leads), (method, path)
        assert stranger.get("/live/runs").status_code == 401, "a script is not led to a page"
        page = stranger.get("/login")
        assert [form.action for form in PageReader(page.text).forms] == ["/login"]
        for token in ("wrong", "", "é"):
            refused = stranger.post("/login", data={"token": token})
            assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)
        assert stranger.post("/login", json={"token": "x"}).status_code == 415
        assert stranger.post("/login", content=b"x" * 70_000, headers=FORM).status_code == 413
        token = api.post("/tokens", json={"name": "bob"}).json()["token"]
        got = stranger.post("/login", data={"token": token})
        cookie = got.headers["set-cookie"]
        assert token not in cookie + got.text
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
        assert stranger.get("/labels").status_code == 200
        assert stranger.get("/api/v1/status").status_code == 401, "it is no token of the API"
    assert ada.post("/logout").url.path == "/login"
    assert ada.get("/labels").url.path == "/login"


def test_a_browser_gets_a_page_at_an_unknown_address_and_a_program_what_it_can_read(
    api: Api, ada: httpx2.Client
) -> None:
    opens = {"accept": "text/html,application/xhtml+xml"}
    for path in ("/nonsense", "/runs/fox-1/nonsense"):
        missing = ada.get(path, headers=opens)
        read = PageReader(missing.text)
        assert (missing.status_code, read.links["Overview"], read.links["Runs"]) == (404, "/", "/runs")
        assert f"There is no page at &#39;{path}&#39;." in missing.text
    with http_client(base_url=ada.base_url) as stranger:
        sent = stranger.get("/nonsense", headers=opens)
        assert (sent.status_code, sent.headers["location"]) == (303, "/login?next=%2Fnonsense")
        assert stranger.get("/favicon.ico").status_code == 404
        for headers in ({}, {**opens, "authorization": "Bearer wrong"}):
            refused = stranger.get("/nonsense", headers=headers)
            assert (refused.status_code, refused.json()["title"]) == (401, "A token is needed")
        assert stranger.get("/api/v1/status", headers=opens).status_code == 401
        assert stranger.get("/healthz", headers=opens).status_code == 200


def test_a_login_leads_to_one_of_these_pages_whatever_a_link_says(api: Api, ada: httpx2.Client) -> None:
    token = api.post("/tokens", json={"name": "eve"}).json()["token"]
    for after, leads in (
        ("/labels", "/labels"),
        ("/reports/mnist", "/reports/mnist"),
        ("", "/"),
        ("//evil.example", "/"),
        ("https://evil.example/labels", "/"),
        ("/reports/a b", "/"),
        ("/reports/\\evil.example", "/"),
    ):
        with http_client(base_url=ada.base_url) as browser:
            form = PageReader(browser.get("/login", params={"next": after}).text).forms[0]
            assert form == Form("/login", {"next": leads, "token": ""})
            signed_in = browser.post("/login", data={"token": token, "next": after})
            assert read_signed_in(signed_in.text)["data-next"] == leads


def test_who_is_logged_in_is_led_past_the_login(ada: httpx2.Client) -> None:
    assert ada.get("/login").url.path == "/"
    assert ada.get("/login", params={"next": "/runs?state=failed"}).url.raw_path == b"/runs?state=failed"
    ada.post("/logout")
    assert ada.get("/login").url.path == "/login"


def test_the_first_page_says_what_waits_and_leads_to_the_reports(api: Api, ada: httpx2.Client) -> None:
    assert "Nothing is waiting." in ada.get("/").text
    ask_for(api, {"id": "p"}, {"id": "q"})
    event = {"at": 1.0, "type": "predictions.counted", "app": "mnist", "data": {"agent": "tracker", "new": 3}}
    api.post("/events", json=[event]).raise_for_status()
    read = PageReader(ada.get("/").text)
    assert read.links.items() >= {"2 samples to label": "/labels", "mnist": "/reports/mnist"}.items()

    report = ada.get("/reports/mnist")
    assert "The loop of mnist" in report.text
    style = re.search(r"<style>(.*?)</style>", report.text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in report.headers["content-security-policy"]
    ada.cookies.set("scanflow_zone", "Asia%2FKolkata")
    assert "All times are IST" in ada.get("/reports/mnist").text
    missing = ada.get("/reports/nothing")
    assert (missing.status_code, "No agent of" in missing.text) == (404, True)


def test_a_report_reads_the_labels_of_the_drifts_that_it_shows(
    api: Api, ada: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    event = {"at": 1.0, "type": "drift.found", "app": "mnist", "data": {"agent": "checker", "run": "first"}}
    api.post("/events", json=[event]).raise_for_status()
    with api.context.store.write() as connection:
        for at, run in enumerate(["first", "second", "third"]):
            label_store.enqueue(connection, "mnist", [LabelCandidate(id=run, run=run)], at=1.0)
            label_store.Labeller("ada", app="mnist").assign(connection, run, 7, at=2.0 + at)
    monkeypatch.setattr(application_report, "MAX_DETAILS", 1)
    monkeypatch.setattr(application_report, "MAX_LABELS", 1)
    assert "1 points, 0 of them for evaluation, by ada" in ada.get("/reports/mnist").text


def test_what_runs_and_who_waits_for_whom_is_on_the_first_page(api: Api, ada: httpx2.Client) -> None:
    run = enter_run(api.context, workflow="training")
    value: JSON = {"evidence": {"reason": "<better> by far"}}
    sample = Sample(id="s1", agent="<executor>", sensor="change_model", at=1.0, value=value, cause="call")
    waits = make_action_row("a/1", "pending", "approve", agent="<executor>", sample=sample)
    ask_for(api, {"id": "p"})
    document = {"schema": "scanflow/v1", "name": "mnist", "team": "data", "workflows": [], "agents": []}
    with api.context.store.write() as connection:
        intent_store.add(connection, waits)
        agent_store.put(connection, app="mnist", name="planner", team="data", document=document, source=None)
    page = ada.get("/").text
    read = PageReader(page)
    assert re.search(r"&lt;executor&gt; wants <strong>.*</strong>: .*; &lt;better&gt; by far</span>", page)
    assert (
        read.links.items()
        >= {
            f"{waits.intent.primitive} {waits.intent.target}": "/actions/a%2F1",
            "1 sample to label": "/labels",
            "mnist:planner": "/agents/mnist/planner",
            run: f"/runs/{run}",
        }.items()
    )
    assert 'data-label="workflow">mnist: training</td>' in page
    assert "No service yet." in page
    assert [form.action for form in read.forms] == ["/logout", "/actions/a%2F1/approve"], "an editor's"
    assert 'formaction="/actions/a%2F1/refuse"' in page


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/applications", FIRST_RUN),
        ("/runs", FIRST_RUN),
        ("/events", FIRST_RUN),
        ("/services", "scanflow demo --keep"),
        ("/agents", "scanflow demo --keep"),
        ("/actions", "scanflow demo"),
    ],
)
def test_an_empty_page_names_a_command_that_fills_it_with_nothing_prepared(
    ada: httpx2.Client, path: str, command: str
) -> None:
    [empty] = re.findall(r'<p class="empty">(.*?)</p>', ada.get(path).text, re.DOTALL)
    assert f"<code>{escape(command)}</code>" in empty


FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:1"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"host": "evil.example"}, 421),
        ({}, 200),
    ],
)
def test_a_foreign_page_cannot_send_forms_even_with_the_cookie(
    api: Api, ada: httpx2.Client, headers: dict[str, str], status: int
) -> None:
    ask_for(api, {"id": "p"})
    response = ada.post("/labels", data={"app": "mnist", "team": "", "id": "p", "label": "7"}, headers=headers)
    assert response.status_code == status
    assert len(api.get("/labels", params={"state": "given"}).json()) == (status == 200)
    assert ada.get("/labels", headers=headers).status_code == status


def test_samples_are_labelled_one_after_the_other_by_the_owner_of_the_token(api: Api, ada: httpx2.Client) -> None:
    row = {"latitude": 1.5, "<b>city</b>": "<script>alert(1)</script>", "rooms": None}
    guesses = ["cat", "dog", "cat"]
    ask_for(api, *({"id": f"r/{n}", "run": "fox", "score": n / 3, "guess": guesses[n], "row": row} for n in range(3)))
    page = ada.get("/labels")
    assert "<script>" not in page.text
    assert "<b>" not in page.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.text
    assert "0 of 3 labelled in this detection; 3 waiting in total" in page.text
    read = PageReader(page.text)
    by_text, by_choice = (form.fields for form in read.forms[1:])
    assert (by_text["id"], by_choice["id"], by_choice["pick"]) == ("r/2", "r/2", '"dog"'), "the most critical first"
    assert {"Scanflow", "Labels", "Next →"} <= set(read.links)

    page = ada.post("/labels", data={**by_text, "label": " 3 "})
    read = PageReader(page.text)
    assert (read.forms[1].fields["id"], "1 of 3 labelled" in page.text) == ("r/1", True)
    assert "You labelled it" in ada.get(read.links["← Previous"]).text
    page = ada.post("/labels", data={**read.forms[2].fields, "pick": '"a \\"dog\\""'})
    labels = api.get("/labels", params={"details": "true"}).json()
    assert [(entry["label"], entry["by"]) for entry in labels] == [(3, "ada"), ('a "dog"', "ada"), (None, None)]
    ada.post("/labels", data={**by_text, "label": "cat"})
    assert [vote["label"] for vote in api.get("/labels", params={"details": "true"}).json()[0]["votes"]] == [3, "cat"]

    for label, words in (("", "label is empty"), ("null", "null is not a label")):
        refused = ada.post("/labels", data={**by_text, "label": label})
        assert (refused.status_code, words in refused.text) == (422, True)
    for app in ("mnist", "x" * 500):
        assert ada.post("/labels", data={"app": app, "team": "", "id": "none", "label": "1"}).status_code == 404
    assert ada.get("/labels", params={"app": "\0", "id": "r/1"}).status_code == 422
    assert ada.post("/labels", data={**by_text, "label": '"\\ud800"'}).status_code == 422
    assert "No sample is waiting" in ada.get("/labels", params={"app": "other"}).text
    last = ada.post("/labels", data={"app": "mnist", "team": "", "id": "r/0", "label": "cat"})
    assert "No sample is waiting for a label." in last.text


def test_who_labels_is_not_led_and_sees_who_said_what_when_they_ask(api: Api, ada: httpx2.Client) -> None:
    ask_for(api, {"id": "p", "purpose": "evaluate", "guess": 3}, team="vision")
    assert 'name="pick"' not in ada.get("/labels").text, "the one label that is known would be the guess"
    api.post("/labels/p", json={"label": 5})
    ada.post("/labels", data={"app": "mnist", "team": "vision", "id": "p", "label": "6"})
    page = ada.get("/labels", params={"app": "mnist", "team": "vision", "id": "p"}).text
    assert "for evaluation" in page
    assert "Labellers disagree." in page
    before, *inside = page.split("<details>")
    assert "<td>ada</td>" not in before
    assert "<td>ada</td><td>6</td>" in inside[0]
    assert "The model's prediction</summary><p>3</p>" in inside[1]


def test_a_picture_is_seen_and_nothing_runs_or_comes_from_elsewhere(api: Api, ada: httpx2.Client) -> None:
    png = encode_thumbnail(np.arange(784).reshape(28, 28))
    assert png is not None
    sent = {"id": "a/b&c", "picture": base64.b64encode(png).decode(), "data": {"shape": [28, 28]}}
    ask_for(api, sent)
    page = ada.get("/labels")
    assert "28×28" in page.text
    read = PageReader(page.text)
    image = next(attributes for tag, attributes in read.tags if tag == "img")
    got = ada.get(str(image["src"]))
    assert (got.content, got.headers["content-type"]) == (png, "image/png")
    assert got.headers["x-content-type-options"] == "nosniff"
    assert ada.get("/labels/picture", params={"id": "none"}).status_code == 404

    policy = page.headers["content-security-policy"]
    style = re.search(r"<style>(.*)</style>", page.text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}' ")
    assert "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'" in policy
    for tag, attributes in read.tags:
        if (tag, attributes.get("rel")) == ("link", "icon"):
            assert attributes["href"] == "data:,"
            continue
        if tag == "script":
            assert policy.count(f"script-src 'nonce-{attributes['nonce']}';") == 1
        assert tag not in {"link", "iframe"}
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        for name in ("src", "href", "action"):
            assert str(attributes.get(name) or "/").startswith(("/", "#main"))


def test_every_field_has_a_label_and_every_page_fits_a_phone(api: Api, ada: httpx2.Client) -> None:
    ask_for(api, {"id": "x" * 250, "row": {"y" * 100: "z" * 300}})
    for page in (ada.get("/labels"), ada.get("/login"), ada.get("/")):
        read = PageReader(page.text)
        named = {str(attributes["for"]) for tag, attributes in read.tags if tag == "label"}
        fields = {
            str(attributes["id"])
            for tag, attributes in read.tags
            if tag == "input" and attributes.get("type") != "hidden"
        }
        assert named == fields
        assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in read.tags
        assert "overflow-wrap: anywhere" in page.text
        assert sum("autofocus" in attributes for _, attributes in read.tags) == min(1, len(fields))


def test_pages_have_a_share_of_what_is_answered_at_once_as_requests_of_their_token_have(
    api: Api, ada: httpx2.Client
) -> None:
    shares = api.context.requests
    shares.max_waiting = 0
    for _ in range(shares.max_of_token):
        asyncio.run(shares.acquire(TokenHolder("ada")))
    for page in ("/", "/labels"):
        refused = ada.get(page)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert ada.get("/login").status_code == 429
    with http_client(base_url=ada.base_url) as stranger:
        assert stranger.get("/login").status_code == 200
    for _ in range(shares.max_of_token):
        shares.release(TokenHolder("ada"))
    assert ada.get("/").status_code == 200
    assert (shares.answered, shares.waiting) == (0, 0)


def test_other_paths_are_the_api_s(api: Api) -> None:
    root = str(api.base_url).removesuffix("/api/v1/")
    assert HTTP.get(f"{root}/labelsx").status_code == 401
    assert HTTP.get(f"{root}/labels/none", headers=bearer("x")).status_code == 404


@pytest.mark.parametrize(
    ("scheme", "host", "is_demanded"),
    [
        ("https", b"models.example:46666", True),
        ("https", b"localhost:46666", False),
        ("https", b"127.0.0.1", False),
        ("http", b"models.example", False),
    ],
)
def test_browsers_keep_to_tls_with_a_name_that_is_the_servers_alone(
    context: ServerContext, scheme: str, host: bytes, is_demanded: bool
) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def answer_nothing(_scope: Any, _receive: Any, _send: Any) -> None: ...

    async def find_nobody(_token: str) -> None: ...

    sessions = Sessions(context, find_nobody)
    pages = Pages(answer_nothing, context=context, engine=build_engine(context), sessions=sessions)
    scope = {"type": "http", "path": "/login", "method": "GET", "scheme": scheme, "headers": [(b"host", host)]}
    asyncio.run(pages({**scope, "query_string": b"", "http_version": "1.1", "root_path": ""}, receive, send))
    headers = dict(sent[0]["headers"])
    assert (b"strict-transport-security" in headers) is is_demanded
