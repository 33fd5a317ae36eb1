"""Drawings of workflows as they are declared, and of runs: what depends on what, and how far it is."""

from __future__ import annotations

from typing import Any

import scanflow as sf
from scanflow.app.workflow_drawing import draw_workflow
from scanflow.backends.run_drawing import draw_run
from scanflow.backends.run_records import RunRecord, TaskRecord, TaskState
from scanflow.names import RunName, StepName
from scanflow.text.failures import Failure
from tests.drawn_graphs import SVG, read_graph


def make_step(name: str, **fields: Any) -> sf.Executor:
    return sf.Executor(name=name, mainfile=f"{name}.py", **fields)


def make_task(task: str, state: TaskState, **fields: Any) -> TaskRecord:
    return TaskRecord(task=StepName(task), step=task.partition(".")[0], state=state, **fields)


def make_run(*tasks: TaskRecord, **parents: tuple[str, ...]) -> RunRecord:
    name = RunName("brave-otter")
    return RunRecord(
        name=name, app="a", team="t", workflow="w", state="running", created=0.0, tasks=tasks, parents=parents
    )


def test_a_batch_workflow_is_drawn_with_what_its_steps_run_for() -> None:
    load = make_step("load")
    train = make_step("train", for_each=load["files"])
    fixed = make_step("fixed", for_each=[1, 2, 3])
    choose = make_step("choose", parameters={"models": train.output}, when=load["count"] > 1)
    drawn = read_graph(draw_workflow(sf.Workflow(name="w", nodes=[load, train, fixed, choose])))
    assert {box.lines[0]: box.lines[1:] for box in drawn.boxes} == {
        "load": [],
        "train": ["for each of load.files"],
        "fixed": ["3 tasks"],
        "choose": ["on a condition"],
    }
    assert drawn.edges.keys() == {"load → train", "train → choose", "load → choose"}
    [title] = [box.title for box in drawn.boxes if box.lines[0] == "choose"]
    assert title == "choose\non a condition\nchoose.py\nwhen load.count > 1"


def test_the_graph_of_a_service_says_what_each_node_is() -> None:
    scale = sf.Service(name="scale", role="TRANSFORMER", implementation="scale.py:Scale")
    cnn = sf.Service(name="cnn", model="models:/cnn/3")
    drawn = read_graph(draw_workflow(sf.Workflow(name="w", type="online", nodes=[scale, cnn], edges=scale >> cnn)))
    assert [box.lines for box in drawn.boxes] == [["scale", "transformer"], ["cnn", "cnn/3"]]
    assert drawn.edges.keys() == {"scale → cnn"}


def test_an_mpi_job_says_how_many_ranks_it_has() -> None:
    job = sf.MPIWorkload(name="solver", mainfile="solve.py", n_tasks=8, n_nodes=2)
    [box] = read_graph(draw_workflow(sf.Workflow(name="w", type="mpi", nodes=[job]))).boxes
    assert box.lines == ["solver", "8 ranks on 2 nodes"]


def test_a_run_is_drawn_with_its_states_and_a_fan_out_as_one_box() -> None:
    failure = Failure(summary="exit 1", cause="ValueError: no such column")
    run = make_run(
        make_task("load", "succeeded", seconds=61.0, attempts=2),
        make_task("cached", "succeeded", origin="old-otter"),
        *(make_task(f"train.{item}", "succeeded" if item else "failed") for item in range(100)),
        make_task("report", "failed", failure=failure),
        make_task("publish", "skipped"),
        load=(),
        cached=("load",),
        train=("load",),
        report=("cached", "train"),
        publish=("report",),
    )
    drawn = read_graph(draw_run(run, address=lambda step: f"/runs/brave-otter/{step}"))
    words = {box.lines[0]: box.lines[1:] for box in drawn.boxes}
    assert words == {
        "load": ["✓", "1m 01s, attempt 2"],
        "cached": ["≡"],
        "train ×100": ["✗", "1 ✗99 ✓"],
        "report": ["✗"],
        "publish": ["–"],
    }
    titles = {box.lines[0]: box.title for box in drawn.boxes}
    assert titles["report"] == "report: failed\nexit 1: ValueError: no such column"
    assert titles["cached"] == "cached: reused\noutputs of the run old-otter"
    assert titles["train ×100"] == "train: 1 failed, 99 succeeded"
    assert drawn.edges.keys() == {
        "load → cached", "load → train", "cached → report", "train → report", "report → publish"
    }  # fmt: skip
    links = [link.attrib["href"] for link in drawn.root.findall(f"{SVG}a")]
    assert sorted(links) == [f"/runs/brave-otter/{step}" for step in ("cached", "load", "publish", "report", "train")]


def test_the_ranks_of_an_mpi_job_are_below_it() -> None:
    ranks = [TaskRecord(task=StepName(f"solver.{rank}"), step="ranks", state="running") for rank in range(8)]
    drawn = read_graph(draw_run(make_run(*ranks, make_task("solver", "running"), solver=())))
    assert sorted(box.lines[0] for box in drawn.boxes) == ["ranks ×8", "solver"]
    assert drawn.edges.keys() == {"solver → ranks"}


def test_a_run_of_an_older_server_has_no_edges() -> None:
    drawn = read_graph(draw_run(make_run(make_task("load", "succeeded"), make_task("train.0", "running"))))
    assert (len(drawn.boxes), drawn.edges) == (2, {})
