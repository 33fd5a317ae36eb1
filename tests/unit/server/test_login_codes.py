"""Logins by a code: who gets one, whom it lets in, and what a page of somebody else's can do with one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from scanflow.http.home_token import ensure_home_token, make_step_token
from scanflow_server.auth import get_home_owner
from scanflow_server.page_sessions import CODE_S, COOKIE
from tests.http_requests import http_client
from tests.page_reader import Form, PageReader, read_signed_in
from tests.server import bearer
from tests.unit.server.server_rows import Api
from tests.waiting import patient

FOREIGN = {"origin": "null", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
"""What browsers send with the form of a page in a file, and with one of a page that has no origin."""

EVIL = {**FOREIGN, "origin": "https://evil.example"}


@pytest.fixture
def browser(api: Api) -> Iterator[httpx2.Client]:
    with http_client(base_url=str(api.base_url).removesuffix("/api/v1/"), timeout=patient(60)) as client:
        yield client


def make_token(api: Api, role: str, name: str = "eve") -> dict[str, str]:
    return bearer(api.post("/tokens", json={"name": name, "role": role, "team": "red"}).json()["token"])


def make_login(api: Api, headers: dict[str, str] | None = None) -> dict[str, Any]:
    answer = api.post("/logins", headers=headers)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def use(browser: httpx2.Client, code: str, after: str = "/runs", headers: dict[str, str] = FOREIGN) -> httpx2.Response:
    return browser.post("/login/code", data={"code": code, "next": after}, headers=headers)


def test_the_homes_code_lets_a_browser_in_from_a_file_once(api: Api, browser: httpx2.Client) -> None:
    login = make_login(api)
    assert (login["expires_s"], api.get(f"/logins/{login['id']}").json()) == (CODE_S, {"id": login["id"]})
    answer = use(browser, login["code"])
    assert (answer.status_code, read_signed_in(answer.text)["data-next"]) == (200, "/runs")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(answer.headers["set-cookie"].split("; "))
    assert browser.get("/runs").status_code == 200
    key = read_signed_in(answer.text)["content"]
    assert browser.post("/settings/tokens", data={"session_key": key, "name": "bob"}).status_code == 200
    assert api.get(f"/logins/{login['id']}").status_code == 404
    browser.cookies.clear()
    again = use(browser, login["code"])
    assert (again.status_code, "set-cookie" in again.headers) == (401, False)
    assert "scanflow dashboard" in again.text
    entries = [(entry["who"], entry["status"]) for entry in api.get("/audit").json() if entry["path"] == "/login/code"]
    assert entries == [("", 401), (get_home_owner(), 200)]


def test_a_wrong_or_old_code_and_one_of_a_token_that_is_gone_let_nobody_in(api: Api, browser: httpx2.Client) -> None:
    viewer, now = make_token(api, "viewer"), api.context.clock()
    login, gone, old = make_login(api), make_login(api, viewer), make_login(api)
    api.delete("/tokens/eve").raise_for_status()
    for code in ("", "é", login["id"], gone["code"], ensure_home_token(api.context.settings.home)):
        answer = use(browser, code)
        assert (answer.status_code, "set-cookie" in answer.headers) == (401, False), code
    api.context.clock = lambda: now + CODE_S
    assert use(browser, old["code"]).status_code == 401


@pytest.mark.parametrize("headers", [FOREIGN, EVIL], ids=["a file's", "a page's"])
def test_under_another_name_than_the_homes_the_reader_confirms_first(
    api: Api, browser: httpx2.Client, headers: dict[str, str]
) -> None:
    code = make_login(api, make_token(api, "viewer"))["code"]
    asked = use(browser, code, headers=headers)
    assert (asked.status_code, "set-cookie" in asked.headers) == (200, False)
    assert "eve" in PageReader(asked.text).texts
    (form,) = PageReader(asked.text).forms
    assert form == Form("/login/code", {"code": form.fields["code"], "next": "/runs"})
    assert use(browser, code, headers=headers).status_code == 401, "it is used up by then"
    again = use(browser, form.fields["code"], headers=headers)
    assert "set-cookie" not in again.headers, "no page of another origin says yes"
    (form,) = PageReader(again.text).forms
    own = {"origin": str(browser.base_url).rstrip("/"), "sec-fetch-site": "same-origin", "sec-fetch-mode": "navigate"}
    answer = use(browser, form.fields["code"], form.fields["next"], own)
    assert read_signed_in(answer.text)["data-next"] == "/runs"
    assert browser.get("/runs").status_code == 200
    key = read_signed_in(answer.text)["content"]
    assert browser.post("/settings/tokens", data={"session_key": key, "name": "bob"}).status_code == 403, "a viewer"


@pytest.mark.parametrize("after", ["//evil.example", "https://evil.example/", "/\\evil.example", "runs", ""])
def test_a_code_leads_to_one_of_these_pages(api: Api, browser: httpx2.Client, after: str) -> None:
    assert read_signed_in(use(browser, make_login(api)["code"], after).text)["data-next"] == "/"


def test_a_code_is_used_by_a_form_that_the_browser_goes_to_and_by_nothing_else(
    api: Api, browser: httpx2.Client
) -> None:
    code = make_login(api)["code"]
    for headers in (
        {**FOREIGN, "sec-fetch-mode": "cors"},
        {**FOREIGN, "sec-fetch-mode": "no-cors"},
        {"origin": "null"},
    ):
        assert use(browser, code, headers=headers).status_code == 403
    assert browser.get("/login/code", params={"code": code}).status_code == 405
    assert browser.post("/login/code", json={"code": code}, headers=FOREIGN).status_code == 415
    name = f"{COOKIE}_{browser.base_url.port}"
    browser.cookies[name] = code
    assert browser.get("/runs").status_code == 303, "it is no session"
    del browser.cookies[name]
    assert use(browser, code).status_code == 200


def test_a_login_is_known_to_the_token_that_made_it_and_a_step_gets_none(api: Api) -> None:
    login, viewer = make_login(api), make_token(api, "viewer")
    assert api.get(f"/logins/{login['id']}", headers=viewer).status_code == 404
    assert api.get(f"/logins/{'0' * 64}").status_code == 404
    step = bearer(make_step_token(ensure_home_token(api.context.settings.home), "mnist", "red"))
    assert api.post("/logins", headers=step).status_code == 403
    assert make_login(api, make_token(api, "agent", "bot"))["code"]
