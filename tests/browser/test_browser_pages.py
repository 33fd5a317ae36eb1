"""What people see: the pages on which they label samples, and the report, on a phone and on a desk."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scanflow.agent.agent_records import Event
from scanflow.drift.thumbnail import encode_thumbnail
from scanflow.reports.event_report import report_page
from tests.browser.chromium import Browser
from tests.server import ServerProcess

pytestmark = [
    pytest.mark.browser,
    pytest.mark.processes,
    pytest.mark.parametrize("width", [pytest.param(390, id="phone"), pytest.param(1200, id="desk")]),
]

ENTER, TAB = "\ue007", "\ue004"
ROW = {"y" * 100: "z" * 300, "latitude": 1.5, "city": "<b>Vic</b>"}
PNG = encode_thumbnail(np.arange(784).reshape(28, 28) % 97)
assert PNG is not None
PICTURE = base64.b64encode(PNG).decode()

_LIST_LEFT_EDGES = """
const cell = [...document.querySelectorAll('td:has(time)')].find(cell => cell.innerText.includes('many words'));
return [...cell.childNodes].filter(node => node.data?.includes('many words')).map(node => {
  const range = document.createRange();
  range.selectNodeContents(node);
  return Math.min(...[...range.getClientRects()].map(box => box.left));
});
"""


def queue(server: ServerProcess, *samples: dict[str, Any]) -> None:
    server.api.post("/labels", json={"app": "mnist", "items": samples}).raise_for_status()


def log_in(browser: Browser, server: ServerProcess) -> None:
    """Go where ``scanflow labels`` says, and log in with a token of one's own."""
    browser.open(f"{server.url}/labels", "Log in")
    browser.press(server.api.post("/tokens", json={"name": "ada"}).json()["token"], ENTER)
    browser.wait_for("Log out")


def test_the_address_of_the_server_leads_to_what_runs_and_what_waits(
    browser: Browser, server: ServerProcess, width: int
) -> None:
    queue(server, {"id": "r/0", "row": ROW})
    event = report(1, "predictions.counted", predictions=3, new=3).model_dump(mode="json")
    server.api.post("/events", json=[event]).raise_for_status()
    browser.resize(width)
    browser.open(server.url, "Log in")
    browser.press(server.api.post("/tokens", json={"name": "ada"}).json()["token"], ENTER)
    browser.wait_for("1 sample to label")
    assert browser.measure("first") == (width, [])
    browser.find("a[href='/reports/shop']").click()
    browser.wait_for("The loop of shop")
    browser.open(server.url, "1 sample to label")
    browser.find("a[href='/labels']").click()
    browser.wait_for("0 of 1 labelled")
    assert browser.list_hosts() == {server.url}
    assert browser.read_console() == []


def test_a_text_with_a_time_in_it_is_one_text(browser: Browser, server: ServerProcess, width: int) -> None:
    words = "many words " * 12
    event = report(1, "sample", value=f"{words} at 2026-11-28T10:00:00Z {words}").model_dump(mode="json")
    server.api.post("/events", json=[event]).raise_for_status()
    browser.resize(width)
    log_in(browser, server)
    browser.open(f"{server.url}/events", "many words")
    assert browser.measure("events") == (width, [])
    edges = browser.driver.execute_script(_LIST_LEFT_EDGES)
    assert len(edges) == 2, "before and after the time"
    assert edges[0] == pytest.approx(edges[1], abs=1)


def test_a_person_labels_by_keyboard_and_by_mouse_and_the_server_has_the_labels(
    browser: Browser, server: ServerProcess, width: int
) -> None:
    queue(server, *({"id": f"r/{n}", "run": "fox", "score": n / 4, "guess": "cat", "row": ROW} for n in range(4)))
    browser.resize(width)
    log_in(browser, server)
    browser.wait_for("0 of 4 labelled")
    browser.press("dog", ENTER)  # the field has the focus
    browser.wait_for("1 of 4 labelled")
    browser.find("button[value='\"dog\"']").click()
    browser.wait_for("2 of 4 labelled")
    browser.press("7", TAB)
    browser.press(ENTER)  # on the button
    browser.wait_for("3 of 4 labelled")
    browser.find(".samples a").click()
    browser.wait_for("You labelled it 7")
    browser.find("header button").click()
    browser.wait_for("Log in")

    samples = server.api.get("/labels", params={"details": "true"}).json()
    labels = {sample["id"]: (sample["label"], sample["by"]) for sample in samples}
    assert labels == {"r/3": ("dog", "ada"), "r/2": ("dog", "ada"), "r/1": (7, "ada"), "r/0": (None, None)}
    assert browser.list_hosts() == {server.url}
    assert browser.read_console() == []


