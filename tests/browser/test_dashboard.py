"""The dashboard as a person sees it: every page by eye, by axe-core and by keyboard, and what a restart does to it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from scanflow_server.dashboard.pages import PAGES
from tests.browser.chromium import Browser
from tests.browser.filled_server import FilledServer, encode_picture
from tests.conftest import home_in
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.processes]

ENTER, TAB = "\ue007", "\ue004"
LOOKS = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilledServer]:
    with home_in(tmp_path_factory.mktemp("filled")) as home:
        home.mkdir(exist_ok=True)
        server = FilledServer(home)
        yield server
        server.close()


@pytest.fixture
def desk(browser: Browser, filled: FilledServer) -> Browser:
    """A browser on a desk in which an admin has logged in."""
    browser.resize(1280)
    browser.open(f"{filled.url}/login", "Log in")
    browser.press(filled.make_token(f"ada-{time.monotonic_ns()}"), ENTER)
    browser.wait_for("Log out")
    return browser


@pytest.mark.parametrize("path", [page.path for page in PAGES])
def test_a_page_is_seen_by_everybody(desk: Browser, filled: FilledServer, path: str) -> None:
    address = filled.find_address(path)
    if address is None:
        pytest.skip("the server has nothing that the page is about")
    for width, scheme in LOOKS:
        desk.resize(width)
        desk.use_scheme(scheme)
        desk.open(f"{filled.url}{address}", "Log out")
        measured, _ = desk.measure(f"{width}-{scheme}")
        assert measured == width, f"{address} scrolls sideways at {width}"
        assert desk.check_access() == [], f"{address}, {width} pixels, {scheme}"
        assert desk.driver.execute_script("return document.querySelector('main h1') !== null")
    assert desk.list_hosts() == {filled.url}
    assert desk.read_console() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_of_a_login_are_seen_by_everybody(browser: Browser, filled: FilledServer, scheme: str) -> None:
    browser.resize(390)
    browser.use_scheme(scheme)
    browser.open(f"{filled.url}/runs?start=0", "Log in")
    assert browser.check_access() == []
    browser.press("wrong", ENTER)
    browser.wait_for("not valid")
    assert browser.measure("refused")[0] == 390
    assert browser.check_access() == []
    browser.press(filled.make_token(f"bo-{scheme}", "viewer"), ENTER)
    browser.wait_for("Log out")
    assert browser.driver.current_url == f"{filled.url}/runs?start=0", "it leads back to where one was"


def press_until(browser: Browser, is_reached: Callable[[], bool], *, most: int = 80) -> None:
    """Press the tabulator until the focus is there."""
    for _ in range(most):
        if is_reached():
            return
        browser.press(TAB)
    raise AssertionError(f"The keyboard does not reach it within {most} keys.")


def has_focus(browser: Browser, selector: str) -> bool:
    script = "return document.activeElement.matches(arguments[0])"
    return bool(browser.driver.execute_script(script, selector))


def test_the_keyboard_alone_approves_an_action(desk: Browser, filled: FilledServer) -> None:
    (action, *_) = filled.api.get("/intents", params={"state": "pending", "app": "shop"}).json()
    desk.open(filled.url, "Waiting for you")
    press_until(desk, partial(has_focus, desk, f"form[action='/actions/{action['id']}/approve'] button"))
    desk.press(ENTER)
    path = f"/intents/{action['id']}"
    wait_until(lambda: filled.api.get(path).json()["state"] != "pending", "the action is approved")
    assert "ada-" in str(filled.api.get(path).json()["approved_by"])
    assert desk.read_console() == []


def test_the_keyboard_alone_resumes_a_run(desk: Browser, filled: FilledServer) -> None:
    before = filled.outcomes()[filled.failed]
    desk.open(f"{filled.url}/runs/{filled.failed}", "row 3 is bad")
    press_until(desk, partial(has_focus, desk, f"form[action='/runs/{filled.failed}/resume'] button"))
    desk.press(ENTER)
    wait_until(lambda: len(filled.outcomes()[filled.failed]) > len(before), "the run has been resumed and has ended")
    assert desk.read_console() == []


def test_the_keyboard_alone_labels_ten_samples(desk: Browser, filled: FilledServer) -> None:
    samples = [f"r/{number}" for number in range(10)]
    filled.request_labels(*samples, picture=encode_picture(), data={"shape": [28, 28]})
    desk.open(f"{filled.url}/labels?app=shop&team=data&id=r/9", "0 of 10 labelled")
    for number in range(10):
        assert has_focus(desk, "#label"), "the field has the focus"
        desk.press(str(number), ENTER)
        desk.wait_for(f"{number + 1} of 10 labelled" if number < 9 else "0 of 2 labelled")
    labels = filled.api.get("/labels", params={"app": "shop", "state": "given"}).json()
    given = {label["id"]: (label["label"], label["by"][:4]) for label in labels if label["id"] in samples}
    assert sorted(given.values()) == [(number, "ada-") for number in range(10)]
    assert desk.read_console() == []


def test_what_is_typed_stays_while_the_page_changes(desk: Browser, filled: FilledServer) -> None:
    filled.request_labels("typed", "other")
    desk.open(f"{filled.url}/labels?app=shop&team=data&id=typed", "labelled in this detection")
    desk.press("half a wo")
    filled.request_labels("third")
    desk.wait_for("5 waiting in total")
    desk.press("rd")
    assert desk.driver.execute_script("return document.querySelector('#label').value") == "half a word"
    assert has_focus(desk, "#label")
    for id in ("typed", "other", "third"):
        filled.api.post(f"/labels/{id}", json={"app": "shop", "team": "data", "label": 1}).raise_for_status()


def test_a_change_is_on_the_page_within_a_second(
    desk: Browser, filled: FilledServer, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.open(filled.url, "Waiting for you")
    waits_s = []
    for number in range(10):
        began = time.perf_counter()
        filled.request_labels(f"change-{number}")
        desk.wait_for(f"{number + 3} samples to label")
        waits_s.append(time.perf_counter() - began)
    for number in range(10):
        body = {"app": "shop", "team": "data", "label": 1}
        filled.api.post(f"/labels/change-{number}", json=body).raise_for_status()
    with capsys.disabled():
        print(f"\na change is seen after {statistics.median(waits_s):.2f} s, at most {max(waits_s):.2f} s")


def test_the_page_says_that_the_server_is_gone_and_goes_on_when_it_is_back(desk: Browser, filled: FilledServer) -> None:
    desk.open(f"{filled.url}/runs", filled.running)
    filled.kill()
    desk.wait_for("The server does not answer")
    assert filled.running in desk.find("main").text, "what it showed last stays"
    desk.measure("gone")
    filled.start()
    read = "return document.querySelector('#connection').hidden"
    wait_until(lambda: desk.driver.execute_script(read), "the page has reconnected")
    begun = filled.begin_run("training")
    desk.wait_for(begun)
    desk.find(f"a[href='/runs/{begun}']").click()
    desk.wait_for(f"Run {begun}")
    gone = ("net::ERR_", "Failed to fetch", "network error")
    assert not [message for message in desk.read_console() if not any(words in message for words in gone)]


def test_a_page_says_that_its_session_has_ended_and_no_key_is_left_after_a_logout(
    desk: Browser, filled: FilledServer
) -> None:
    desk.open(f"{filled.url}/runs", filled.running)
    read_key = "return localStorage.getItem('scanflow_key')"
    assert desk.driver.execute_script(read_key)
    first = desk.driver.current_window_handle
    desk.driver.switch_to.new_window("window")
    desk.open(f"{filled.url}/settings", "Log out")
    desk.find("header form button").click()
    desk.wait_for("Log in")
    assert desk.driver.execute_script(read_key) is None
    desk.driver.switch_to.window(first)
    desk.wait_for("You are no longer logged in.")


def test_times_are_in_the_readers_zone(browser: Browser, filled: FilledServer) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
    browser.resize(1280)
    browser.open(f"{filled.url}/login", "Log in")
    browser.press(filled.make_token("kolkata"), ENTER)
    browser.wait_for("Log out")
    browser.open(f"{filled.url}/runs", filled.running)
    script = """
    const time = document.querySelector('main time'), zone = {timeZone: 'Asia/Kolkata', hourCycle: 'h23'};
    const parts = new Intl.DateTimeFormat('sv-SE', {...zone, dateStyle: 'short', timeStyle: 'medium'});
    return [time.textContent, parts.format(new Date(time.dateTime))];
    """
    shown, expected = browser.driver.execute_script(script)
    assert shown == expected
