"""Batch runs whose Workflow, or whose driver, changes under the hand that reads or writes it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.environments import EnsuredEnvironment
from scanflow.backends.kubernetes.all_runs import KubernetesRuns
from scanflow.backends.kubernetes.batch.pod_layout import ASKED_TO_STOP, GIVEN_UP_ANNOTATION
from scanflow.backends.kubernetes.batch.preparation import RunPreparation
from scanflow.backends.kubernetes.batch.stopping import annotate
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import Event, RunRecord, RunStarted
from scanflow.errors import NotFoundError
from scanflow.settings import Settings
from scanflow.testing.memory_cluster import MemoryCluster
from scanflow_client.formatting.run_text import format_outcome, format_run

NAMESPACE = "scanflow-shop-data"


class Shop:
    """A cluster, and the runs of one application on it."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.cluster, self.settings = MemoryCluster(namespaces=(NAMESPACE,)), settings
        self.uid = "1"
        folder.mkdir()
        (folder / "step.py").write_text("print('a step')\n")
        steps = [sf.Executor(name=name, mainfile="step.py") for name in ("a", "b")]
        workflow = sf.Workflow(name="train", nodes=steps)
        self.app = sf.Application(name="shop", team="data", app_dir=folder, workflows=[workflow])
        self.runs = self.make_another()

    def make_another(self) -> KubernetesRuns:
        own = KubernetesSettings(pending_s=1e-9)
        models: Any = lambda _tracker: None  # noqa: E731  no step asks for one
        preparation = RunPreparation(
            lambda _: EnsuredEnvironment(NAMESPACE, None, uid=self.uid), own, lambda _: None, models
        )
        return KubernetesRuns(self.settings, self.cluster, own, preparation)

    def enter(self) -> RunRecord:
        return self.runs.enter(RunDefinition(self.app, self.app.workflows[0]))

    def drive(self, run: str, *, observe: Callable[[Event], None] = lambda _: None) -> RunRecord:
        return self.runs.drive(run, environment=lambda _: {}, observe=observe)

    def workflow(self, name: str) -> Manifest:
        workflow = self.cluster.get("Workflow", name, NAMESPACE)
        assert workflow is not None
        return workflow

    def plays(self, *phases: str) -> None:
        """Have Argo end the first, second, ... Workflow so; one that is asked to end, it ends."""
        pending = list(phases)

        def play(cluster: MemoryCluster, workflow: Manifest) -> None:
            ended = "Failed" if workflow["spec"].get("shutdown") else None
            if not workflow.get("status") and pending:
                ended = pending.pop(0)
            if ended is not None and workflow.get("status", {}).get("phase") != ended:
                times = {"startedAt": "2026-01-01T10:00:00Z", "finishedAt": "2026-01-01T10:00:09Z"}
                status = {"phase": ended, **times}
                cluster.edit("Workflow", workflow["metadata"]["name"], NAMESPACE, {"status": status}, manager="argo")

        self.cluster.play("Workflow", play)

    def ends(self, **phases: str) -> None:
        """Have Argo end Workflows, each of their steps so (as far as they have it)."""

        def play(cluster: MemoryCluster, workflow: Manifest) -> None:
            if workflow.get("status"):
                return
            name, steps = workflow["metadata"]["name"], list_steps(workflow)
            nodes = {
                step: {"name": f"{name}.{step}", "type": "Pod", "phase": phase, "templateName": f"step-{step}"}
                for step, phase in phases.items()
                if step in steps
            }
            phase = "Failed" if any(phases[step] != "Succeeded" for step in nodes) else "Succeeded"
            cluster.edit("Workflow", name, NAMESPACE, {"status": {"phase": phase, "nodes": nodes}}, manager="argo")

        self.cluster.play("Workflow", play)
        self.claim()

    def claim(self) -> None:
        """Make the claim that steps write to, in the namespace, anew."""
        self.cluster.delete("PersistentVolumeClaim", "scanflow-outputs", NAMESPACE)
        metadata = {"name": "scanflow-outputs", "namespace": NAMESPACE}
        self.cluster.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata})

    def drive_again(self, run: str) -> tuple[list[str], RunStarted]:
        """Resume a run; return the steps that ran, and what was said at its start."""
        events: list[Event] = []
        self.drive(run, observe=events.append)
        started = next(event for event in events if isinstance(event, RunStarted))
        workflows = self.cluster.find("Workflow", NAMESPACE)[0]
        last = max(workflows, key=lambda workflow: int(workflow["metadata"]["annotations"]["scanflow.dev/drive"]))
        return list_steps(last), started


