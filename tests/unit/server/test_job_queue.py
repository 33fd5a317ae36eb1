"""MPI jobs that do not fit wait, first come, first served; and what an MPI workflow's primitives do and refuse."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.backends.step_schedule import Share
from scanflow.deployer import EmbeddedDeployer, TaskLog
from scanflow.errors import UsageError
from scanflow.settings import Settings
from scanflow_server.control.job_queue import JobQueue, list_waiting_jobs
from tests.unit.server.primitives.primitive_runs import Doing, Remembered

ROOM = Share(2.0, 1 << 30)


def jobs(*cores: float, begun: int = 0) -> list[tuple[str, bool, Share]]:
    return [(f"job-{place}", place < begun, Share(core)) for place, core in enumerate(cores)]


def test_a_job_waits_while_others_have_the_cores_and_says_for_whom() -> None:
    assert list_waiting_jobs(jobs(1, 1, begun=1), ROOM) == {}
    assert list_waiting_jobs(jobs(2, 1, begun=1), ROOM) == {"job-1": "1 core of 2: job-0 to end"}
    assert list_waiting_jobs(jobs(1, 1, 2), ROOM) == {"job-2": "2 cores of 2: job-0, job-1 to end"}


def test_nobody_overtakes_a_job_that_waits() -> None:
    waiting_jobs = list_waiting_jobs(jobs(1, 2, 1, begun=1), ROOM)
    assert waiting_jobs == {
        "job-1": "2 cores of 2: job-0 to end",
        "job-2": "1 core of 2: 1 job before it, and job-0 to end",
    }


def test_a_job_larger_than_the_machine_runs_alone() -> None:
    assert list_waiting_jobs(jobs(8, 1), ROOM) == {"job-1": "1 core of 2: job-0 to end"}


def test_memory_makes_jobs_wait_too() -> None:
    two = [("a", True, Share(1.0, 3 << 28)), ("b", False, Share(1.0, 3 << 28))]
    assert list_waiting_jobs(two, ROOM) == {"b": "1 core and 768Mi of 2: a to end"}


@given(
    st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.0, 4.0, 64.0]), st.integers(1, 9)), min_size=1, max_size=20),
    st.sampled_from([1.0, 2.0, 8.0]),
)
def test_all_jobs_begin_in_the_order_of_their_requests_and_never_more_than_fit(
    wanted: Sequence[tuple[float, int]], cores: float
) -> None:
    remaining = {f"job-{place}": ticks for place, (_, ticks) in enumerate(wanted)}
    shares = {f"job-{place}": Share(need) for place, (need, _) in enumerate(wanted)}
    begun = list[str]()
    for _ in range(sum(remaining.values()) + 1):
        active = [(run, run in begun, shares[run]) for run in shares if remaining[run]]
        waits = list_waiting_jobs(active, Share(cores, 0))
        begun += [run for run, started, _ in active if not started and run not in waits]
        runs = [run for run in begun if remaining[run]]
        assert len(runs) == 1 or sum(shares[run].cores for run in runs) <= cores
        for run in runs:
            remaining[run] -= 1
    assert begun == list(shares), "each is begun, once, in order"
    assert not any(remaining.values())


with_mpi = pytest.mark.skipif(shutil.which("mpirun.openmpi") is None, reason="Open MPI is not installed")


@pytest.fixture
def doing(settings: Settings, tmp_path: Path) -> Doing:
    (tmp_path / "rank.sh").write_text("#!/bin/sh\necho $SCANFLOW_MPI_RANK $*\n")
    (tmp_path / "rank.sh").chmod(0o755)
    (tmp_path / "train.py").touch()
    fields: dict[str, Any] = {"mainfile": "rank.sh", "n_tasks": 2, "oversubscribe": True, "flavor": "openmpi"}
    job = sf.Workflow(name="job", type="mpi", nodes=[sf.MPIWorkload(name="rank", n_nodes=2, n_workers=1, **fields)])
    (tmp_path / "exp.yaml").write_text(
        "program: rank.sh\nargs: [-n, 3]\nprofile: memory\npolicy: scale\nn_workers: 2\n"
    )
    in_file: dict[str, Any] = {**fields, "mainfile": "exp.yaml"}
    exp = sf.Workflow(name="exp", type="mpi", nodes=[sf.MPIWorkload(name="rank", **in_file)])
    train = sf.Workflow(name="train", nodes=[sf.Executor(name="fit", mainfile="train.py")])
    app = sf.Application(name="hpc", team="tests", app_dir=tmp_path, workflows=[job, exp, train])
    return Doing(EmbeddedDeployer(settings), Remembered(app))


@with_mpi
@pytest.mark.mpi
@pytest.mark.processes
def test_a_job_is_cut_for_the_nodes_that_there_are_and_run(doing: Doing) -> None:
    done = doing("run_autoconfig_workflow", workflow="job", profile="cpu", policy="granularity")
    totals = {name: done.result[name] for name in ("state", "tasks", "workers", "nodes", "groups")}
    assert totals == {"state": "succeeded", "tasks": 2, "workers": 2, "nodes": 1, "groups": 1}
    assert done.result["why"][0].startswith("2 tasks in 2 workers on 1 node: the program is cpu-bound")
    assert "first come, first served" in done.result["queue"]
    assert done.inverse is not None
    assert (done.inverse.primitive, done.inverse.arguments) == ("stop_workflow", {"run": done.result["run"]})
    again = doing("run_autoconfig_workflow", workflow="job", profile="cpu", policy="granularity")
    assert again.result["run"] == done.result["run"], "the same key begins one run"
    assert JobQueue(doing.deployer).list_waiting([(done.result["run"], False)]) == {}


@with_mpi
@pytest.mark.mpi
@pytest.mark.processes
def test_a_yaml_mainfile_is_read_before_a_job_is_cut_and_what_was_decided_goes_before_it(doing: Doing) -> None:
    done = doing("run_autoconfig_workflow", workflow="exp", policy="granularity")
    assert done.result["why"][0].startswith("2 tasks in 2 workers on 1 node: the program is memory-bound, and the p")
    assert "'granularity'" in done.result["why"][0]
    other = doing("run_autoconfig_workflow", key="other", workflow="exp", profile="network")
    assert (other.result["workers"], other.result["why"][0].split(": ")[1][:24]) == (1, "the program is network-b")
    log = doing.deployer.logs(TaskLog(done.result["run"], "rank.0"))
    assert b"".join(part.data for part in log) == b"0 -n 3\n"


@with_mpi
@pytest.mark.mpi
@pytest.mark.processes
def test_an_mpi_workflow_is_run_and_stopped_and_other_primitives_say_what_to_use(doing: Doing) -> None:
    run = doing("run_workflow", key="plain", workflow="job").result["run"]
    assert doing("stop_workflow", workflow="job").result == {"runs": [run], "stopped": []}
    others: dict[str, dict[str, Any]] = {
        "upgrade_executor": {"executor": "rank", "parameters": {"a": 1}},
        "upgrade_workflow": {"parameters": {"a": 1}},
        "update_workflow_replica": {"instances": 2},
    }
    for primitive, arguments in others.items():
        with pytest.raises(
            UsageError,
            match=r"'job' is of type 'mpi'\. Use instead: run_workflow, stop_workflow, run_autoconfig_workflow\.",
        ):
            doing(primitive, workflow="job", **arguments)
    with pytest.raises(UsageError, match=r"run_autoconfig_workflow is for workflows of type 'mpi', but 'train' is"):
        doing("run_autoconfig_workflow", workflow="train")
