"""The dashboard as a person sees it: every page by eye, by axe-core and by keyboard, and what a restart does to it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from scanflow_server.dashboard.pages import PAGES
from tests.browser.chromium import Browser
from tests.browser.filled_server import MORE_PAGES, FilledServer, encode_picture
from tests.browser.shop_records import SERVICE
from tests.conftest import home_in
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.processes, pytest.mark.timeout(900)]  # the first fills the shop

ENTER, TAB = "\ue007", "\ue004"
WIDTHS = (1280, 390)
DRAWINGS = {
    "/applications/{app}": 1,
    "/runs/{run}": 2,
    "/services/{name}": 3,
    "/agents": 1,
    "/agents/{app}/{agent}": 1,
    "/models/{model}": 4,
    "/labels": 1,
    "/mpi": 3,
    "/tuning/{id}": 2,
    "/runs/{succeeded}?task=report": 3,
    "/events/{drift}": 3,
}
"""How many drawings and pictures pages have at least, of what the shop has; the others show tables."""

EMPTY = (
    "Its journal has no entry.",
    "It printed nothing.",
    "The run '",  # of a job that waits: it has no log yet
    "They are the same.",
    "The workflow has no other run.",
    "The workflow has no further run.",
    "No step has a parameter.",
)
"""What the parts of a page say of which this shop has nothing."""


_LIST_BROKEN_WORDS = """
const words = [];
for (const table of document.querySelectorAll('.cells')) {
  const texts = document.createTreeWalker(table, NodeFilter.SHOW_TEXT);
  while (texts.nextNode())
    for (const found of texts.currentNode.data.matchAll(/\\w+/g)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, found.index);
      range.setEnd(texts.currentNode, found.index + found[0].length);
      if (range.getClientRects().length > 1) words.push(found[0]);
    }
}
return words;
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilledServer]:
    with home_in(tmp_path_factory.mktemp("shop")) as home:
        home.mkdir(exist_ok=True)
        server = FilledServer(home)
        try:
            server.fill()
            yield server
        finally:
            server.close()


@pytest.fixture
def person(browser: Browser, shop: FilledServer) -> Browser:
    """A browser on a desk in which an admin has logged in."""
    browser.resize(1280)
    browser.open(f"{shop.url}/login", "Log in")
    browser.press(shop.make_token(f"ada-{time.monotonic_ns()}"), ENTER)
    browser.wait_for("Log out")
    return browser


@pytest.mark.parametrize("path", [*(page.path for page in PAGES), *MORE_PAGES])
def test_a_page_is_seen_by_everybody(person: Browser, shop: FilledServer, path: str) -> None:
    address = shop.find_address(path)
    for width in WIDTHS:
        person.resize(width)
        person.open(f"{shop.url}{address}", "Log out")
        wait_until(lambda: "Reading MLflow" not in person.find("main").text, "MLflow is read")
        for scheme in ("light", "dark"):
            person.use_scheme(scheme)
            measured, drawings = person.measure(f"{width}-{scheme}")
            assert measured == width, f"{address} scrolls sideways at {width}"
            assert all(drawing.loaded for drawing in drawings)
            assert len(drawings) >= DRAWINGS.get(path, 0), "what is drawn of it"
            findings = person.check_access(*(["color-contrast"] if scheme == "dark" else []))  # colours alone differ
            assert findings == [], f"{address}, {width} pixels, {scheme}"
            assert person.read_console() == []
        assert person.driver.execute_script("return document.querySelector('main h1') !== null")
        read = "return [...document.querySelectorAll('main .empty')].map(part => part.innerText)"
        unseen = [text for text in person.driver.execute_script(read) if not text.startswith(EMPTY)]
        assert unseen == [], "there is something to see on every page"
    assert person.list_hosts() == {shop.url}


def test_the_header_of_a_wide_page_is_one_line_and_no_name_in_a_table_is_broken_inside_a_word(
    person: Browser, shop: FilledServer
) -> None:
    person.open(f"{shop.url}/actions", "update_workflow_replica")
    assert person.driver.execute_script(_LIST_BROKEN_WORDS) == []
    heights = "return ['nav', 'form'].map(part => document.querySelector(`.bar ${part}`).getBoundingClientRect())"
    nav, form = person.driver.execute_script(heights)
    assert nav["top"] < form["bottom"] and form["top"] < nav["bottom"], "they are beside each other"  # noqa: PT018


