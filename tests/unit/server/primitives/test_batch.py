from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scanflow.agent.agent_records import PrimitiveCall
from scanflow.app.application import Application
from scanflow.app.executor import Executor
from scanflow.app.references import Ref
from scanflow.application_loading import load_application
from scanflow.backends.run_records import RunRecord, TaskRecord
from scanflow.deployer import EmbeddedDeployer
from scanflow.errors import InvalidError, NotFoundError, ScanflowError, UsageError
from scanflow.names import StepName
from scanflow.settings import Settings
from tests.unit.server.primitives.primitive_runs import Doing, InlineRuns, Remembered

APP = """
import scanflow as sf


@sf.step(in_process=True)
def load(count: int = 3) -> list[int]:
    return list(range(count))


@sf.step(in_process=True)
def total(values: list[int], factor: int = 1) -> int:
    return sum(values) * factor


numbers = load.bind(count=3)
app = sf.Application(
    name="counting",
    team="tests",
    workflows=[
        sf.Workflow(name="sums", nodes=[numbers, total.bind(numbers, factor=1)]),
        sf.Workflow(name="scripts", nodes=[sf.Executor(name="train", mainfile="t.py", parameters={"epochs": 1})]),
    ],
)
"""


@pytest.fixture
def deployer(settings: Settings) -> EmbeddedDeployer:
    return EmbeddedDeployer(settings)


@pytest.fixture
def applications(tmp_path: Path) -> Remembered:
    path = tmp_path / "counting.py"
    path.write_text(APP, encoding="utf-8")
    return Remembered(load_application(str(path))[0], path)


class Batch(Doing):
    def step(self, workflow: str, name: str) -> Executor:
        node = self.applications.application.workflow(workflow).node(name)
        assert isinstance(node, Executor)
        return node


@pytest.fixture
def doing(deployer: EmbeddedDeployer, applications: Remembered) -> Batch:
    return Batch(deployer, applications)


@pytest.mark.processes
def test_a_workflow_is_run_with_parameters_of_its_own_and_undone_by_stopping(doing: Batch) -> None:
    done = doing("run_workflow", workflow="sums", parameters={"count": 5})
    run = done.result["run"]
    assert doing.deployer.outputs(run, "total") == {"result": 10}
    assert done.inverse == PrimitiveCall(primitive="stop_workflow", arguments={"run": run})
    assert doing.undo(done).result == {"runs": [run], "stopped": []}  # it has ended, and stays as it is


@pytest.mark.processes
def test_a_step_is_rerun_on_what_it_had(doing: Batch) -> None:
    past = doing("run_workflow", workflow="sums").result["run"]
    done = doing("run_executor", key="again", workflow="sums", executor="total", parameters={"factor": 10})
    assert done.result["run"] != past
    assert doing.deployer.outputs(done.result["run"], "total") == {"result": 30}
    assert doing("run_executor", key="again", workflow="sums", executor="total").result["run"] == done.result["run"]
    with pytest.raises(UsageError, match="does not belong to the workflow 'scripts'"):
        doing("run_executor", key="x", workflow="scripts", executor="train", run=past)
    with pytest.raises(NotFoundError, match="has not been run yet"):
        doing("run_executor", key="x", workflow="scripts", executor="train")


@pytest.mark.processes
def test_a_step_is_run_again_on_the_newest_run_of_the_whole_workflow(doing: Batch) -> None:
    doing("run_workflow", workflow="sums")
    alone = doing("run_executor", key="first", workflow="sums", executor="load", parameters={"count": 9})
    done = doing("run_executor", key="second", workflow="sums", executor="total")
    assert alone.result["run"] != done.result["run"]
    assert doing.deployer.outputs(done.result["run"], "total") == {"result": 3}


@pytest.mark.parametrize("primitive", ["run_workflow", "run_executor", "upgrade_workflow", "upgrade_executor"])
def test_an_input_from_another_step_is_set_by_its_full_name_only(doing: Batch, primitive: str) -> None:
    if primitive == "run_executor":
        doing("run_workflow", workflow="sums")
    where: dict[str, Any] = {"workflow": "sums"} | ({"executor": "total"} if primitive.endswith("executor") else {})
    with pytest.raises(InvalidError, match=r"is fed by 'load\.result'\. .*total\.values"):
        doing(primitive, key="short", **where, parameters={"values": [1]})
    done = doing(primitive, key="full", **where, parameters={"total.values": [1]})
    if primitive.startswith("run"):
        assert doing.deployer.outputs(done.result["run"], "total") == {"result": 1}
        return
    assert doing.step("sums", "total").parameters["values"] == [1]
    doing.undo(done)
    assert doing.step("sums", "total").parameters["values"] == Ref(step="load")


OTHER = {"name": "other", "app": "other"}


class RunningRuns(InlineRuns):
    """Two steps that are at work, whatever is asked."""

    record: RunRecord

    def __init__(self, *running: str) -> None:
        listing: Any = SimpleNamespace(runs=lambda **_: [self.record.model_copy(update=OTHER), self.record])
        super().__init__(listing)
        self.stopped: list[tuple[str, str | None]] = []
        steps = {task: task.partition(".")[0] for task in running}
        tasks = tuple(TaskRecord(task=StepName(task), step=step, state="running") for task, step in steps.items())
        fields = {"name": "calm-otter-417", "app": "counting", "team": "tests", "workflow": "sums", "state": "running"}
        self.record = RunRecord.model_validate({**fields, "created": 1.0, "folder": ".", "tasks": tasks})

    def show(self, run: str) -> RunRecord:  # noqa: ARG002
        return self.record

    def stop(self, run: str, task: str | None = None) -> RunRecord:
        self.stopped.append((run, task))
        return self.record


