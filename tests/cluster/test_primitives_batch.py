"""The ten primitives on batch workflows, carried out on a real cluster as an agent has them: by a server's arbiter."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.app.application import Application
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.object_labels import build_selector, derive_namespace
from tests.cluster.acting_server import Acting
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

STEP = """
import argparse, time
parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int)
parser.add_argument("--seconds", type=float)
given = parser.parse_args()
print("rows:", given.rows, flush=True)
time.sleep(given.seconds)
"""
SMALL = sf.Resources(cpu="50m", memory="64Mi")


def application(folder: Path) -> Application:
    folder.mkdir()
    (folder / "step.py").write_text(STEP, encoding="utf-8")
    load = sf.Executor(name="load", mainfile="step.py", parameters={"rows": 1, "seconds": 0.0}, resources=SMALL)
    hold = sf.Executor(name="hold", mainfile="step.py", parameters={"rows": 1, "seconds": 300.0}, resources=SMALL)
    name = f"acts{uuid.uuid4().hex[:6]}"
    work = sf.Workflow(name="work", nodes=[load, hold])
    return sf.Application(name=name, team="tests", app_dir=str(folder), workflows=[work])


@pytest.fixture
def acting(tmp_path: Path, cluster: Cluster, base_image: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Acting]:
    fields = {"IMAGE": base_image, "STORAGE_MODE": "ReadWriteOnce", "STORAGE_SIZE": "1Gi"}
    app = application(tmp_path / "app")
    with Acting(tmp_path, app, **{f"SCANFLOW_KUBERNETES_{name}": text for name, text in fields.items()}) as acting:
        yield acting
    cluster.delete("Namespace", derive_namespace(app.name, app.team))


def templates(cluster: Cluster, acting: Acting, run: str) -> dict[str, Manifest]:
    """Return what the Workflow of a run has for each of its steps."""
    (workflow,) = workflows(cluster, acting, run)
    return {template["name"]: template for template in workflow["spec"]["templates"] if "container" in template}


def workflows(cluster: Cluster, acting: Acting, run: str) -> list[Manifest]:
    namespace = derive_namespace(acting.app.name, acting.app.team)
    return cluster.find("Workflow", namespace, labels=build_selector(run=run))[0]


def states(acting: Acting, run: str) -> dict[str, str]:
    return {task["task"]: task["state"] for task in acting.run(run)["tasks"]}


def wait_for_run(acting: Acting, run: str) -> str:
    wait_until(lambda: acting.run(run)["state"] != "running", f"the run {run} has ended", patience_s=90)
    return str(acting.run(run)["state"])


def test_what_is_wanted_of_steps_is_changed_for_later_runs_and_taken_back(acting: Acting, cluster: Cluster) -> None:
    node = next(machine["metadata"]["name"] for machine in cluster.find("Node")[0] if not machine["spec"].get("taints"))
    on_node = {"node_selector": {"kubernetes.io/hostname": node}}
    done = [
        acting.do(do.upgrade_workflow("work", parameters={"rows": 7})),
        acting.do(do.upgrade_executor("work", "load", rows=9)),
        acting.do(do.update_workflow_affinity("work", None, avoid_services=["serving"], kind="batch")),
        acting.do(do.update_executor_affinity("work", "load", on_node)),
        acting.do(do.update_workflow_resource("work", cpu="60m", kind="batch")),
        acting.do(do.update_executor_resource("work", "load", memory="96Mi")),
    ]
    exclusive = acting.refusal(do.update_executor_affinity("work", "hold", "cpu"))
    assert "'hold': Kubernetes honours affinity for whole cores and known memory only" in exclusive
    assert "Write resources=sf.Resources(cpu=2, memory='1Gi')" in exclusive
    pinned = acting.refusal(do.update_workflow_affinity("work", "cpumempin", kind="batch"))
    assert "Kubernetes does not support affinity 'cpumempin' of a step. Write 'cpumem'" in pinned

    begun, run = acting.begin(do.run_workflow("work"))
    wait_until(lambda: workflows(cluster, acting, run), "its Workflow is there")
    workflow_templates = templates(cluster, acting, run)
    assert {name: template["container"]["resources"]["requests"] for name, template in workflow_templates.items()} == {
        "step-load": {"cpu": "60m", "memory": "96Mi"},
        "step-hold": {"cpu": "60m", "memory": "64Mi"},
    }
    assert workflow_templates["step-load"]["nodeSelector"] == on_node["node_selector"]
    (apart,) = workflow_templates["step-hold"]["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    (avoided,) = apart["podAffinityTerm"]["labelSelector"]["matchExpressions"]
    assert (avoided["key"], avoided["values"]) == ("scanflow.dev/service", ["serving"])
    steps = acting.current_app.workflow("work").steps
    assert [step.parameters["rows"] for step in steps] == [9, 7]
    acting.take_back(begun)
    assert wait_for_run(acting, run) == "stopped"
    for action in reversed(done):
        acting.take_back(action)
    assert acting.current_app == acting.app


def test_runs_and_steps_are_begun_and_stopped(acting: Acting, cluster: Cluster) -> None:
    _, first = acting.begin(do.run_workflow("work", rows=3))
    wait_until(
        lambda: states(acting, first) == {"load": "succeeded", "hold": "running"}, "hold alone runs", patience_s=90
    )
    acting.do(do.stop_executor("work", "hold"))
    assert wait_for_run(acting, first) == "stopped"
    assert states(acting, first) == {"load": "succeeded", "hold": "stopped"}
    assert "rows: 3" in acting.log(first, "load")
    again, second = acting.begin(do.run_executor("work", "load", run=first, rows=5))
    assert wait_for_run(acting, second) == "succeeded"
    assert "rows: 5" in acting.log(second, "load")
    acting.take_back(again)
    _, third = acting.begin(do.run_workflow("work"))
    wait_until(lambda: workflows(cluster, acting, third), "its Workflow is there")
    stopped = acting.do(do.stop_workflow("work"))
    assert stopped.result == {"runs": [third, second, first], "stopped": [third]}
    assert wait_for_run(acting, third) == "stopped"
    (workflow,) = workflows(cluster, acting, third)
    assert (workflow["spec"]["shutdown"], workflow["status"]["phase"]) == ("Terminate", "Failed")
