"""``scanflow tune`` around its search: the copy, what is kept and gone on with, and what is said."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import scanflow as sf
from scanflow.application_loading import load_application
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.backends.service_records import Progress, ServiceRecord, Shape
from scanflow.backends.shapes import apply_sizing, compute_shape
from scanflow.errors import InvalidError, NotFoundError, UnavailableError, UsageError
from scanflow.knowledge.memory import MemoryKnowledge
from scanflow.placement.topology import uniform
from scanflow.tuning.candidates import Candidate, describe
from scanflow.tuning.goals import Goal, Measurement
from scanflow.tuning.result import Trial, TuningResult
from scanflow.tuning.service_copy import ServiceCopy, build_copy
from scanflow_client.cli.command_tree import app
from scanflow_client.cli.tune_command import parse_batch_sizes
from scanflow_client.predict_io import HttpRequest
from scanflow_client.service_load import build_load_plan
from scanflow_client.tuning import (
    TRIALS_FILE,
    TUNED_TAG,
    TuningBudget,
    build_cluster_space,
    build_search_space,
    is_remote,
    log_tuning,
    tune_service,
)
from scanflow_client.tuning_report import TuningReport, draw_tuning, format_tuning, suggest_command
from scanflow_client.tuning_target import TuningTarget
from tests.notebooks import render_bundle
from tests.unit.test_load import say, server

APP = """
import scanflow as sf

