from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.memory import Memory
from scanflow.backends.run_records import RunRecord
from scanflow.backends.service_change import CanaryPolicy, Deployment, ServiceChange
from scanflow.backends.service_records import ServiceRecord
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.deployer.direct_predictions import predict
from scanflow.errors import UnsupportedError, UsageError
from scanflow.settings import Settings

waits: list[float] = []


class Times:
    """A model of the registry, as a test has it."""

    def __init__(self, by: int, fails: bool = False) -> None:
        self.by, self.fails = by, fails

    def predict(self, value: Any) -> Any:
        if self.fails:
            raise RuntimeError("broken")
        return value * self.by


@sf.step
def count(to: int = 3) -> list[int]:
    return list(range(to))


@sf.step(retries=sf.Retry(limit=3, delay=60))
def square(number: int) -> int:
    if number == 2 and len(waits) < 2:
        raise ValueError("not yet")
    return number**2


numbers = count.bind()
app = sf.Application(name="shop", workflows=[sf.Workflow(name="squares", nodes=[numbers, square.map(numbers)])])
node = sf.Service(name="times", model="models:/times/1")
serving = sf.Application(name="shop", workflows=[sf.Workflow(name="serve", type="online", nodes=[node])])


@pytest.fixture
def deployer() -> EmbeddedDeployer:
    waits.clear()
    models = {f"models:/times/{by}": Times(by, fails=by == 13) for by in (1, 2, 13)}
    return EmbeddedDeployer(Settings(), backend=Memory(models=models, sleep=waits.append))


def test_retries_wait_by_the_clock_that_is_handed_in(deployer: EmbeddedDeployer) -> None:
    record = deployer.run(RunRequest(app))
    assert (record.state, waits) == ("succeeded", [60.0, 60.0])
    assert deployer.outputs(record.name, "square") == [{"result": 0}, {"result": 1}, {"result": 4}]


def test_one_task_of_a_fan_out_is_spun(deployer: EmbeddedDeployer) -> None:
    past = deployer.run(RunRequest(app))
    spun = deployer.run(RunRequest(run=past.name, step="square.1"))
    assert [task.task for task in spun.tasks if task.step == "square"] == ["square.1"]


def test_a_run_that_is_stopped_goes_on_where_it_was(deployer: EmbeddedDeployer) -> None:
    def stop(event: Any) -> None:
        if event.kind == "task-ended" and event.record.task == "square.0":
            deployer.stop("@latest")

    waits.extend([0.0, 0.0])
    stopped: RunRecord = deployer.run(RunRequest(app), observe=stop)
    assert (stopped.state, sum(task.state == "succeeded" for task in stopped.tasks)) == ("stopped", 2)
    assert deployer.run(RunRequest(app, run=stopped.name)).state == "succeeded"


def test_what_needs_a_process_is_refused_by_the_name_of_its_field(deployer: EmbeddedDeployer) -> None:
    script = sf.Executor(name="train", mainfile="train.py")
    with pytest.raises(UnsupportedError, match="'train': the backend 'memory' does not support mainfile"):
        deployer.run(RunRequest(sf.Application(name="shop", workflows=[sf.Workflow(name="w", nodes=[script])])))


def test_a_canary_gets_its_share_and_is_promoted(deployer: EmbeddedDeployer) -> None:
    deployer.deploy(Deployment(serving))
    tried = deployer.change("serve", ServiceChange(model="models:/times/2", weight=0.25))
    assert [revision.weight for revision in tried.revisions] == [0.75, 0.25]
    answers = [int(predict(deployer, "serve", [3]).outputs["output"][0]) for _ in range(8)]
    assert sorted(answers) == [3] * 6 + [6] * 2
    promoted = deployer.change("serve", ServiceChange(promote=True))
    assert get_current_version(promoted) == "models:/times/2"
    assert get_current_version(deployer.change("serve", ServiceChange(rollback=True))) == "models:/times/1"
    with pytest.raises(UsageError, match="is already served"):
        deployer.change("serve", ServiceChange(model="models:/times/1"))


def test_a_policy_removes_a_canary_that_fails(deployer: EmbeddedDeployer) -> None:
    deployer.deploy(Deployment(serving))
    policy = CanaryPolicy(metric="errors", after_requests=2)
    change = ServiceChange(model="models:/times/13", shadow=True, policy=policy)
    assert deployer.change("serve", change).policy == policy
    for _ in range(2):
        assert predict(deployer, "serve", [3]).outputs["output"].tolist() == [3]
    assert [revision.role for revision in deployer.service("serve").revisions] == ["current"]
    assert deployer.service("serve").policy is None


def test_a_graph_routes_and_combines(deployer: EmbeddedDeployer, tmp_path: Path) -> None:
    (tmp_path / "nodes.py").write_text(
        "class Route:\n    def route(self, value):\n        return -1 if value[0] > 1 else 0\n"
        "class Add:\n    def __init__(self, by):\n        self.by = by\n"
        "    def predict(self, value, names):\n        return value + self.by\n"
        "class Sum:\n    def aggregate(self, values):\n        return sum(values)\n"
    )
    route = sf.Service(name="route", role="ROUTER", implementation="nodes.py:Route")
    by_one, ten = (sf.Service(name=f"add{by}", implementation="nodes.py:Add", parameters={"by": by}) for by in (1, 10))
    total = sf.Service(name="total", role="COMBINER", implementation="nodes.py:Sum")
    edges = [*(route >> [by_one, ten]), *([by_one, ten] >> total)]
    graph = sf.Workflow(name="graph", type="online", nodes=[route, by_one, ten, total], edges=edges)
    deployer.deploy(Deployment(sf.Application(name="shop", app_dir=str(tmp_path), workflows=[graph])))
    assert predict(deployer, "graph", [1]).outputs["output"].tolist() == [2]
    assert predict(deployer, "graph", [2]).outputs["output"].tolist() == [15]
    assert predict(deployer, "graph", [2], node="add10").outputs["output"].tolist() == [12]


def get_current_version(record: ServiceRecord) -> str:
    assert record.current is not None
    return record.current.models["times"]


def test_a_secret_is_refused_as_what_is_printed_could_not_be_masked(deployer: EmbeddedDeployer) -> None:
    node = square.bind(sf.secret("env:KEY"))
    with pytest.raises(UnsupportedError, match=r"'memory' does not support sf.secret\('env:KEY'\)"):
        deployer.plan(RunRequest(sf.Application(name="a", workflows=[sf.Workflow(name="w", nodes=[node])])))
    service = sf.Service(name="m", implementation="m.py:M", parameters={"key": sf.secret("env:KEY")})
    online = sf.Workflow(name="o", type="online", nodes=[service])
    with pytest.raises(UnsupportedError, match=r"'memory' does not support sf.secret\('env:KEY'\)"):
        deployer.plan(RunRequest(sf.Application(name="a", workflows=[online]), "o"))
