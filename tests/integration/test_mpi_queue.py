"""MPI jobs through a real server: a planner has one cut and run, and those that do not fit wait for their turn."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from scanflow.backends.job_times import JobTimes, compute_job_times, compute_job_totals
from scanflow.backends.run_records import RunRecord
from scanflow_research.simulation.twenty_jobs import generate_thesis_jobs
from tests.server import ServerProcess, load_body
from tests.waiting import patient, wait_until

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("mpicc.openmpi") is None, reason="Open MPI is not installed"),
]

TUTORIALS = Path(__file__).parents[2] / "tutorials"
STREAM = next(job.name for job in generate_thesis_jobs() if job.program.name == "STREAM")
PLANNER = """
import scanflow as sf
from scanflow.agent import primitives as do, sensor


@sensor(sf.every(seconds=0.5))
def jobs_to_run(context):
    return "{job}"


sf.Strategy(
    name="submit",
    when=jobs_to_run,
    if_=lambda found: True,
    then=lambda found: do.run_autoconfig_workflow(found, policy="granularity"),
    may={{"run_autoconfig_workflow": "workflow/*"}},
    budget=1,
    budget_window=86_400,
)
"""
APP = """
import scanflow as sf
import twenty

twenty.ROUNDS = {name: rounds // 3 for name, rounds in twenty.ROUNDS.items()}


def workflow(job):
    made = twenty.workflow(job)
    if job.program.name != "DGEMM":
        return made
    of_one_rank = made.nodes[0].model_copy(update={"n_tasks": 1, "oversubscribe": False})
    return made.model_copy(update={"nodes": (of_one_rank,)})


app = sf.Application(
    name="scheduler",
    team="hpc",
    workflows=[workflow(job) for job in twenty.generate_thesis_jobs()],
    agents=[sf.Agent(name="planner", modules=["planning.py"])],
)
"""
MAX_DURATION_S = patient(540)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    command = ["mpicc.openmpi", "-O2", "-o", "kernels", str(TUTORIALS / "mpi" / "kernels.c"), "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=patient(120))
    shutil.copy(TUTORIALS / "scheduler" / "twenty.py", tmp_path)
    (tmp_path / "planning.py").write_text(PLANNER.format(job=STREAM))
    (tmp_path / "app.py").write_text(APP)
    return tmp_path / "app.py"


def record(server: ServerProcess, run: str) -> RunRecord:
    return RunRecord.model_validate(server.api.get(f"/runs/{run}").raise_for_status().json())


def test_a_planner_has_a_job_cut_for_the_nodes_that_there_are_and_run(server: ServerProcess, source: Path) -> None:
    server.api.put("/agents/scheduler/planner", json=load_body(source), params={"team": "hpc"}).raise_for_status()
    try:

        def list_ended_actions() -> list[dict[str, Any]]:
            intents = server.api.get("/intents", params={"verdict": "act"}).json()
            return [intent for intent in intents if intent["ended"] is not None]

        wait_until(list_ended_actions, "the planner's action is over")
        (action,) = list_ended_actions()
        assert action["state"] == "succeeded", action
        done = action["result"]
        assert (done["workflow"], done["tasks"], done["workers"], done["nodes"]) == (STREAM, 2, 2, 1)
        assert all(text in done["why"][0] for text in ("memory-bound", "'granularity'"))
        wait_until(lambda: record(server, done["run"]).state == "succeeded", "the job has ended")
        assert any(
            "run_autoconfig_workflow" in line for line in server.api.get(f"/intents/{action['id']}/why").json()["lines"]
        )
    finally:
        server.api.delete("/agents/scheduler/planner")
        wait_until(lambda: server.api.get("/agents/scheduler/planner").json()["state"] == "stopped", "it has ended")


def test_of_twenty_jobs_each_gets_its_turn_and_none_is_lost(server: ServerProcess, source: Path) -> None:
    body, names = load_body(source), [job.name for job in generate_thesis_jobs()]
    submitted = [server.api.post("/runs", json={**body, "workflow": name}).raise_for_status().json() for name in names]
    runs = [action["name"] for action in submitted]
    server.kill()  # the queue is what is written down
    server.start()
    last = server.run_events(runs[-1])
    assert last[0][0] == "waiting", last
    assert "before it" in last[0][1]["what"]
    wait_until(
        lambda: all(record(server, run).state != "running" for run in runs), "all ended", patience_s=MAX_DURATION_S
    )

    jobs: list[JobTimes] = [compute_job_times(record(server, run), time.time()) for run in runs]
    assert [(entry.job, entry.state) for entry in jobs] == [(name, "succeeded") for name in names]
    assert len({entry.run for entry in jobs}) == 20
    began, ended = [entry.began or 0.0 for entry in jobs], [entry.ended or 0.0 for entry in jobs]
    assert began == sorted(began), "first come, first served"
    assert all(entry.response_s == pytest.approx(entry.waiting_s + (entry.running_s or 0.0)) for entry in jobs)
    for place, entry in enumerate(jobs):  # two cores: never more than they have, at any job's beginning
        beside = [other.ranks for other, end in zip(jobs[:place], ended[:place], strict=True) if end > began[place]]
        assert sum(beside) + entry.ranks <= 2, entry
    totals = compute_job_totals(jobs)
    assert totals is not None
    assert totals.jobs == 20
    assert totals.makespan_s == pytest.approx(max(ended) - jobs[0].submitted)