node = sf.Service(name="cnn", model="models:/cnn@champion", resources=sf.Resources(cpu={cores}))
serving = sf.Serving(port=46790, record=1)
app = sf.Application(
    name="shop", team="t", workflows=[sf.Workflow(name="serve", type="online", nodes=[node], serving=serving)]
)
"""


@dataclass
class Place:
    """A deployer of services that a web server of this test answers for."""

    url: str
    deployed: list[Deployment] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    running: dict[str, ServiceRecord] = field(default_factory=dict)

    def deploy(self, deployment: Deployment, **_: Any) -> ServiceRecord:
        self.deployed.append(deployment)
        shape = compute_shape(deployment.online)
        if deployment.sizing is not None:
            shape = apply_sizing(shape, deployment.sizing)
        name = deployment.online.name
        self.running[name] = ServiceRecord(
            name=name, app="shop", team="t", state="ready", url=self.url, generation=1, shape=shape
        )
        return self.running[name]

    def service(self, name: str) -> ServiceRecord:
        return self.running[name]

    def services(self, **_: Any) -> list[ServiceRecord]:
        return list(self.running.values())

    def delete(self, name: str) -> None:
        self.deleted.append(name)
        if self.running.pop(name, None) is None:
            raise NotFoundError(name)


def request(_name: str) -> HttpRequest:
    return HttpRequest("/infer", b"{}", {})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of two cores, and few pairs."""
    monkeypatch.setattr("scanflow.placement.sysfs.read_topology", lambda: uniform(sockets=1, cores_per_socket=2))
    monkeypatch.setattr("scanflow.tuning.study.FRESH_PAIRS", 1)
    monkeypatch.setattr("scanflow.tuning.study.SEARCH_PAIRS", 1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(APP.format(cores=2))
    return path


def run_tuning(place: Any, file: Path, goal: Goal | None = None, **changes: Any) -> TuningReport:
    target = TuningTarget.find(place, f"{file}:serve")
    budget = TuningBudget(trials=2, minutes=60)
    fields: dict[str, Any] = {"cores": 2, "seconds": 0.05, "connections": 1, **changes}
    return tune_service(place, target, request, goal or Goal(), budget, **fields)


@pytest.mark.processes
def test_a_search_deploys_a_copy_alone_deletes_it_and_keeps_what_it_found(file: Path, tmp_path: Path) -> None:
    seen: list[str] = []
    with server(lambda handler, number: say(handler)) as url:
        place = Place(url.removesuffix("/infer"))
        report = run_tuning(place, file, folder=tmp_path / "out", on_trial=seen.append)
    assert {deployment.online.name for deployment in place.deployed} == {"serve-tune"}
    serving = place.deployed[0].online.serving
    assert serving is not None
    assert (serving.port, serving.record, serving.keep_shape) == (None, 0.0, False)
    assert place.deleted == ["serve-tune"]
    assert len(report.result.trials) == 2
    assert len(seen) == 2
    assert seen[0].startswith("  2 × 1 core, any: ")

    lines = (tmp_path / "out" / TRIALS_FILE).read_text().splitlines()
    assert (json.loads(lines[0])["service"], len(lines)) == ("serve", 3)
    again = Place("http://127.0.0.1:1")
    with pytest.raises(UsageError, match="another search"):
        run_tuning(again, file, folder=tmp_path / "out", goal=Goal(name="cost"))
    assert again.deployed == []


@pytest.mark.processes
def test_trials_of_a_search_that_was_cut_short_are_not_made_again(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "out" / TRIALS_FILE
    with server(lambda handler, number: say(handler)) as url:
        first = run_tuning(Place(url.removesuffix("/infer")), file, folder=tmp_path / "out")
        whole = path.read_text()
        path.write_text(whole + '{"candidate": {"inst')  # it was killed here
        second = run_tuning(Place(url.removesuffix("/infer")), file, folder=tmp_path / "out")
    assert second.result.trials == first.result.trials
    assert path.read_text() == whole, "what is written next has a line of its own"


@pytest.mark.processes
def test_a_service_that_fails_under_load_ends_the_search_and_leaves_no_copy(file: Path) -> None:
    def answer(handler: BaseHTTPRequestHandler, _number: int) -> None:
        say(handler, 503, b"full")

    with server(answer) as url:
        place = Place(url.removesuffix("/infer"))
        with pytest.raises(InvalidError, match=r"requests to the service as it is .* 503: full"):
            run_tuning(place, file)
    assert place.running == {}


@pytest.mark.processes
def test_a_search_ends_when_its_service_is_deleted_and_leaves_no_copy(file: Path) -> None:
    with server(lambda handler, number: say(handler)) as url:
        place = Place(url.removesuffix("/infer"))
        app, _, _ = load_application(str(file))
        place.deploy(Deployment(app, "serve", source=file))

        def delete(_text: str) -> None:
            place.running.pop("serve", None)

        with pytest.raises(UsageError, match="'serve' was deleted, so the search for it has ended"):
            run_tuning(place, file, on_trial=delete)
    assert place.running == {}


@dataclass
class FullPlace(Place):
    """A cluster that has no room for a pod of a whole core."""

    was_deleted: threading.Event = field(default_factory=threading.Event)
    operations: list[str] = field(default_factory=list)

    def deploy(self, deployment: Deployment, **options: Any) -> ServiceRecord:
        record = super().deploy(deployment, **options)
        assert deployment.is_copy
        self.operations.append(f"deploy {record.shape.cores}")
        if record.shape.cores == 1:
            options["observe"](Progress(service=record.name, text="Unschedulable: Insufficient cpu"))
            assert self.was_deleted.wait(20)
            raise NotFoundError("it was deleted meanwhile")
        return record

    def delete(self, name: str) -> None:
        self.operations.append("delete")
        if any(record.shape.cores == 1 for record in self.running.values()):
            self.was_deleted.set()
        super().delete(name)


@pytest.mark.processes
def test_a_candidate_where_the_pods_do_not_start_in_time_has_failed_and_leaves_no_copy(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scanflow.tuning.service_copy.START_S", 0.05)
    app, _, _ = load_application(str(file))
    with server(lambda handler, number: say(handler)) as url:
        place = FullPlace(url.removesuffix("/infer"))
        copy = ServiceCopy(
            where=place,  # type: ignore[arg-type]
            app=build_copy(app, app.workflow("serve")),
            load=lambda record: build_load_plan(record, request(record.name), connections=1),
            seconds=0.05,
            on_cluster=True,
        )
        with copy:
            assert copy.measure(Candidate(instances=1, cores=0.5)).failed == 0
            with pytest.raises(UnavailableError, match=r"not ready within 0\.05 s: Unschedulable: Insufficient cpu"):
                copy.measure(Candidate(instances=1, cores=1.0))
    assert place.operations == ["delete", "deploy 0.5", "delete", "deploy 1.0", "delete", "delete"]
    assert place.running == {}


def make_report(file: Path, **result: Any) -> TuningReport:
    default, best = Candidate(instances=1, cores=2.0), Candidate(instances=2, cores=1.0, affinity="cpu")

    def make_measurements(rate: float, count: int) -> tuple[Measurement, ...]:
        return tuple(
            Measurement(rate=rate + place, p50_s=0.01, p90_s=0.02, p99_s=0.03, requests=90) for place in range(count)
        )

    trial = Trial(candidate=best, default=make_measurements(100, 2), measured=make_measurements(124, 2))
    fresh = Trial(candidate=best, default=make_measurements(100, 6), measured=make_measurements(124, 6))
    fields: dict[str, Any] = {
        "goal": Goal(),
        "default": default,
        "trials": (trial,),
        "best": best,
        "fresh": fresh,
        "alternatives": 5,
    }
    target = TuningTarget.find(Place("http://127.0.0.1:1"), f"{file}:serve")  # type: ignore[arg-type]
    return TuningReport(target=target, result=TuningResult(**{**fields, **result}), cores=2)


def test_what_is_better_is_said_with_its_interval_and_the_command_that_puts_it_to_use(file: Path) -> None:
    report = make_report(file)
    head, table, verdict = format_tuning(report)
    assert head == "serve on 2 cores for requests/s: 1 of 5 other configurations measured."
    assert [row[-1] for row in table.rows] == ["1", "1.24×"]  # type: ignore[union-attr]
    assert verdict == "✓ 2 × 1 core, cpu is better: 1.23× (1.23 to 1.24), measured again."
    assert suggest_command(report) == f"scanflow deploy {file}:serve --instances 2 --cores 1 --affinity cpu"
    assert "✓ 2 × 1 core, cpu" in draw_tuning(report)
    assert "<svg" in render_bundle(report)["text/html"]


def test_what_is_not_better_beyond_noise_is_said_so_and_nothing_is_advised(file: Path) -> None:
    trial = make_report(file).result.fresh
    assert trial is not None
    fresh = replace(trial, measured=tuple(replace(measurement, rate=100.0) for measurement in trial.measured))
    report = make_report(file, fresh=fresh)
    verdict = format_tuning(report)[-1]
    assert isinstance(verdict, str)
    assert verdict.startswith("No difference beyond noise: the best candidate, 2 × 1 core, cpu, is 0.98×")
    assert suggest_command(report) is None


def test_where_nothing_keeps_the_bound_the_nearest_is_said(file: Path) -> None:
    report = make_report(file, goal=Goal(p99_s=0.01))
    message = "✗ No candidate keeps p99 within 10 ms. The nearest is 1 × 2 cores, any, at 3.00 times the bound."
    assert format_tuning(report)[-1] == message
    assert suggest_command(report) is None


def test_a_search_is_kept_as_a_run_and_the_winner_with_the_model_s_version(file: Path, tmp_path: Path) -> None:
    knowledge = MemoryKnowledge()
    (tmp_path / "model.txt").write_text("weights")
    version = knowledge.register_model("cnn", tmp_path / "model.txt", app="shop", team="t")
    knowledge.set_model_alias("cnn", "champion", version.version)
    run = log_tuning(knowledge, tmp_path / "home", make_report(file), "<svg/>")
    assert (run.params["best.instances"], run.metrics["better"]) == ("2", 1.0)
    assert run.metrics["ratio"] == pytest.approx(1.234, abs=0.01)
    tuned_as = json.loads(knowledge.get_model("cnn", version.version).tags[TUNED_TAG])
    assert (tuned_as["instances"], tuned_as["affinity"], tuned_as["run"]) == (2, "cpu", run.run_id)


def test_a_copy_has_capacity_beside_what_runs_or_is_refused(file: Path) -> None:
    machine = uniform(sockets=1, cores_per_socket=2)
    target = TuningTarget.find(Place("http://127.0.0.1:1"), f"{file}:serve")  # type: ignore[arg-type]
    instance: Any = {"instance": "1", "state": "ready", "cores": 1.0, "cpus": [0], "pid": 1}
    other = ServiceRecord.model_validate(
        {"name": "other", "app": "a", "team": "t", "state": "ready", "url": "", "generation": 1}
        | {"shape": Shape(affinity="cpu", cores=1.0), "instances": [instance]}
    )
    space, default = build_search_space(target, machine, [], cores=None, batches=[])
    assert (space.cores, default) == (2, Candidate(instances=1, cores=2.0))
    with pytest.raises(InvalidError, match=r"with 2 cores does not fit: 1 of 2 are free .*\(--cores 1\), or delete"):
        build_search_space(target, machine, [other], cores=None, batches=[])
    full = other.model_copy(update={"instances": (other.instances[0], other.instances[0])})
    with pytest.raises(
        InvalidError, match=r"with 2 cores does not fit: 0 of 2 are free .* For the time of the search, delete or"
    ):
        build_search_space(target, machine, [full], cores=None, batches=[])


def test_less_than_a_core_is_said_to_be_indivisible_and_not_to_be_too_much(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP.format(cores=0.5))
    target = TuningTarget.find(Place("http://127.0.0.1:1"), f"{tmp_path}/app.py:serve")  # type: ignore[arg-type]
    for cores in (1, 2):
        machine = uniform(sockets=1, cores_per_socket=cores)
        with pytest.raises(InvalidError, match=rf"'serve' has less than a core, .*--cores {cores}$"):
            build_search_space(target, machine, [], cores=None, batches=[])


def test_a_copy_s_name_is_its_own() -> None:
    node = sf.Service(name="a", implementation="a.py:A")
    first, second = (sf.Workflow(name=name, type="online", nodes=[node]) for name in ("serve", "serve-tune"))
    app = sf.Application(name="shop", workflows=[first, second])
    with pytest.raises(InvalidError, match="already has a workflow 'serve-tune'"):
        build_copy(app, first)


@pytest.mark.parametrize("text", ["4,x", "0", "4,,8"])
def test_sizes_of_batches_are_numbers(text: str) -> None:
    with pytest.raises(UsageError, match="--batches 4,16"):
        parse_batch_sizes(text)
    assert parse_batch_sizes("16,4") == [4, 16]
    assert parse_batch_sizes(None) == []


def test_what_is_better_is_applied_by_the_one_change_that_resizes_a_service(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed: list[tuple[str, ServiceChange]] = []

    class Resized(Place):
        def change(self, name: str, change: ServiceChange, **_: Any) -> None:
            changed.append((name, change))

    place, report = Resized("http://127.0.0.1:1"), make_report(file)
    record = place.deploy(Deployment(report.target.app, "serve")).model_copy(update={"source": str(file)})
    place.running["serve"] = record
    stale = replace(report, target=replace(report.target, record=record))
    monkeypatch.setattr("scanflow_client.cli.tune_command.open_deployer", lambda: place)
    monkeypatch.setattr("scanflow_client.tuning.tune_service", lambda *_, **__: stale)
    words = ["tune", "serve", "--data", "[[1]]", "--no-log", "--fresh"]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    assert changed == []
    CliRunner().invoke(app, [*words, "--apply"], catch_exceptions=False)
    assert changed == [("serve", ServiceChange(instances=2, cores=1.0, affinity="cpu"))]
    place.running.clear()
    with pytest.raises(UsageError, match="is not deployed"):
        CliRunner().invoke(app, ["tune", f"{file}", "--data", "[[1]]", "--fresh", "--apply"], catch_exceptions=False)


def test_what_is_neither_a_service_nor_a_file_is_reported() -> None:
    with pytest.raises(NotFoundError, match=r"no file 'nosuch'\. There is no service 'nosuch' either"):
        TuningTarget.find(Place("http://127.0.0.1:1"), "nosuch")  # type: ignore[arg-type]


def make_target(file: Path, url: str, *, cores: float | None) -> TuningTarget:
    """Return a service of two instances at an address."""
    place = Place(url)
    target = TuningTarget.find(place, str(file))  # type: ignore[arg-type]
    record = place.deploy(Deployment(target.app, "serve"))
    shape = record.shape.model_copy(update={"instances": 2, "cores": cores})
    return replace(target, record=record.model_copy(update={"shape": shape}))


def test_on_a_cluster_replicas_and_cores_of_pods_are_tried(file: Path) -> None:
    target = make_target(file, "http://10.96.0.9:8080", cores=2.0)
    assert is_remote(target)
    space, default = build_cluster_space(target, cores=None, batches=[])
    assert (default.instances, default.cores) == (2, 2.0)
    cuts = {
        (candidate.instances, candidate.cores, candidate.affinity)
        for candidate in space.whole
        if candidate.threads is None
    }
    assert cuts == {(count, 4 / count, mode) for count in (1, 2, 4) for mode in ("any", "cpu")}
    assert build_cluster_space(target, cores=8, batches=[])[0].cores == 8


def test_on_a_cluster_a_pod_with_a_part_of_a_core_is_not_one_with_the_whole(file: Path) -> None:
    space, default = build_cluster_space(make_target(file, "http://10.96.0.9:8080", cores=0.5), cores=None, batches=[])
    assert (default.instances, default.cores) == (2, 0.5)
    assert [describe(alternative) for alternative in space.list_alternatives(default)] == [
        "1 × 1 core, any",
        "1 × 1 core, cpu",
    ]


def test_on_a_cluster_the_budget_is_to_be_known(file: Path) -> None:
    with pytest.raises(InvalidError, match="The cores for 'serve' are unknown"):
        build_cluster_space(make_target(file, "http://10.96.0.9:8080", cores=None), cores=None, batches=[])
    assert not is_remote(make_target(file, "http://127.0.0.1:1", cores=None))
