"""What notebooks show of applications, runs, services and reports: small, escaped, and of the page's own colours."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.run_records import RunRecord, TaskRecord
from scanflow.backends.service_records import InstanceRecord, RevisionRecord, ServiceRecord, Shape
from scanflow.names import RunName, StepName
from scanflow.text.failures import Failure
from scanflow.text.html_table import MAX_ROWS, render_html_table
from scanflow_client.report import Report

EVIL = "<script>alert('&')</script>\x1b]0;title\x07"
ALLOWED = {"div", "strong", "table", "thead", "tbody", "tr", "th", "td", "iframe"}


class Read(HTMLParser):
    """A page as a browser reads it: every element closed, none that does anything, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED
        assert {name for name, _ in attrs} <= {"style", "sandbox", "srcdoc", "title"}
        self.attributes |= dict(attrs)
        style = dict(attrs).get("style") or ""
        assert "color" not in style, "a notebook may be light or dark"
        assert "background" not in style
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def list_texts(thing: Any) -> list[str]:
    page = thing._repr_html_()
    assert len(page) < 20_000
    return Read(page).words


def run(state: Any, *tasks: TaskRecord, **more: Any) -> RunRecord:
    name = RunName("tall-fox-1")
    return RunRecord(name=name, app="shop", team="t", workflow="w", state=state, created=1.0, tasks=tasks, **more)


def task(name: str, state: Any, **more: Any) -> TaskRecord:
    return TaskRecord(task=StepName(name), step=name.partition(".")[0], state=state, **more)


def test_an_application_shows_what_it_is_made_of_and_no_values_of_parameters() -> None:
    step = sf.Executor(name="train", mainfile="train.py", parameters={"password": "secret"})
    served = sf.Service(name="cnn", implementation="cnn.py:CNN", parameters={"key": "secret"}, instances=3)
    agent = sf.Agent(name="watch", template="checker", modules=["watch.py"])
    flows = [sf.Workflow(name="w", nodes=[step]), sf.Workflow(name="serve", type="online", nodes=[served])]
    lines = list_texts(sf.Application(name="shop", team="data", workflows=flows, agents=[agent]))
    assert lines[0] == "Application shop of team data"
    assert lines[4:] == ["batch", "w", "train", "online", "serve", "cnn", "agent", "watch", "checker, watch.py"]
    assert list_texts(served) == ["Service cnn", "role", "runs", "instances", "MODEL", "cnn.py:CNN", "3"]


def test_a_run_shows_its_tasks_those_that_failed_first_and_other_peoples_text_escaped() -> None:
    failure = Failure(summary="exit 1", cause=f"ValueError: {EVIL}")
    done = task("load", "succeeded", attempts=1, seconds=1.25)
    lines = list_texts(
        run("failed", done, task("train", "failed", attempts=2, failure=failure), seconds=2.0, error=EVIL)
    )
    assert lines[0] == "Run tall-fox-1 of shop:w, failed in 2.00 s"
    assert lines[6:10] == ["train", "failed", "2", "ValueError: <script>alert('&')</script>"]
    assert lines[10:14] == ["load", "succeeded", "1", "1.25 s"]
    assert lines[14] == "<script>alert('&')</script>", "text, and no element"
    many = list_texts(run("running", *(task(f"train.{n}", "pending") for n in range(1000))))
    assert many[-1] == f"and {1000 - MAX_ROWS} more"


def test_a_service_shows_its_revisions_and_how_many_instances_are_ready() -> None:
    shape = Shape(instances=2)
    models = {"cnn": "models:/cnn/3"}
    canary = RevisionRecord(id="r2", role="canary", weight=0.1, requests=5, errors=1)
    record = ServiceRecord(
        name="digits", app="shop", team="t", state="degraded", url="http://127.0.0.1:1", generation=1, shape=shape,
        ready=1, instances=(InstanceRecord(instance="1", state="ready"), InstanceRecord(instance="2", state="failed")),
        revisions=(RevisionRecord(id="r1", models=models, weight=0.9, requests=90, p95_s=0.0123), canary), error=EVIL,
    )  # fmt: skip
    lines = list_texts(record)
    assert lines[0] == "Service digits, degraded at http://127.0.0.1:1"
    assert lines[7:13] == ["current", "models:/cnn/3", "90%", "90", "0", "12.3 ms"]
    assert lines[13:18] == ["canary", "r2", "10%", "5", "1"]
    assert lines[18:] == ["1 of 2 instances ready", "<script>alert('&')</script>"]


def test_a_report_is_a_frame_that_runs_nothing_and_holds_the_page(tmp_path: Path) -> None:
    page = "<!doctype html><p title=\"a&b\">'it'</p><script>alert(1)</script>"
    (tmp_path / "shop.html").write_text(page)
    report = Report(tmp_path / "shop.html")
    frame = Read(report._repr_html_())
    assert frame.attributes["srcdoc"] == page
    assert (frame.attributes["sandbox"], frame.attributes["title"]) == (None, "shop"), "nothing is allowed in it"
    assert str(report) == str(tmp_path / "shop.html")


@pytest.mark.parametrize("text", ["<b>", '"', "'", "&lt;", "a\nb" * 500])
def test_a_cell_holds_any_text_on_one_short_line(text: str) -> None:
    (title, head, cell, note) = Read(render_html_table(text, (text,), [(text,)], text)).words
    assert title == head == cell == note
    assert "\n" not in cell
    assert len(cell) <= 200