def test_the_runs_of_a_workflow_are_stopped_and_no_others(doing: Batch) -> None:
    doing.runs = runs = RunningRuns("load")
    assert doing("stop_workflow", workflow="sums").result["stopped"] == ["calm-otter-417"]
    assert doing("stop_workflow", workflow="scripts").result == {"runs": [], "stopped": []}
    assert runs.stopped == [("calm-otter-417", None)]
    with pytest.raises(UsageError, match="'workflow' or 'run'"):
        doing("stop_workflow")


def test_a_step_or_one_replica_of_it_is_stopped_and_no_other(doing: Batch) -> None:
    doing.runs = runs = RunningRuns("load.0", "load.1", "total")
    step: dict[str, Any] = {"workflow": "sums", "executor": "load"}
    assert doing("stop_executor", **step).result["stopped"] is True
    assert doing("stop_executor", **step, replica=1).result["stopped"] is True
    assert runs.stopped == [("calm-otter-417", "load"), ("calm-otter-417", "load.1")]
    with pytest.raises(NotFoundError, match=r"has no step 'load.2'"):
        doing("stop_executor", **step, replica=2)
    with pytest.raises(NotFoundError, match="has no step 'lod'"):
        doing("stop_executor", workflow="sums", executor="lod")


@pytest.mark.processes
def test_a_step_that_has_ended_is_left_as_it_is(doing: Batch) -> None:
    doing("run_workflow", workflow="sums")
    assert doing("stop_executor", workflow="sums", executor="load").result["stopped"] is False


@pytest.mark.processes
@pytest.mark.parametrize(
    ("primitive", "arguments", "after"),
    [
        ("upgrade_workflow", {"parameters": {"epochs": 9}}, {"parameters": {"epochs": 9}}),
        ("upgrade_executor", {"executor": "train", "parameters": {"epochs": 9}}, {"parameters": {"epochs": 9}}),
        ("update_workflow_affinity", {"affinity": "any"}, {"affinity": {}}),
        ("update_executor_affinity", {"executor": "train", "affinity": "any"}, {"affinity": {}}),
        ("update_workflow_resource", {"cpu": 2, "memory": "1Gi"}, {"resources": {"cpu": 2.0, "memory": "1Gi"}}),
        ("update_executor_resource", {"executor": "train", "cpu": "500m"}, {"resources": {"cpu": 0.5}}),
    ],
)
def test_what_is_wanted_is_changed_kept_and_undone(
    doing: Batch, primitive: str, arguments: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    before = doing.applications.application
    done = doing(primitive, workflow="scripts", **arguments)
    written = doing.step("scripts", "train").model_dump(mode="json", exclude_defaults=True)
    assert {name: written[name] for name in after} == after
    assert doing.applications.revision == 2
    assert doing("run_workflow", workflow="sums").result["state"] == "succeeded"
    doing.undo(done)
    assert doing.applications.application == before


def test_done_again_after_a_kill_it_is_as_if_done_once(doing: Batch) -> None:
    before = doing.applications.application
    first = doing("upgrade_workflow", workflow="scripts", parameters={"epochs": 9})
    again = doing("upgrade_workflow", workflow="scripts", parameters={"epochs": 9}, noted=first.inverse)
    assert (again.inverse, doing.applications.revision) == (first.inverse, 2)
    doing.undo(again)
    assert doing.applications.application == before


@pytest.mark.parametrize(
    ("primitive", "arguments", "message"),
    [
        ("upgrade_workflow", {"workflow": "scripts", "parameters": {"epoch": 1}}, "Did you mean 'train.epochs'|epochs"),
        ("upgrade_executor", {"workflow": "scripts", "executor": "train", "parameters": {"epoch": 1}}, "'epochs'"),
        ("upgrade_executor", {"workflow": "scripts", "parameters": {"epochs": 1}}, "needs the argument 'executor'"),
        ("update_workflow_resource", {"workflow": "scripts"}, "changes nothing"),
        ("update_workflow_resource", {"workflow": "scripts", "cpus": 1}, "Did you mean 'cpu'"),
        ("update_executor_affinity", {"workflow": "scripts", "executor": "train", "affinity": "gpu"}, "affinity"),
        (
            "update_executor_affinity",
            {"workflow": "scripts", "executor": "train", "affinity": "cpu"},
            "get no exclusive cores",
        ),
        ("update_workflow_affinity", {"workflow": "scripts", "affinity": "cpumem"}, "get no exclusive cores"),
        ("update_workflow_resource", {"workflow": "scripts", "gpu": 999}, "gpu=999 asks for a GPU|more than"),
        ("update_executor_resource", {"workflow": "scripts", "executor": "train", "gpu": "7g.999gb"}, "a GPU"),
        ("run_workflow", {"workflow": "sum"}, "Did you mean 'sums'"),
        ("run_workflow", {"workflow": "sums", "parameters": {"cuont": 1}}, "no parameter 'cuont'"),
        ("deploy_workflow", {"workflow": "sums"}, "'sums' is of type 'batch'"),
        ("upgrade_workflow", {"workflow": "sums", "kind": "online", "model": "models:/m/1"}, "of type 'online'"),
        ("upgrade_workflow", {}, "needs the argument 'workflow'"),
        ("run_workflow", {"workflow": "sums", "parameters": 3}, "'run_workflow': parameters cannot be 3"),
        ("walk_workflow", {"workflow": "sums"}, "no primitive 'walk_workflow'"),
    ],
)
def test_what_cannot_be_done_changes_nothing_and_says_what_to_do(
    doing: Batch, primitive: str, arguments: Mapping[str, Any], message: str
) -> None:
    before: Application = doing.applications.application
    with pytest.raises(ScanflowError, match=message):
        doing(primitive, **arguments)
    assert doing.applications.application is before
    assert doing.deployer.runs() == []