def list_steps(workflow: Manifest) -> list[str]:
    dag = next(template for template in workflow["spec"]["templates"] if template["name"] == "run")
    return [task["name"] for task in dag["dag"]["tasks"]]


def test_a_run_is_checked_once_by_the_process_that_enters_and_drives_it(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, checked = Shop(settings, tmp_path / "shop"), list[str]()
    shop.plays("Succeeded", "Succeeded")
    monkeypatch.setattr(
        "scanflow.backends.kubernetes.batch.run_checks.check_honoured", lambda node: checked.append(node.name)
    )
    prepared = shop.runs.prepare(RunDefinition(shop.app, shop.app.workflows[0]))
    assert shop.runs.prepare(prepared) is prepared
    name = shop.runs.enter(prepared).name
    shop.runs.drive(name, prepared, environment=lambda _: {}, observe=lambda _: None)
    assert checked == ["a", "b"]
    assert (
        shop.make_another().drive(shop.enter().name, environment=lambda _: {}, observe=lambda _: None).state
        == "succeeded"
    )
    assert checked == ["a", "b"] * 3


@pytest.fixture
def shop(settings: Settings, tmp_path: Path) -> Shop:
    return Shop(settings, tmp_path / "app")


def test_what_another_notes_on_a_workflow_meanwhile_is_kept(shop: Shop) -> None:
    run, seen = shop.enter().name, list[str]()
    shop.plays("Succeeded")
    shop.drive(run)

    def patch_meanwhile(verb: str, kind: str, patch: Manifest) -> None:
        if (verb, kind) == ("patch", "Workflow") and not seen:
            seen.append("patch")
            edit = {"metadata": {"annotations": {ASKED_TO_STOP: '["b"]'}}}
            shop.cluster.edit("Workflow", run, NAMESPACE, edit)

    shop.cluster.refuse(patch_meanwhile)
    annotate(shop.cluster, shop.workflow(run), ASKED_TO_STOP, lambda asked: [*asked, "a"], empty=[])
    assert shop.workflow(run)["metadata"]["annotations"][ASKED_TO_STOP] == '["b", "a"]'


def test_each_of_several_tasks_that_do_not_start_says_why(shop: Shop) -> None:
    run = shop.enter().name

    def wait(cluster: MemoryCluster, workflow: Manifest) -> None:
        status = workflow.get("status", {})
        phase = "Failed" if workflow["spec"].get("shutdown") else "Pending"
        nodes = {
            step: {
                "name": f"{run}.{step}",
                "type": "Pod",
                "phase": phase,
                "templateName": f"step-{step}",
                "message": f"Unschedulable: no node for {step}",
            }
            for step in ("a", "b")
        }
        if status.get("nodes") != nodes:
            progress = {"phase": "Failed" if phase == "Failed" else "Running", "nodes": nodes}
            cluster.edit("Workflow", run, NAMESPACE, {"status": progress}, manager="argo")

    shop.cluster.play("Workflow", wait)
    record = shop.drive(run)
    assert set(json.loads(shop.workflow(run)["metadata"]["annotations"][GIVEN_UP_ANNOTATION])) == {"a", "b"}
    causes = {record_.task: record_.failure.cause for record_ in record.tasks if record_.failure is not None}
    assert all(f"no node for {task}" in cause for task, cause in causes.items())
    assert len(causes) == 2


def test_a_run_that_is_stopped_while_its_workflow_is_made_is_stopped(shop: Shop) -> None:
    run = shop.enter().name
    shop.plays("Running", "Succeeded")

    def stop(event: Event) -> None:
        if event.kind == "run-started":
            assert shop.cluster.get("Workflow", run, NAMESPACE) is None
            thread = threading.Thread(target=shop.make_another().stop, args=(run,))
            thread.start()
            thread.join()

    assert shop.drive(run, observe=stop).state == "stopped"
    assert shop.workflow(run)["spec"]["shutdown"] == "Terminate"
    assert shop.drive(run).state == "succeeded", "it was that one drive that was to stop"


def test_who_looks_while_another_goes_on_with_a_run_does_not_end_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, find = shop.enter().name, shop.cluster.find

    def raise_killed(*_args: Any, **_how: Any) -> None:
        raise MemoryError("killed")

    monkeypatch.setattr(shop.cluster, "watch", raise_killed)
    with pytest.raises(MemoryError):
        shop.drive(run)
    monkeypatch.undo()
    status = {"phase": "Failed", "startedAt": "2026-01-01T10:00:00Z", "finishedAt": "2026-01-01T10:00:09Z"}
    shop.cluster.edit("Workflow", run, NAMESPACE, {"status": status}, manager="argo")
    shop.plays("Succeeded")

    def find_then_driven(kind: str, *args: Any, **how: Any) -> tuple[list[Manifest], str]:
        objects = find(kind, *args, **how)
        if kind == "Workflow":
            monkeypatch.undo()
            assert shop.make_another().drive(run, environment=lambda _: {}, observe=lambda _: None).state == "succeeded"
        return objects

    monkeypatch.setattr(shop.cluster, "find", find_then_driven)
    assert shop.runs.show(run).state == "succeeded"
    assert shop.runs.show(run).state == "succeeded"


def test_a_plan_says_which_step_fits_on_no_node(shop: Shop) -> None:
    for name in ("n0", "n1"):
        status = {"allocatable": {"cpu": "2", "memory": "4Gi"}, "conditions": [{"type": "Ready", "status": "True"}]}
        metadata = {"name": name}
        shop.cluster.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status})
    large = sf.Executor(name="large", mainfile="step.py", resources=sf.Resources(cpu=3))
    workflow = shop.app.workflows[0].replace(nodes=(*shop.app.workflows[0].nodes, large))
    notes = {step.name: step.notes for step in shop.runs.plan(shop.app, workflow).steps}
    assert (notes["a"], notes["b"]) == ((), ())
    assert notes["large"] == ("fits on no node: it needs 3 cores, and the largest node has 2 and 4Gi",)


