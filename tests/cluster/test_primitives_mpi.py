"""An MPI workflow's primitives on a real cluster: a planner names the job, the server cuts it for the nodes there."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.agent.agent_records import Action
from scanflow.app.application import Application
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.nodes import is_schedulable
from scanflow.backends.kubernetes.object_labels import build_selector, derive_namespace
from tests.cluster.acting_server import Acting
from tests.cluster.drains import all_nodes_schedulable
from tests.cluster.test_cluster_mpi_runs import IMAGE, RING, SLEEPS
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
WITHIN_S = 120.0


def workload(name: str, mainfile: str) -> sf.MPIWorkload:
    small = sf.Resources(cpu=0.05, memory="64Mi")
    return sf.MPIWorkload(name=name, mainfile=mainfile, n_tasks=4, oversubscribe=True, resources_per_task=small)


def application(folder: Path) -> Application:
    folder.mkdir()
    for name, text in {"ring.py": RING, "sleeps.sh": SLEEPS}.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    jobs = {"ring": "ring.py", "hold": "sleeps.sh"}
    workflows = [sf.Workflow(name=name, type="mpi", nodes=[workload(name, file)]) for name, file in jobs.items()]
    return sf.Application(name=f"jobs{uuid.uuid4().hex[:6]}", team="tests", app_dir=folder, workflows=workflows)


@pytest.fixture
def acting(tmp_path: Path, cluster: Cluster) -> Iterator[Acting]:
    app = application(tmp_path / "app")
    with Acting(tmp_path, app, SCANFLOW_KUBERNETES_MPI_IMAGE=IMAGE, SCANFLOW_KUBERNETES_STORAGE_SIZE="1Gi") as acting:
        yield acting
    cluster.delete("Namespace", derive_namespace(app.name, app.team))


def wait_for_run(acting: Acting, run: str) -> str:
    wait_until(lambda: acting.run(run)["state"] != "running", f"the run {run} has ended", patience_s=WITHIN_S)
    return str(acting.run(run)["state"])


def result(done: Action) -> dict[str, Any]:
    assert isinstance(done.result, dict)
    return dict(done.result)


def test_a_planner_has_a_job_cut_for_the_nodes_of_the_cluster(acting: Acting, cluster: Cluster) -> None:
    with all_nodes_schedulable():
        there = sum(is_schedulable(node) for node in cluster.find("Node")[0])
        done, run = acting.begin(do.run_autoconfig_workflow("ring", profile="memory", nodes=2))
        state = wait_for_run(acting, run)
    values = result(done)
    assert there >= 2
    assert (values["tasks"], values["workers"], values["nodes"], values["groups"]) == (4, 2, 2, 2)
    assert all(text in values["why"][0] for text in ("memory-bound", "'scale' (Algorithm 2)"))
    assert values["queue"] == "Volcano's"
    assert state == "succeeded"
    ranks = [task for task in acting.run(run)["tasks"] if task["step"] == "ranks"]
    assert len(ranks) == 4
    assert len({rank["place"] for rank in ranks}) == 2
    assert acting.log(run, "ring.3") == "rank 3 sum 6\n"


def test_an_unknown_profile_is_not_cut_and_a_measured_one_is_refused(acting: Acting) -> None:
    assert "is measured where the program runs" in acting.refusal(do.run_autoconfig_workflow("ring", profile="auto"))
    done, run = acting.begin(do.run_autoconfig_workflow("ring"))
    values = result(done)
    assert (values["workers"], values["nodes"]) == (1, 1)
    assert "the program's bottleneck is unknown" in values["why"][0]
    assert wait_for_run(acting, run) == "succeeded"


def test_what_a_planner_submitted_is_stopped_when_it_is_undone(acting: Acting, cluster: Cluster) -> None:
    done, run = acting.begin(do.run_autoconfig_workflow("hold", profile="memory"))
    namespace = derive_namespace(acting.app.name, acting.app.team)
    wait_until(
        lambda: cluster.find("Job", namespace, labels=build_selector(run=run))[0],
        "its job is there",
        patience_s=WITHIN_S,
    )
    acting.take_back(done)
    assert wait_for_run(acting, run) == "stopped"
