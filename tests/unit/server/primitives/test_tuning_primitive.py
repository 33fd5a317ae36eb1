"""``tune_workflow`` begins one run of the program that searches, on this machine, for a service that is there."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.backends.run_records import RunRecord
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.errors import InvalidError, NotFoundError, StepFailedError, UnsupportedError, UsageError
from scanflow.names import RunName
from scanflow.outputs import keep_outputs, use_output_dir
from scanflow.settings import Settings
from scanflow.tuning import step
from scanflow.tuning.step import build_tuning_workflow
from tests.unit.server.primitives.primitive_runs import Doing, InlineRuns, Remembered
from tests.unit.standin import Place, StandIn


class BegunRuns(InlineRuns):
    """Runs that are begun and never driven."""

    def __init__(self, deployer: EmbeddedDeployer) -> None:
        super().__init__(deployer)
        self.requests: list[RunRequest] = []
        self.records: dict[str, RunRecord] = {}

    def find_run(self, key: str) -> RunRecord | None:
        return self.records.get(key)

    def begin(self, request: RunRequest, *, key: str) -> RunRecord:
        self.requests.append(request)
        workflow = request.chosen
        record = RunRecord(
            name=RunName(f"run-{len(self.requests)}"),
            app="shop",
            team="tests",
            workflow=workflow.name,
            state="running",
            created=0.0,
        )
        self.records[key] = record
        return record

    def stop(self, run: str, task: str | None = None) -> RunRecord:
        key = next(key for key, record in self.records.items() if record.name == run)
        assert task is None
        self.records[key] = self.records[key].model_copy(update={"state": "stopped"})
        return self.records[key]

    def show(self, run: str) -> RunRecord:
        return next(record for record in self.records.values() if record.name == run)

    def list_newest(self, *, app: str, team: str, workflow: str, limit: int) -> list[RunRecord]:  # noqa: ARG002
        return [record for record in self.records.values() if record.workflow == workflow]


@pytest.fixture
def backend(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path)


@pytest.fixture
def doing(settings: Settings, backend: StandIn) -> Doing:
    node = sf.Service(name="cnn", model="models:/cnn/1", resources=sf.Resources(cpu=1))
    app = sf.Application(name="shop", team="tests", workflows=[sf.Workflow(name="serve", type="online", nodes=[node])])
    doing = Doing(EmbeddedDeployer(settings, backend=Place(settings, backend)), Remembered(app), workflow="serve")
    doing.runs = BegunRuns(doing.deployer)
    return doing


@pytest.fixture
def runs(doing: Doing) -> BegunRuns:
    doing("deploy_workflow", key="deploy")
    assert isinstance(doing.runs, BegunRuns)
    return doing.runs


def test_a_search_is_a_run_of_its_own_and_is_undone_by_stopping_it(doing: Doing, runs: BegunRuns) -> None:
    done = doing("tune_workflow", inputs=[[1, 2]], goal="latency", minutes=5.0)
    assert (done.result["run"], done.result["workflow"]) == ("run-1", "tune-serve")
    (request,) = runs.requests
    assert [workflow.name for workflow in request.application.workflows] == ["tune-serve"]
    (node,) = request.chosen.steps
    assert node.parameters["service"] == "serve"
    assert (node.parameters["goal"], node.timeout_s) == ("latency", 600.0)
    doing("tune_workflow", inputs=[[1, 2]], noted=done.inverse)
    assert len(runs.requests) == 1, "the same key begins one run"
    doing.undo(done)
    assert runs.show("run-1").state == "stopped"
    assert doing("tune_workflow", key="other", inputs=[[1, 2]]).result["run"] == "run-2"


def test_the_kept_application_stays_as_it_is(doing: Doing, runs: BegunRuns) -> None:
    before = doing.applications.revision
    doing("tune_workflow", file="x.npy")
    assert doing.applications.revision == before
    assert runs.requests[0].chosen.steps[0].parameters["file"] == "x.npy"


def test_while_a_search_goes_on_another_is_refused(doing: Doing, runs: BegunRuns) -> None:
    doing("tune_workflow", inputs=[[1]])
    with pytest.raises(UsageError, match=r"is already active: run-1\. Wait for it, or stop it: scanflow stop run-1"):
        doing("tune_workflow", key="other", inputs=[[1]])
    assert len(runs.requests) == 1


def test_a_service_that_is_not_there_is_not_searched_for(doing: Doing) -> None:
    with pytest.raises(NotFoundError, match="'serve'"):
        doing("tune_workflow", inputs=[[1]])


def test_a_service_on_a_cluster_is_refused(doing: Doing, backend: StandIn) -> None:
    backend.url = "http://gateway:80/shop/serve"
    doing("deploy_workflow", key="deploy")
    with pytest.raises(UnsupportedError, match=r"only on the server's machine.*SCANFLOW_BACKEND=local"):
        doing("tune_workflow", inputs=[[1]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "the inputs to send"),
        ({"inputs": [[1]], "file": "x.npy"}, "the inputs to send"),
        ({"inputs": [[1]], "trials": 0}, "trials cannot be 0"),
        ({"inputs": [[1]], "minutes": 1000.0}, "minutes cannot be 1000"),
    ],
)
def test_an_unbounded_search_or_one_with_nothing_to_send_cannot_be_requested(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidError, match=message):
        do.tune_workflow("serve", **arguments)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return what the program was called with; it prints a search that found nothing better."""
    seen: list[tuple[Any, ...]] = []
    outputs = {**dict.fromkeys(step.OUTPUTS), "trials": [1, 2], "winner": None, "service": "serve"}

    def command(service: str, file: str, folder: Path, options: Mapping[str, Any]) -> Sequence[str]:
        seen.append((service, file, folder, options))
        ends = 3 if options["trials"] == 13 else 0
        return [sys.executable, "-c", f"print({json.dumps(outputs)!r}); raise SystemExit({ends})"]

    monkeypatch.setattr(step, "tune_command", command)
    return seen


@pytest.mark.processes
def test_the_step_leaves_what_the_program_found(programs: list[tuple[Any, ...]], tmp_path: Path) -> None:
    outputs: dict[str, Any] = {}
    with use_output_dir(tmp_path), keep_outputs(outputs):
        step.tune(**build_tuning_workflow("serve", inputs=[[1, 2]]).steps[0].parameters)
    assert (outputs["service"], outputs["winner"], outputs["trials"]) == ("serve", None, 2)
    assert Path(programs[0][1]).read_text() == "[[1, 2]]"
    with use_output_dir(tmp_path), keep_outputs(outputs), pytest.raises(StepFailedError, match="exited with code 3"):
        step.tune("serve", file="x.npy", trials=13)


def test_the_program_is_scanflow_tune() -> None:
    command = step.tune_command("serve", "x.npy", Path("out"), {"goal": "cost", "p99": "0.05s", "trials": 3})
    text = " ".join(command[1:])
    assert text == "-m scanflow_client tune serve x.npy --goal cost --p99 0.05s --trials 3 --out out --json"