def test_a_workflow_that_a_user_deletes_is_named(shop: Shop) -> None:
    run = shop.enter().name
    shop.cluster.play("Workflow", lambda cluster, own: cluster.delete("Workflow", own["metadata"]["name"], NAMESPACE))
    for name in (run, f"{run}-2"):
        record = shop.drive(run)
        assert record.state == "stopped"
        assert record.error is not None
        assert record.error.startswith(f"The Workflow '{name}' of the namespace '{NAMESPACE}' was deleted by another")
        assert record.seconds is not None
        assert record.error in format_outcome(record)
        assert record.error in format_run(record)


def test_what_is_still_there_is_kept(shop: Shop) -> None:
    run = shop.enter().name
    shop.ends(a="Succeeded", b="Failed")
    assert shop.drive(run).state == "failed"
    steps, started = shop.drive_again(run)
    assert (steps, started.kept, started.gone) == (["b"], 1, ())


def test_what_was_on_a_claim_that_was_deleted_runs_again(shop: Shop) -> None:
    run = shop.enter().name
    shop.ends(a="Succeeded", b="Failed")
    shop.drive(run)
    shop.claim()
    steps, started = shop.drive_again(run)
    assert (steps, started.kept, started.gone) == (["a", "b"], 0, ("a",))


def test_what_was_in_a_namespace_that_was_deleted_runs_again(shop: Shop) -> None:
    run = shop.enter().name
    shop.ends(a="Succeeded", b="Failed")
    shop.drive(run)
    shop.cluster.delete("Namespace", NAMESPACE)
    shop.cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    steps, started = shop.drive_again(run)
    assert (steps, started.gone) == (["a", "b"], ("a",))


def test_outputs_that_are_gone_are_named_as_such(shop: Shop) -> None:
    run = shop.enter().name
    shop.ends(a="Succeeded", b="Succeeded")
    assert shop.drive(run).state == "succeeded"
    shop.claim()
    with pytest.raises(NotFoundError, match=rf"outputs of the run '{run}' are gone.*scanflow resume {run}"):
        shop.runs.outputs(run, "a")
    spin = RunDefinition(shop.app, shop.app.workflows[0], step="b", past=run)
    with pytest.raises(NotFoundError, match="are gone"):
        shop.runs.enter(spin)


def test_the_code_is_sent_again_into_an_environment_that_another_process_created_again(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scanflow.backends.kubernetes.batch.cluster_runs.ENVIRONMENT_CACHE_S", 0.0)
    shop = Shop(settings, tmp_path / "app")
    shop.plays(*["Succeeded"] * 3)
    shop.drive(shop.enter().name)
    shop.cluster.delete("Namespace", NAMESPACE)
    shop.cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    assert shop.cluster.find("ConfigMap", NAMESPACE)[0] == []
    shop.uid = "2"  # all else is as this process had made it, within the last minute
    shop.drive(shop.enter().name)
    maps = [config_map["metadata"]["name"] for config_map in shop.cluster.find("ConfigMap", NAMESPACE)[0]]
    assert [name for name in maps if name.startswith("code-")]
