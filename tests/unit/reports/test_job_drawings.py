"""MPI jobs over time: waiting, running and response times, and charts of them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from scanflow.app.mpi import MPIWorkload
from scanflow.backends.job_times import JobTimes, compute_job_times, compute_job_totals, is_job
from scanflow.backends.run_records import RunRecord, TaskRecord
from scanflow.names import RunName, StepName
from scanflow.placement.mpi.groups import ClusterNode
from scanflow.placement.mpi.job_plan import plan_job
from scanflow.placement.topology import uniform
from scanflow.reports.job_drawings import draw_gantt, draw_node_lanes, draw_plan_ranks, draw_run_ranks
from scanflow_client.formatting.job_text import draw_jobs, format_jobs
from scanflow_client.formatting.text_table import Table


def record(name: str, state: Any, created: float, began: float | None, seconds: float | None) -> RunRecord:
    job_state: Any = "pending" if began is None else "running" if state == "running" else state
    job = TaskRecord(task=StepName("ring"), step="ring", state=job_state, began=began, seconds=seconds)
    ranks = [
        TaskRecord(task=StepName(f"ring.{rank}"), step="ranks", state="running", place=f"n{rank % 2}, CPUs {rank}")
        for rank in range(4)
    ]
    record = RunRecord(
        name=RunName(name), app="hpc", team="t", workflow="w", state=state, created=created, tasks=(*ranks, job)
    )
    return record.with_details(type="mpi")


def jobs() -> list[JobTimes]:
    """Three jobs, the newest first: one that waits, one that runs, one that ended."""
    records = [
        record("c", "running", 130.0, None, None),
        record("b", "running", 110.0, 120.0, None),
        record("a", "succeeded", 100.0, 104.0, 20.0),
    ]
    return [compute_job_times(entry, now=150.0) for entry in records]


def test_times_are_those_of_the_thesis() -> None:
    waits, runs, ended = jobs()
    assert (waits.waiting_s, waits.running_s, waits.response_s) == (20.0, None, None)
    assert (runs.waiting_s, runs.running_s, runs.response_s) == (10.0, 30.0, None)
    assert (ended.waiting_s, ended.running_s, ended.response_s) == (4.0, 20.0, 24.0)
    assert (ended.ranks, ended.nodes) == (4, ("n0", "n1"))
    second = compute_job_times(record("d", "failed", 108.0, 124.0, 6.0), now=150.0)
    totals = compute_job_totals([waits, runs, ended, second])
    assert totals is not None
    assert (totals.jobs, totals.makespan_s, totals.response_s, totals.waiting_s) == (2, 30.0, 46.0, 10.0)
    assert compute_job_totals([waits, runs]) is None


def test_no_time_is_negative_though_a_job_began_after_now() -> None:
    runs = compute_job_times(record("a", "running", 100.0, 104.0, None), now=100.0)
    assert (runs.waiting_s, runs.running_s) == (4.0, 0.0)
    early = compute_job_times(record("b", "running", 100.0, 99.0, None), now=110.0)
    assert (early.waiting_s, early.running_s) == (0.0, 11.0)


def test_the_makespan_is_said_to_be_that_of_the_jobs_that_ended() -> None:
    assert "3 jobs; 1 ended: makespan 24.0 s, mean wait 4.00 s" in draw_gantt(jobs())


def test_a_run_of_another_type_is_no_job() -> None:
    batch = RunRecord(name=RunName("x"), app="a", team="t", workflow="w", state="running", created=0.0)
    assert not is_job(batch)
    assert is_job(record("a", "running", 0.0, None, None))


def test_a_table_has_the_newest_first_and_the_totals() -> None:
    table, summary = format_jobs(jobs())
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == ["c", "b", "a"]
    assert list(table.rows[2][2:]) == ["✓ succeeded", "4", "n0, n1", "4.00 s", "20.0 s", "24.0 s"]
    assert summary == "1 ended: makespan 24.0 s, overall response 24.0 s, mean wait 4.00 s."


def test_a_chart_of_characters_is_to_scale() -> None:
    lines = draw_jobs(jobs(), width=66)
    bars = [str(line).split("  ", 1)[1] for line in lines[:3]]
    assert [bar.count("█") for bar in bars] == [20, 30, 0]  # 50 s in 50 characters
    assert [bar.count("·") for bar in bars] == [4, 10, 20]
    assert [len(bar) - len(bar.lstrip()) for bar in bars] == [0, 10, 30]


def test_the_svg_has_a_bar_for_waiting_and_one_for_running() -> None:
    drawn = ET.fromstring(draw_gantt(jobs()))
    rows = drawn.findall("{http://www.w3.org/2000/svg}g")
    bars = [
        [float(element.get("width") or 0) for element in row.findall("{http://www.w3.org/2000/svg}rect")]
        for row in rows
    ]
    assert [len(row) for row in bars] == [2, 2, 1]
    scale = bars[1][1] / 30  # it runs until now
    assert [round(row[0] / scale) for row in bars] == [4, 10, 20]
    assert round(bars[0][1] / scale) == 20
    titles = [row.findtext("{http://www.w3.org/2000/svg}title") for row in rows]
    assert titles[0] == "ring (a), 4 ranks on n0, n1: waited 4.00 s, ran 20.0 s, succeeded"


def list_titles(drawn: str) -> list[str]:
    return [title.text or "" for title in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}title")][1:]


def test_a_job_is_on_each_of_its_nodes_and_bars_of_one_row_do_not_overlap() -> None:
    drawn = ET.fromstring(draw_node_lanes(jobs(), address="/runs/{}".format))
    assert "makespan" not in ET.tostring(drawn, encoding="unicode"), "the chart of jobs says it"
    rows = drawn.findall("{http://www.w3.org/2000/svg}g")
    names = [row.findtext("{http://www.w3.org/2000/svg}title") for row in rows]
    assert [str(name).partition(":")[0] for name in names] == ["queue", "n0", "n0", "n1", "n1"]
    assert "1 job waiting now, longest wait 20.0 s" in str(names[0])
    links = [[link.get("href") for link in row.iter("{http://www.w3.org/2000/svg}a")] for row in rows]
    assert links == [[], ["/runs/a"], ["/runs/b"], ["/runs/a"], ["/runs/b"]]


def test_a_plans_ranks_are_on_their_cpus_and_the_free_ones_are_seen() -> None:
    job = MPIWorkload(name="ring", mainfile="ring", n_tasks=4, n_nodes=2, profile="memory", affinity="cpumempin")
    nodes = [ClusterNode(name=name, cores=4, sockets=2) for name in ("n0", "n1")]
    plan = plan_job(job, nodes, topologies={node.name: uniform(2, 2) for node in nodes})
    titles = list_titles(draw_plan_ranks(plan, {node.name: uniform(2, 2) for node in nodes}))
    assert titles.count("n0: 2 ranks") == titles.count("n1: 2 ranks") == 1
    bound = {f"CPU {rank.cpus[0]}: rank {rank.rank} of worker {rank.worker} on {rank.node}" for rank in plan.ranks}
    assert bound <= set(titles)
    assert sum(title.endswith(": free") for title in titles) == 4
    drawn = draw_plan_ranks(plan, {"n0": uniform(2, 2)})
    assert (drawn.count(">socket 0<"), drawn.count(">socket 1<")) == (1, 1), "of the node whose sockets are known"


def test_workers_differ_without_colours() -> None:
    job = MPIWorkload(name="ring", mainfile="ring", n_tasks=4, n_nodes=2, profile="memory")
    plan = plan_job(job, [ClusterNode(name=name, cores=4) for name in ("n0", "n1")])
    boxes = ET.fromstring(draw_plan_ranks(plan)).iter("{http://www.w3.org/2000/svg}rect")
    assert [box.get("stroke-width") for box in boxes if box.get("stroke-width")] == ["1", "1", "2", "2"]
    assert "on any CPU" in draw_plan_ranks(plan)


def test_a_runs_ranks_have_their_states() -> None:
    entry = record("a", "running", 100.0, 104.0, None)
    titles = list_titles(draw_run_ranks(entry))
    assert "CPU 3: ring.3 on n1, CPUs 3: running" in titles
    assert ">3●<" in draw_run_ranks(entry)


@pytest.mark.parametrize("width", [960.0, 350.0])
def test_a_map_of_many_nodes_is_small_and_stays_inside(width: float) -> None:
    ranks = [
        TaskRecord(task=StepName(f"r.{rank}"), step="ranks", state="running", place=f"n{rank // 100}, CPU {rank % 100}")
        for rank in range(3000)
    ]
    run = RunRecord(
        name=RunName("big"), app="a", team="t", workflow="w", state="running", created=0.0, tasks=tuple(ranks)
    )
    drawn = draw_run_ranks(run, {f"n{node}": uniform(2, 64) for node in range(30)}, width=width)
    assert len(drawn) < 40_000
    assert drawn.count("100 of 128 CPUs") == 30
    boxes = ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}rect")
    assert all(0 <= float(box.get("x", "")) <= width - float(box.get("width", "")) for box in boxes)
    names = [title for title in list_titles(drawn) if title.startswith("n")]
    assert [name.partition(":")[0] for name in names] == [f"n{node}" for node in range(30)]