def test_a_table_of_many_columns_scrolls_by_itself_and_breaks_inside_no_word(
    person: Browser, shop: FilledServer
) -> None:
    person.open(f"{shop.url}{shop.find_address('/runs/{succeeded}?task=report')}", "regularisation 2")
    assert person.driver.execute_script(_LIST_BROKEN_WORDS) == []
    measure = "const box = document.querySelector('.outputs .scroll'); return box.scrollWidth > box.clientWidth"
    assert person.driver.execute_script(measure) is True
    assert person.measure("wide")[0] == 1280


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_of_a_login_are_seen_by_everybody(browser: Browser, shop: FilledServer, scheme: str) -> None:
    browser.resize(390)
    browser.use_scheme(scheme)
    browser.open(f"{shop.url}/runs?start=0", "Log in")
    assert browser.check_access() == []
    browser.press("wrong", ENTER)
    browser.wait_for("not valid")
    assert browser.measure("refused")[0] == 390
    assert browser.check_access() == []
    browser.press(shop.make_token(f"bo-{scheme}", "viewer"), ENTER)
    browser.wait_for("Log out")
    assert browser.driver.current_url == f"{shop.url}/runs?start=0", "it leads back to where one was"


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


def test_the_keyboard_alone_approves_an_action(person: Browser, shop: FilledServer) -> None:
    (action, *_) = shop.api.get("/intents", params={"state": "pending", "app": "shop"}).json()
    person.open(shop.url, "Waiting for you")
    press_until(person, partial(has_focus, person, f"form[action='/actions/{action['id']}/approve'] button"))
    person.press(ENTER)
    path = f"/intents/{action['id']}"
    wait_until(lambda: shop.api.get(path).json()["state"] != "pending", "the action is approved")
    assert "ada-" in str(shop.api.get(path).json()["approved_by"])
    assert person.read_console() == []


def test_a_form_that_is_refused_says_why_and_stays_as_it_was_filled_in(person: Browser, shop: FilledServer) -> None:
    address = f"{shop.url}/runs/{shop.failed}"
    person.open(address, "row 3 is bad")
    person.find("#spin textarea").send_keys("nothing=0.9")
    person.find("#spin button").click()
    person.wait_for("has no parameter 'nothing'")
    assert person.driver.current_url == address
    assert person.find("#spin textarea").get_attribute("value") == "nothing=0.9"


def test_the_keyboard_alone_resumes_a_run(person: Browser, shop: FilledServer) -> None:
    before = shop.outcomes()[shop.failed]
    person.open(f"{shop.url}/runs/{shop.failed}", "row 3 is bad")
    press_until(person, partial(has_focus, person, f"form[action='/runs/{shop.failed}/resume'] button"))
    person.press(ENTER)
    wait_until(lambda: len(shop.outcomes()[shop.failed]) > len(before), "the run has been resumed and has ended")
    assert person.read_console() == []


def test_the_keyboard_alone_labels_ten_samples(person: Browser, shop: FilledServer) -> None:
    samples = [f"r/{number}" for number in range(10)]
    shop.request_labels(*samples, picture=encode_picture(), data={"shape": [28, 28]})
    person.open(f"{shop.url}/labels?app=shop&team=data&id=r/9", "0 of 10 labelled")
    for number in range(10):
        assert has_focus(person, "#label"), "the field has the focus"
        person.press(str(number), ENTER)
        person.wait_for(f"{number + 1} of 10 labelled" if number < 9 else "0 of 2 labelled")
    labels = shop.api.get("/labels", params={"app": "shop", "state": "given"}).json()
    labels_by_id = {label["id"]: (label["label"], label["by"][:4]) for label in labels if label["id"] in samples}
    assert sorted(labels_by_id.values()) == [(number, "ada-") for number in range(10)]
    assert person.read_console() == []


def test_what_is_typed_stays_while_the_page_changes(person: Browser, shop: FilledServer) -> None:
    shop.request_labels("typed", "other")
    person.open(f"{shop.url}/labels?app=shop&team=data&id=typed", "labelled in this detection")
    person.press("half a wo")
    shop.request_labels("third")
    person.wait_for("5 waiting in total")
    person.press("rd")
    assert person.driver.execute_script("return document.querySelector('#label').value") == "half a word"
    assert has_focus(person, "#label")
    for id in ("typed", "other", "third"):
        shop.api.post(f"/labels/{id}", json={"app": "shop", "team": "data", "label": 1}).raise_for_status()


