"""Graphs of runs and plans as a terminal shows them: marks, counts, colours, and what an encoding cannot print."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, get_args

import pytest

from scanflow.app.plan import Plan, PlannedStep
from scanflow.backends.run_drawing import list_step_parents
from scanflow.backends.run_records import RunRecord, TaskRecord, TaskState
from scanflow.drawing.svg import COLOURS
from scanflow.drawing.text_graph import TextGraph
from scanflow.errors import UnsupportedError
from scanflow.names import RunName, StepName
from scanflow.text.printable import can_print
from scanflow_client.formatting.graph_text import build_plan_graph, build_run_graph, choose_worst, format_counts


def make_run(
    *tasks: tuple[str, TaskState], parents: Mapping[str, tuple[str, ...]] | None = None, **fields: Any
) -> RunRecord:
    records = tuple(
        TaskRecord(task=StepName(task), step=task.partition(".")[0], state=state, **fields) for task, state in tasks
    )
    return RunRecord(
        name=RunName("calm-otter-417"),
        app="shop",
        team="data",
        workflow="w",
        state="running",
        created=0.0,
        tasks=records,
        parents=PARENTS if parents is None else parents,
    )


def print_graph(graph: TextGraph, width: int | None = None, *, ascii_only: bool = False) -> str:
    return "\n".join("".join(text for text, _ in line) for line in graph.draw(width, ascii_only=ascii_only))


FAN_OUT: list[tuple[str, TaskState]] = [
    *((f"train.{number}", "succeeded") for number in range(97)),
    ("train.97", "failed"),
    ("train.98", "failed"),
    ("train.99", "running"),
]
PARENTS = {"load": (), "train": ("load",), "old": ("load",), "report": ("train", "old")}


def test_a_run_is_drawn_with_the_states_of_its_steps_and_a_fan_out_as_one() -> None:
    run = make_run(("load", "succeeded"), *FAN_OUT, ("old", "skipped"), ("report", "pending"))
    assert print_graph(build_run_graph(run)) == (
        """\
                   ✓ load
                      ├────────┐
✗ train ×100: 97 ✓ 2 ✗ 1 ●   – old
             └────────┬────────┘
                  · report

✗ failed  ● running  · pending  ✓ succeeded  – skipped"""
    )


def test_in_ascii_all_of_it_can_be_printed() -> None:
    run = make_run(("load", "succeeded"), *FAN_OUT, ("old", "skipped"), ("report", "pending"))
    drawing = print_graph(build_run_graph(run), ascii_only=True)
    assert drawing.isascii()
    assert "x train x100: 97 + 2 x 1 *" in drawing
    assert "+ succeeded" in drawing


def test_steps_of_one_state_are_folded_where_the_terminal_is_narrow_and_failed_ones_are_not_among_them() -> None:
    names = [f"model-{number}" for number in range(12)]
    parents = {"load": (), **dict.fromkeys(names, ("load",)), "best": tuple(names)}
    states: dict[str, TaskState] = {
        name: "failed" if name == "model-7" else "succeeded" for name in ["load", *names, "best"]
    }
    run = make_run(*states.items(), parents=parents)
    drawing = print_graph(build_run_graph(run), 60)
    assert "✓ model-0 +10" in drawing
    assert "✗ model-7" in drawing
    assert max(map(len, drawing.splitlines())) <= 60


def test_what_was_skipped_is_soft_and_what_failed_is_red() -> None:
    run = make_run(("load", "failed"), ("train", "skipped"), ("old", "skipped"), ("report", "pending"))
    lines = build_run_graph(run).draw(None, ascii_only=False)
    colours = {text.strip(): colour for line in lines for text, colour in line}
    assert (colours["✗ load"], colours["– train"], colours["· report"]) == ("red", "soft", "soft")


def test_a_task_with_outputs_of_another_run_is_reused() -> None:
    run = make_run(("load", "succeeded"), parents={"load": ()}, origin="calm-otter-416")
    assert print_graph(build_run_graph(run)) == "≡ load\n\n≡ reused"


def test_the_ranks_of_a_job_are_below_it() -> None:
    run = make_run(("job", "running"), ("job.0", "running"), ("job.1", "succeeded"), parents={"job": ()})
    job, *ranks = run.tasks
    run = run.model_copy(update={"tasks": (*(rank.model_copy(update={"step": "ranks"}) for rank in ranks), job)})
    lines = print_graph(build_run_graph(run)).splitlines()
    assert [line.strip() for line in lines[:3]] == ["● job", "│", "● ranks ×2: 1 ● 1 ✓"]


def test_a_run_of_an_older_server_is_not_drawn_without_its_edges() -> None:
    with pytest.raises(UnsupportedError, match="calm-otter-417"):
        build_run_graph(make_run(("load", "running"), parents={}))
    assert list_step_parents(make_run(("load", "running"), parents={})) == {"load": ()}


@pytest.mark.parametrize("state", get_args(TaskState))
def test_each_state_of_a_task_has_its_place(state: TaskState) -> None:
    assert choose_worst([state, "failed"]) == "failed"
    assert format_counts({state: 3}).startswith("3 ")
    graph = build_run_graph(make_run(("load", state), parents={"load": ()}))
    assert all(colour in COLOURS for line in graph.draw(None, ascii_only=False) for _, colour in line)


def make_step(name: str, *after: str, width: int | None = 1) -> PlannedStep:
    return PlannedStep(name=name, wave=0, runs="steps.py", after=after, cores=1, memory_bytes=None, width=width)


def test_a_plan_is_drawn_with_the_widths_of_its_steps() -> None:
    steps = (make_step("load"), make_step("train", "load", width=8), make_step("test", "train", width=None))
    plan = Plan(
        workflow="w",
        steps=steps,
        waves=3,
        machine_cores=2,
        machine_memory_bytes=0,
        peak_cores=2,
        peak_memory_bytes=0,
        unsized=3,
    )
    drawing = print_graph(build_plan_graph(plan))
    assert [line.strip() for line in drawing.splitlines()[::2]] == ["· load", "· train ×8", "· test ×?"]


@pytest.mark.parametrize(("encoding", "expected"), [("ascii", False), ("latin-1", False), ("utf-8", True)])
def test_an_encoding_says_whether_lines_can_be_printed(encoding: str, expected: bool) -> None:
    assert can_print("┼✓", io.TextIOWrapper(io.BytesIO(), encoding=encoding)) == expected