def test_no_page_on_which_people_label_scrolls_sideways(browser: Browser, server: ServerProcess, width: int) -> None:
    browser.resize(width)
    browser.open(f"{server.url}/labels", "Log in")
    assert browser.measure("login") == (width, [])
    browser.press("wrong", ENTER)
    browser.wait_for("not valid")
    assert browser.measure("refused") == (width, [])
    assert ["401" in message for message in browser.read_console()] == [True]
    log_in(browser, server)
    browser.wait_for("No sample is waiting")
    assert browser.measure("nothing") == (width, [])
    samples: dict[str, dict[str, Any]] = {
        "x" * 250: {"guess": "w" * 300, "row": ROW},
        "picture": {"guess": 3, "picture": PICTURE, "data": {"shape": [28, 28]}},
        "data": {"data": {"values": "v" * 400}},
    }
    for id, sample in samples.items():
        queue(server, {"id": id, "run": "fox", **sample})
        for label, seen, name in (("u" * 300, "labelled in", "asked"), ("3", "You labelled it", "labelled")):
            browser.open(f"{server.url}/labels?app=mnist&team=&id={id}", seen)
            measured, drawings = browser.measure(f"{id:.9}-{name}")
            assert measured == width
            assert [drawing.loaded and drawing.width > 0 < drawing.height for drawing in drawings] == [True] * (
                id == "picture"
            )
            browser.press(label, ENTER)
            browser.wait_for("No sample is waiting")
    assert browser.list_hosts() == {server.url}
    assert browser.read_console() == []


def report(id: int, type: str, subject: str = "", **data: Any) -> Event:
    at = 1_760_000_000.0 + 60 * id
    return Event(id=id, at=at, type=type, app="shop", subject=subject, data={"agent": "planner", **data})


def report_loop(number: int) -> list[Event]:
    """Predictions, drift, labels, and a version that is better and is promoted."""
    at, champion, run = 20 * number, number + 1, f"a-b-{number}"
    shares = {"bins": ["30", "35", "40"], "reference": [0.2, 0.6, 0.2], "current": [0.0, 0.3, 0.7]}
    sides = {"reference": {"mean": 35.0, "sd": 2.0}, "current": {"mean": 37.0, "sd": 2.0}}
    column = {
        "name": "a column of a long name " * 4,
        "test": "ks",
        "effect": 0.4,
        "p": 0.001,
        "shares": shares,
        **sides,
    }
    city = {"name": "city", "test": "chi2", "p": 0.002, "reference": {"Vic": 1.0}, "current": {"Vic": 0.4, "Olot": 0.6}}
    judged: dict[str, Any] = {
        "version": champion + 1,
        "champion": champion,
        "metric": "accuracy",
        "better": True,
        "run": run,
    }
    accuracy = {"champion_metric": 0.8 + number / 40, "challenger_metric": 0.82 + number / 40}
    asked: dict[str, Any] = {
        "version": f"V{champion}",
        "since": 1_760_000_000.0 + 60 * (at - 1),
        "requests": 500,
        "p95_s": 0.004,
    }
    return [
        *(report(at + minute, "service.measured", errors=minute, **asked) for minute in range(5)),
        report(at + 5, "predictions.counted", predictions=1200, new=1000),
        report(at + 6, "drift.found", anomalies=300, picked=2, predictions=1000, run=run, columns=[column, city]),
        report(at + 7, "labels.given", count=90, by="ada"),
        report(at + 8, "model.judged", "model/m", **judged, **accuracy),
        report(at + 9, "model.promoted", "model/m", version=champion + 1, before=champion),
    ]


@pytest.mark.parametrize(
    ("shown", "pictures"), [({"picture": PICTURE}, 12), ({"row": ROW}, 0)], ids=["pictures", "rows"]
)
def test_the_report_opens_from_a_file_and_its_charts_are_seen(
    browser: Browser, tmp_path: Path, width: int, shown: dict[str, Any], pictures: int
) -> None:
    about = {"purpose": "evaluate", "guess": 1, "state": "given", "given": 103.0, "by": "ada", "score": 0.5, **shown}
    labels = [{"id": f"s/{n}", "run": f"a-b-{n % 3}", "label": 1 + (n % 5 == 0), **about} for n in range(90)]
    file = tmp_path / "report.html"
    file.write_text(report_page("shop", [*report_loop(0), *report_loop(1), *report_loop(2)], labels), encoding="utf-8")
    browser.resize(width)
    browser.open(file.as_uri(), "Outcome of each drift")

    measured, drawings = browser.measure("report")
    assert measured == width
    assert all(
        drawing.loaded and drawing.height > 0 and 0 <= drawing.left < drawing.right <= width for drawing in drawings
    )
    figures = [
        drawing for drawing in drawings if drawing.width >= 200
    ]  # the others are the dots of legends, and pictures
    assert len(figures) == 8, "accuracy, two columns, three of the service, versions, agents"
    assert min(figure.height for figure in figures) >= 50
    assert sum(drawing.width == 84 for drawing in drawings) == pictures
    assert browser.list_hosts() == {"file://"}
    assert browser.read_console() == []
