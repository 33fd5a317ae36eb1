"""A run over time: what is drawn of each task, what is folded, and what decided how long it took."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from datetime import UTC, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from scanflow.backends.run_records import RunRecord, TaskRecord
from scanflow.drawing.svg import COLOURS, NARROW
from scanflow.names import RunName, StepName
from scanflow.reports.run_timeline import draw_run_timeline, list_critical_tasks
from scanflow.text.failures import Failure

SVG = "{http://www.w3.org/2000/svg}"
BEGIN = 1_760_000_000.0


def task(name: str, state: Any, began: float | None = None, seconds: float | None = None, **more: Any) -> TaskRecord:
    at = None if began is None else BEGIN + began
    return TaskRecord(task=StepName(name), step=name.partition(".")[0], state=state, began=at, seconds=seconds, **more)


def run(*tasks: TaskRecord, state: Any = "succeeded", seconds: float | None = None) -> RunRecord:
    return RunRecord(
        name=RunName("w-1"), app="a", team="t", workflow="w", state=state, created=BEGIN, seconds=seconds, tasks=tasks
    )


def list_rows(drawn: str) -> list[ET.Element]:
    groups = [row for row in ET.fromstring(drawn) if row.tag in (f"{SVG}g", f"{SVG}a")]
    return [row for row in groups if row.findtext(f"{SVG}title") != "now"]


def list_names(drawn: str) -> list[str]:
    names = []
    for row in list_rows(drawn):
        mark, name, *_ = (text.text or "" for text in row.iter(f"{SVG}text"))
        names.append(f"{mark} {name}")
    return names


def list_bars(row: ET.Element) -> list[ET.Element]:
    return [bar for bar in row.iter(f"{SVG}rect") if bar.get("rx")]


def test_tasks_are_sorted_by_start_and_differ_by_symbol_and_colour() -> None:
    drawn = draw_run_timeline(
        run(
            task("report", "pending"),
            task("train", "failed", 5, 10),
            task("load", "succeeded", 1, 4),
            task("check", "running", 16),
            task("notify", "skipped"),
            state="running",
        ),
        now=BEGIN + 20,
    )
    assert list_names(drawn) == ["✓ load", "✗ train", "● check", "· report", "– notify"]
    bars = [list_bars(row) for row in list_rows(drawn)]
    colours = [own[0].get("fill") if own else None for own in bars]
    assert colours == [COLOURS["green"][0], COLOURS["red"][0], COLOURS["blue"][0], None, None]
    widths = [float(own[0].get("width") or 0) for own in bars if own]
    assert widths[2] / widths[0] == pytest.approx(1, abs=0.01), "a running task is drawn until now"
    assert "<title>now</title>" in drawn


def test_retries_reuse_and_failures_are_named() -> None:
    drawn = draw_run_timeline(
        run(
            task("load", "succeeded", 0, 1, origin="w-0"),
            task("train", "failed", 1, 10, attempts=3, failure=Failure(summary="exit 1", cause="ValueError: no")),
            seconds=12.0,
        )
    )
    reused, train = list_rows(drawn)
    assert reused.findtext(f"{SVG}title") == "load: reused from w-0"
    assert list_bars(reused)[0].get("fill") == "none"
    assert list_bars(train)[0].get("fill") != "none"
    assert "10.0 s, attempt 3" in [text.text for text in train.iter(f"{SVG}text")]
    assert (train.findtext(f"{SVG}title") or "").endswith("ValueError: no")
    assert "12.0 s, 2 tasks, 1 reused, 1 retried." in drawn


def test_a_task_links_to_its_page() -> None:
    drawn = draw_run_timeline(run(task("load", "succeeded", 0, 1)), address="/runs/w-1/{}".format)
    assert [row.get("href") for row in list_rows(drawn)] == ["/runs/w-1/load"]


def test_items_stand_under_their_step_and_many_are_one_row_that_shows_which_failed() -> None:
    items = [task(f"score.{at}", "failed" if at == 7 else "succeeded", at, 5) for at in range(12)]
    record = run(task("load", "succeeded", 0, 1), *items, task("join", "succeeded", 20, 1), state="failed", seconds=21)
    names = list_names(draw_run_timeline(record, most=15))
    assert names[:4] == ["✓ load", "✗ score", "✓ score.0", "✓ score.1"]
    assert len(names) == 15
    folded = draw_run_timeline(record, most=14)
    assert list_names(folded) == ["✓ load", "✗ score", "✓ join"]
    row = list_rows(folded)[1]
    assert row.findtext(f"{SVG}title") == "score: 12 tasks, 11 succeeded, 1 failed in 16.0 s"
    assert [bar.findtext(f"{SVG}title") for bar in row.findall(f"{SVG}g")] == ["score.7: failed, 5.00 s"]
    assert len(list(row.iter(f"{SVG}path"))) == 1


def test_of_very_many_steps_the_shortest_are_one_row_and_a_failure_stays() -> None:
    steps = [task(f"s{at:03}", "failed" if at == 50 else "succeeded", at, 0.1 if at == 50 else at) for at in range(200)]
    drawn = draw_run_timeline(run(*steps, state="failed"), width=NARROW)
    names = list_names(drawn)
    assert len(names) == 40
    assert names[0] == "✗ s050"
    assert names[-2:] == ["✓ s199", "✓ 161 other steps"]
    assert len(drawn) < 60_000


def test_the_critical_path_goes_back_from_the_end_by_what_a_step_waited_for() -> None:
    tasks = (
        task("load", "succeeded", 0, 2),
        task("fast", "succeeded", 2, 1),
        task("train.0", "succeeded", 2, 9),
        task("train.1", "succeeded", 2, 5),
        task("skip", "skipped"),
        task("join", "succeeded", 11, 1),
        task("aside", "succeeded", 2, 4),
    )
    parents = {
        "load": (),
        "fast": ("load",),
        "train": ("load",),
        "skip": ("fast", "train"),
        "join": ("skip",),
        "aside": ("load",),
    }
    assert list_critical_tasks(tasks, parents, BEGIN + 12) == {"load", "train.0", "join"}
    drawn = draw_run_timeline(run(*tasks, seconds=12), parents=parents)
    strong = [row for row in list_rows(drawn) if any(text.get("font-weight") for text in row.iter(f"{SVG}text"))]
    assert [list(row.iter(f"{SVG}text"))[1].text for row in strong] == ["load", "train.0", "join"]
    assert "critical path" not in draw_run_timeline(run(*tasks, seconds=12)), "times alone do not say it"


def test_a_run_that_has_not_begun_anything_can_be_drawn() -> None:
    assert list_names(draw_run_timeline(run(task("load", "pending"), state="running"))) == ["· load"]
    assert list_names(draw_run_timeline(run(state="running"))) == []


def test_what_passed_before_the_first_task_is_drawn_if_it_can_be_seen() -> None:
    late = draw_run_timeline(run(task("load", "succeeded", 11, 1), seconds=1.0))
    [wait, load] = list_rows(late)
    assert wait.findtext(f"{SVG}title") == "before the first task: 11.0 s"
    [(bar, first)] = zip(list_bars(wait), list_bars(load), strict=True)
    assert bar.get("fill") == "none", "it is hollow"
    assert float(bar.get("width") or 0) == pytest.approx(11 * float(first.get("width") or 0), rel=0.01)
    assert len(list_rows(draw_run_timeline(run(task("load", "succeeded", 0.1, 10), seconds=10.1)))) == 1
    [waiting, _] = list_rows(draw_run_timeline(run(task("load", "pending"), state="running"), now=BEGIN + 60))
    assert waiting.findtext(f"{SVG}title") == "before the first task: 1m 00s"


@pytest.mark.parametrize("zone", [UTC, ZoneInfo("Asia/Kolkata")])
def test_a_run_of_less_than_a_second_fills_its_axis_in_parts_of_a_second(zone: tzinfo) -> None:
    drawn = draw_run_timeline(run(task("load", "succeeded", 0.0, 0.2), seconds=0.2), width=NARROW, zone=zone)
    [[bar]] = [list_bars(row) for row in list_rows(drawn)]
    assert float(bar.get("width", "")) > 0.9 * NARROW
    times = [text.text or "" for text in ET.fromstring(drawn).findall(f".//{SVG}text")]
    assert {"20.00", "20.10"} <= {text.rpartition(":")[2] for text in times}
