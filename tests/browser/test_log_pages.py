"""The page of a run in a real browser while its task writes its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.chromium import Browser
from tests.server import ServerProcess, load_body
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.processes]

ENTER, END = "\ue007", "\ue010"
SOURCE = """
import time

import scanflow as sf

@sf.step
def count() -> None:
    for number in range(100_000):
        line = f"number {number}." + " word" * (number * 37 % 100)
        print(line, f"bar {number}", sep="\\n", end="\\r", flush=True)  # a bar
        time.sleep(0.1 if number >= 1000 else 0.0)

app = sf.Application(name="shop", workflows=[sf.Workflow(name="counting", nodes=[count.bind()])])
"""
SELECT = """
const text = document.querySelector('#log-stdout').firstChild;
const from = text.data.lastIndexOf('number');
getSelection().setBaseAndExtent(text, from, text, text.data.indexOf('.', from));
return [String(getSelection()), text.data.split('\\n')[0], getSelection().getRangeAt(0).getBoundingClientRect().top];
"""
NOTE_MOVES = """
document.styleSheets[0].insertRule('svg { display: none }');  // the timeline is above the log, and loses a row
const log = document.querySelector('#log-stdout');
scrollTo(0, scrollY + log.getBoundingClientRect().top + 40);
const top = scrollY;
window.moves = [];
addEventListener('scroll', () => { if (scrollY != top) moves.push(scrollY - top); });
return log.getBoundingClientRect().top;
"""
LOG = "const log = document.querySelector('#log-stdout'); return"
IS_AT_END = f"{LOG} log.scrollTop + log.clientHeight >= log.scrollHeight - 4"


def test_what_is_selected_in_a_log_stays_selected_while_lines_come_and_go(
    browser: Browser, server: ServerProcess, tmp_path: Path
) -> None:
    source = tmp_path / "app.py"
    source.write_text(SOURCE)
    run = server.api.post("/runs", json=load_body(source, workflow="counting")).json()["name"]
    browser.open(f"{server.url}/login", "Log in")
    browser.press(server.api.post("/tokens", json={"name": "ada"}).json()["token"], ENTER)
    browser.wait_for("Log out")
    browser.open(f"{server.url}/runs/{run}", "number 1005.")
    wait_until(lambda: browser.driver.execute_script(IS_AT_END), "it is shown at its end")
    assert browser.driver.execute_script(NOTE_MOVES) == pytest.approx(-40, abs=1)
    browser.wait_for("number 1030.")
    selected, first, top = browser.driver.execute_script(SELECT)
    number = int(selected.removeprefix("number "))
    browser.wait_for(f"number {number + 20}.")
    assert browser.driver.execute_script("return String(getSelection())") == selected
    lines = browser.driver.execute_script(f"{LOG} log.textContent").split("\n")
    newest = int(lines[-2].removeprefix("number ").partition(".")[0])
    assert lines[0] != first, "the first lines go"
    shown = range(newest - len(lines) + 2, newest + 1)
    assert lines[:-1] == [f"number {number}." + " word" * (number * 37 % 100) for number in shown]
    assert lines[-1] == f"bar {newest}"
    assert not browser.driver.execute_script(IS_AT_END), "it does not move away from what is selected"
    read_top = "return getSelection().getRangeAt(0).getBoundingClientRect().top"
    assert browser.driver.execute_script(read_top) == pytest.approx(top, abs=2), "which stays where it is"
    assert browser.driver.execute_script("return moves") == [], "as the page does"
    browser.driver.execute_script(
        f"getSelection().empty(); {LOG} [log.focus({{preventScroll: true}}), log.scrollTo(0, 0)]"
    )
    browser.press(END)
    gap = browser.driver.execute_script(f"{LOG} log.scrollHeight - log.clientHeight - log.scrollTop")
    assert gap < 300, "it goes there at once"
    browser.wait_for(f"number {newest + 10}.")
    wait_until(lambda: browser.driver.execute_script(IS_AT_END), "it goes on at its end")
    assert browser.read_console() == []
    server.api.post(f"/runs/{run}/stop").raise_for_status()
    wait_until(lambda: server.api.get(f"/runs/{run}").json()["state"] == "stopped", "the run is stopped")
