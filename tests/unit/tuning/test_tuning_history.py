"""What a search left with a model's version is what one of a later version, or of a model like it, begins from."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.service_records import RevisionRecord, ServiceRecord, Shape
from scanflow.errors import UnavailableError
from scanflow.knowledge.memory import MemoryKnowledge
from scanflow.tuning.candidates import Candidate
from scanflow.tuning.goals import Goal
from scanflow.tuning.warm_start import TuningHistory
from scanflow_client.tuning import find_history, log_tuning
from scanflow_client.tuning_history import HISTORY_TAG, TuningHistories, iterate_served_versions
from scanflow_client.tuning_report import format_tuning
from scanflow_client.tuning_target import TuningTarget, apply_served_models
from tests.unit.tuning.test_tuning import APP, make_report

BEST = Candidate(instances=2, cores=1.0, affinity="cpu")
HISTORY = TuningHistory(
    ranking=(BEST, Candidate(instances=1, cores=2.0)), default=Candidate(instances=1, cores=2.0), ratio=1.4, trials=11
)


@pytest.fixture
def knowledge() -> MemoryKnowledge:
    return MemoryKnowledge()


@pytest.fixture
def histories(knowledge: MemoryKnowledge, tmp_path: Path) -> TuningHistories:
    return TuningHistories(knowledge, tmp_path / "home")


@pytest.fixture
def register(knowledge: MemoryKnowledge, tmp_path: Path) -> Callable[..., str]:
    """Return what registers a version of a model of a library and a size, and returns its address."""

    def register(name: str = "cnn", *, flavor: str = "sklearn", size: int = 1000) -> str:
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "MLmodel").write_text(f"flavors:\n  python_function: {{}}\n  {flavor}: {{}}\n")
        (folder / "weights").write_bytes(b"0" * size)
        return knowledge.register_model(name, folder, app="shop", team="t").uri

    return register


def serving(model: str, **more: Any) -> sf.Workflow:
    return sf.Workflow(name="serve", type="online", nodes=[sf.Service(name="cnn", model=model, **more)])


def test_a_later_version_begins_from_what_was_found_for_the_one_before(
    histories: TuningHistories, register: Callable[..., str]
) -> None:
    first, second = register(), register()
    assert histories.find(serving(first), Goal()) is None
    histories.save(serving(first), Goal(), HISTORY, run="r1")
    assert histories.find(serving(second), Goal()) == replace(HISTORY, source="cnn 1")
    histories.save(serving(second), Goal(), replace(HISTORY, trials=9), run="r2")
    results = [histories.find(serving(model), Goal()) for model in (first, second)]
    assert [history and (history.source, history.trials) for history in results] == [("cnn 1", 11), ("cnn 2", 9)]


def test_what_was_found_for_another_goal_or_bound_is_not_begun_from(
    histories: TuningHistories, register: Callable[..., str]
) -> None:
    model = register()
    histories.save(serving(model), Goal(), HISTORY, run="r1")
    assert histories.find(serving(model), Goal(name="latency")) is None
    assert histories.find(serving(model), Goal(p99_s=0.05)) is None


def test_a_model_of_like_size_and_kind_is_begun_from_where_nothing_is_known_of_its_own(
    histories: TuningHistories, register: Callable[..., str]
) -> None:
    large, near, other = register("large", size=90_000), register("near", size=1500), register("other", flavor="keras")
    for trials, model in enumerate((large, near, other), start=10):
        histories.save(serving(model), Goal(), replace(HISTORY, trials=trials), run="r")
    history = histories.find(serving(register("cnn")), Goal())
    assert history is not None
    assert (history.source, history.trials) == ("near 1", 11)
    assert histories.find(serving(register("tiny", size=10)), Goal()) is None


@pytest.mark.parametrize(
    "tag", ["", "[]", "{}", '{"ranking": [], "p99_s": null}', '{"ranking": [{"instances": 0, "cores": 1}]}']
)
def test_another_program_s_tag_of_that_name_is_ignored(
    knowledge: MemoryKnowledge, histories: TuningHistories, register: Callable[..., str], tag: str
) -> None:
    model = register()
    knowledge.set_model_tags("cnn", 1, {f"{HISTORY_TAG}throughput": tag})
    assert histories.find(serving(model), Goal()) is None


def test_a_search_keeps_its_history_and_says_how_many_trials_the_next_saves(
    knowledge: MemoryKnowledge, register: Callable[..., str], tmp_path: Path
) -> None:
    register()
    knowledge.set_model_alias("cnn", "champion", 1)
    file = tmp_path / "app.py"
    file.write_text(APP.format(cores=2))
    report = make_report(file, history=replace(HISTORY, source="cnn 1"), is_history_valid=True)
    run = log_tuning(knowledge, tmp_path / "home", report, "<svg/>")
    assert (run.params["began_from"], run.metrics["saved_trials"]) == ("cnn 1", 10.0)
    message = "Started from the search for cnn 1: 1 trial in place of 11: 10 saved. Search from scratch: --fresh"
    assert message in format_tuning(report)
    assert report.summary()["history"] == {"source": "cnn 1", "valid": True, "trials": 11, "saved_trials": 10}
    record = json.loads(knowledge.get_model("cnn", 1).tags[f"{HISTORY_TAG}throughput"])
    assert (record["ranking"][0], record["trials"], record["kind"]) == (
        {"instances": 2, "cores": 1.0, "affinity": "cpu"},
        11,
        "sklearn",
    )
    failed = log_tuning(knowledge, tmp_path / "home", make_report(file, interrupted=True), "<svg/>")
    assert json.loads(knowledge.get_model("cnn", 1).tags[f"{HISTORY_TAG}throughput"])["run"] != failed.run_id


def test_where_the_earlier_best_is_not_the_best_any_more_it_is_said(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(APP.format(cores=2))
    report = make_report(file, history=replace(HISTORY, source="cnn 1"))
    message = "Started from the search for cnn 1; its best is not best here, so the full space was searched."
    assert message in format_tuning(report)
    assert report.summary()["history"]["valid"] is False
    cut = replace(report.result, history=replace(HISTORY, source="cnn 1", complete=False), is_history_valid=True)
    message = "Started from the search for cnn 1, which was interrupted, so the full space was searched."
    assert message in format_tuning(replace(report, result=cut))


def test_a_copy_has_the_versions_that_the_service_answers_with() -> None:
    shape = Shape(instances=1)
    revision = RevisionRecord(id="2", models={"cnn": "models:/cnn/7"}, weight=1.0)
    record = ServiceRecord(
        name="serve", app="a", team="t", state="ready", url="", generation=2, shape=shape, revisions=(revision,)
    )
    served = apply_served_models(serving("models:/cnn/1"), record)
    assert served.services[0].model == "models:/cnn/7"


def test_without_a_tracker_a_search_begins_from_nothing(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(APP.format(cores=2))

    def knowledge() -> MemoryKnowledge:
        raise UnavailableError("The tracker does not answer.")

    target = make_report(file).target
    assert isinstance(target, TuningTarget)
    assert find_history(knowledge, tmp_path, target, Goal()) is None


def test_a_model_that_is_not_registered_has_no_version(knowledge: MemoryKnowledge) -> None:
    assert list(iterate_served_versions(knowledge, serving("models:/nosuch/1"))) == []
