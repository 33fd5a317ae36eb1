"""Filters of lists in a real browser: what they show is what the address says, whichever way one came there."""

from __future__ import annotations

import pytest

from tests.browser.chromium import Browser
from tests.server import ServerProcess
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.processes]

ENTER = "\ue007"

_SEND_FILTER = """
const form = document.querySelector('form.filter');
for (const [name, value] of Object.entries(arguments[0])) form.elements[name].value = value;
form.querySelector('button').click();
"""
_CHANGE_AND_RESTORE = """
const form = document.querySelector('form.filter');
for (const [name, value] of Object.entries(arguments[0])) form.elements[name].value = value;
dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true}));
"""
_READ_FILTER = """
const form = document.querySelector('form.filter');
return form && document.readyState == 'complete' ? Object.fromEntries(new FormData(form)) : null;
"""


def log_in(browser: Browser, server: ServerProcess) -> None:
    browser.open(f"{server.url}/login", "Log in")
    browser.press(server.api.post("/tokens", json={"name": "ada", "role": "admin"}).json()["token"], ENTER)
    browser.wait_for("Log out")


def wait_for_address(browser: Browser, words: str) -> None:
    wait_until(lambda: words in browser.driver.current_url, f"the address has {words!r}")


@pytest.mark.parametrize(
    ("page", "chosen"),
    [
        ("/runs", {"state": "failed"}),
        ("/runs?app=first&start=50", {"state": "failed", "app": "second"}),
        ("/events", {"type": "run.failed", "text": "bad"}),
        ("/actions?state=failed", {"state": "pending", "agent": "planner"}),
        ("/settings/audit", {"answers": "refused", "who": "bo"}),
    ],
)
def test_a_filter_shows_what_the_address_says_after_going_back_and_forward(
    browser: Browser, server: ServerProcess, page: str, chosen: dict[str, str]
) -> None:
    server.api.post("/events", json=[{"at": 1.0, "type": "run.failed", "app": "first"}]).raise_for_status()
    browser.resize(1280)
    log_in(browser, server)
    browser.open(f"{server.url}{page}", "Filter")
    before = browser.driver.execute_script(_READ_FILTER)
    browser.driver.execute_script(_SEND_FILTER, chosen)
    wait_for_address(browser, "&".join(f"{name}={value}" for name, value in list(chosen.items())[:1]))
    after = {**before, **chosen}
    wait_until(lambda: browser.driver.execute_script(_READ_FILTER) == after, "the filter says what was chosen")
    browser.driver.back()
    wait_until(lambda: browser.driver.current_url == f"{server.url}{page}", "the address is that of before")
    wait_until(lambda: browser.driver.execute_script(_READ_FILTER) is not None, "the page is there")
    assert browser.driver.execute_script(_READ_FILTER) == before
    browser.driver.forward()
    wait_until(lambda: browser.driver.current_url != f"{server.url}{page}", "the address is that of the filter")
    wait_until(lambda: browser.driver.execute_script(_READ_FILTER) is not None, "the page is there")
    assert browser.driver.execute_script(_READ_FILTER) == after
    browser.driver.execute_script(_CHANGE_AND_RESTORE, dict.fromkeys(chosen, ""))
    assert browser.driver.execute_script(_READ_FILTER) == after, "a page that the browser kept as it was left"
    assert browser.read_console() == []