def test_a_form_shows_the_current_values_until_something_is_typed(person: Browser, shop: FilledServer) -> None:
    def read(name: str) -> str:
        return str(person.driver.execute_script(f"return document.querySelector('#resize [name={name}]').value"))

    def scale(instances: int) -> None:
        shop.operation(shop.api.patch(f"/services/{SERVICE}", json={"instances": instances}))

    person.open(f"{shop.url}/services/{SERVICE}", "Resize")
    assert read("instances") == "1"
    scale(2)
    wait_until(lambda: read("instances") == "2", "the form follows")
    person.find("#resize [name=cores]").send_keys("5")
    scale(1)
    person.wait_for("1 of 1 instance")
    assert (read("instances"), read("cores")[-1]) == ("2", "5"), "what is typed into stays as it was"


def test_a_change_is_on_the_page_within_a_second(
    person: Browser, shop: FilledServer, capsys: pytest.CaptureFixture[str]
) -> None:
    person.open(shop.url, "Waiting for you")
    waits_s = []
    for number in range(10):
        began = time.perf_counter()
        shop.request_labels(f"change-{number}")
        person.wait_for(f"{number + 3} samples to label")
        waits_s.append(time.perf_counter() - began)
    for number in range(10):
        body = {"app": "shop", "team": "data", "label": 1}
        shop.api.post(f"/labels/change-{number}", json=body).raise_for_status()
    with capsys.disabled():
        print(f"\na change is seen after {statistics.median(waits_s):.2f} s, at most {max(waits_s):.2f} s")


def test_the_page_says_that_the_server_is_gone_and_goes_on_when_it_is_back(person: Browser, shop: FilledServer) -> None:
    person.open(f"{shop.url}/runs", shop.running)
    shop.kill()
    person.wait_for("The server does not answer")
    assert shop.running in person.find("main").text, "what it showed last stays"
    person.measure("gone")
    person.find(f"a[href='/runs/{shop.running}']").click()
    person.wait_for("the link was not followed")
    assert shop.running in person.find("main").text, "it leads away once something answers"
    shop.start()
    read = "return document.querySelector('#connection').hidden"
    wait_until(lambda: person.driver.execute_script(read), "the page has reconnected")
    begun = shop.begin_run("training")
    person.wait_for(begun)
    person.find(f"a[href='/runs/{begun}']").click()
    person.wait_for(f"Run {begun}")
    gone = ("net::ERR_", "Failed to fetch", "network error")
    assert not [message for message in person.read_console() if not any(words in message for words in gone)]


def test_a_page_says_that_its_session_has_ended_and_no_key_is_left_after_a_logout(
    person: Browser, shop: FilledServer
) -> None:
    person.open(f"{shop.url}/runs", shop.running)
    read_key = "return localStorage.getItem('scanflow_key')"
    assert person.driver.execute_script(read_key)
    first = person.driver.current_window_handle
    person.driver.switch_to.new_window("window")
    person.open(f"{shop.url}/settings", "Log out")
    person.find("header form button").click()
    person.wait_for("Log in")
    assert person.driver.execute_script(read_key) is None
    person.driver.switch_to.window(first)
    person.wait_for("You are no longer logged in.")


def test_times_are_in_the_readers_zone(browser: Browser, shop: FilledServer) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
    browser.resize(1280)
    browser.open(f"{shop.url}/login", "Log in")
    browser.press(shop.make_token("kolkata"), ENTER)
    browser.wait_for("Log out")
    browser.open(f"{shop.url}/runs", shop.running)
    script = """
    const time = document.querySelector('main time'), zone = {timeZone: 'Asia/Kolkata', hourCycle: 'h23'};
    const parts = new Intl.DateTimeFormat('sv-SE', {...zone, dateStyle: 'short', timeStyle: 'medium'});
    return [time.textContent, parts.format(new Date(time.dateTime))];
    """
    shown, expected = browser.driver.execute_script(script)
    assert shown == expected
