"""Lists in a real browser: filters that say what the address says, tables that fit, confirmations that are closed."""

from __future__ import annotations

from contextlib import closing

import pytest

from scanflow_server.store import intent_store
from scanflow_server.store.base import open_store
from tests.browser.chromium import Browser
from tests.server import ServerProcess
from tests.unit.server.server_rows import make_action_row
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.processes]

ENTER, ESCAPE = "\ue007", "\ue00c"

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


def test_a_table_of_actions_fits_a_wide_screen_whatever_their_reasons_are(
    browser: Browser, server: ServerProcess
) -> None:
    long = "the_accuracy_of_the_challenger_beyond_that_of_the_champion_on_the_data_of_today"
    row = make_action_row("a1", "failed", "act").replace(action={"error": f"{long}>{long}"})
    address = f"sqlite:///{server.home / 'server' / 'scanflow.db'}"
    with closing(open_store(address)) as store, store.write() as connection:
        intent_store.add(connection, row)
    browser.resize(1280)
    log_in(browser, server)
    browser.open(f"{server.url}/actions", long[:40])
    measure = "return [...document.querySelectorAll('.scroll')].map(box => box.scrollWidth - box.clientWidth)"
    assert browser.driver.execute_script(measure) == [0]


def test_escape_closes_a_confirmation(browser: Browser, server: ServerProcess) -> None:
    browser.resize(1280)
    log_in(browser, server)
    browser.open(f"{server.url}/settings/tokens", "Revoke")
    browser.find("details.confirm summary").click()
    is_open = "return document.querySelector('details.confirm').open"
    assert browser.driver.execute_script(is_open) is True
    browser.press(ESCAPE)
    assert browser.driver.execute_script(is_open) is False
    assert browser.driver.execute_script("return document.activeElement.matches('details.confirm summary')")
