"""The four built-in agents: what they declare, what they refuse, and the loop they close together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.agent.actions import Call
from scanflow.agent.agent_records import Action, Guard, Intent, Sample
from scanflow.agent.context import Context
from scanflow.agent.decide import DecisionContext, evaluate
from scanflow.errors import InvalidError, UnavailableError, UsageError
from scanflow.knowledge.labelled_points import read_json
from scanflow.plugins import list_plugins
from scanflow.text.failures import Failure
from scanflow_agents.templates import load_declared
from scanflow_agents.templates.template_options import find_checked_model
from tests.unit.agents.templates.fakes import LoopHarness


def test_each_template_declares_its_strategies_those_of_table_5_5_and_one_for_streams(harness: LoopHarness) -> None:
    harness.parameters["stream"] = {}
    names_by_template = {
        name: sorted(strategy.name for strategy in harness.load(name).strategies) for name in list_plugins("templates")
    }
    assert names_by_template == {
        "tracker": ["count_number_of_predictions"],
        "checker": ["check_predictions"],
        "planner": ["evaluate_again", "retrain_model", "update_model"],
        "executor": ["change_model_on_approval", "change_model_transition"],
        "stream": ["check_changed_stream"],
    }


@pytest.mark.parametrize("agent", ["tracker", "checker", "planner", "executor", "stream"])
def test_a_sample_without_what_a_built_in_strategy_reads_is_an_error_that_names_it(
    harness: LoopHarness, agent: str
) -> None:
    inputs = {"retune": "on_promotion", "retune_inputs": [[1.0]]}
    placement = {"spread_affinity": "cpu", "target_p95_s": 0.3}
    harness.parameters = {"stream": {}, "planner": {**inputs, **placement}}
    sample = Sample(id="s", agent=agent, sensor="any", at=0.0, value={}, cause="c")
    situation = DecisionContext(app="mnist", team="data", at=0.0)
    strategies = harness.load(agent).strategies
    errors = {strategy.name: evaluate(strategy, sample, situation).error or "none" for strategy in strategies}
    assert {name for name, error in errors.items() if " needs the field " not in error} == set()


def test_a_tracker_that_has_handed_predictions_over_does_not_at_once_again(harness: LoopHarness) -> None:
    (strategy,) = harness.load("tracker").strategies
    value: dict[str, Any] = {"predictions": 2000, "new": 0, "due": False, "run_ids": ["a"], "since": 0.0}
    sample = Sample(id="s", agent="tracker", sensor="any", at=0.0, value=value, cause="c")
    evaluation = evaluate(strategy, sample, DecisionContext(app="mnist", team="data", at=0.0))
    assert (evaluation.held, evaluation.error) == (False, None)


@pytest.mark.parametrize(
    ("models", "counted"),
    [
        ("models:/mnist_cnn/3", True),
        ("models:/other/1,models:/mnist_cnn/2", True),
        ("models:/mnist_cnn_small/3", False),
        ("models:/other/1", False),
        ("", True),
    ],
)
def test_a_tracker_counts_predictions_of_the_model_that_is_checked_for_drift(
    harness: LoopHarness, models: str, counted: bool
) -> None:
    """A service of another model in the same application has data of its own."""
    own = harness.log_predictions(600)
    id = harness.log_predictions(700, **{"scanflow.model_version": models, "scanflow.service": "spare"})
    counts = harness.fire("tracker", "count_number_of_predictions")
    assert counts["run_ids"] == [own, id] if counted else [own]
    assert counts["predictions"] == (1300 if counted else 600)
    harness.parameters = {"spare": {}, "tracker": {"nodes": ["spare"]}}
    named = harness.fire("tracker", "count_number_of_predictions")
    assert named["run_ids"] == [id], "who names a service means it"


def test_the_model_of_a_checker_is_that_of_its_workflow() -> None:
    detectors = [sf.drift.detection(model=model, name=name) for model, name in (("a", "detector"), ("b", "second"))]
    agents = [
        sf.Agent(name="checker", template="checker"),
        sf.Agent(name="other", template="checker", parameters={"detector_workflow": "second"}),
        sf.Agent(name="own", template="checker", parameters={"detector_workflow": "third"}),
    ]
    app = sf.Application(name="two", workflows=detectors, agents=agents)
    names = ("checker", "other", "own", "nobody", "")
    assert [find_checked_model(app, name) for name in names] == ["a", "b", None, None, None]


def test_what_one_strategy_of_the_executor_has_put_to_use_the_other_may_replace(harness: LoopHarness) -> None:
    priorities = {strategy.priority for strategy in harness.load("executor").strategies}
    assert len(priorities) == 1, "of one agent those with one priority above 0 hand a field on"
    assert priorities.pop() > 0


@pytest.mark.parametrize(
    ("agent", "parameters", "message"),
    [
        ("tracker", {"min_prediction": 5}, "Agent 'tracker'.* no parameter 'min_prediction'.*'min_predictions'"),
        ("tracker", {"min_predictions": 0}, "Agent 'tracker'.*min_predictions cannot be 0"),
        ("tracker", {"interval_s": "soon"}, "Agent 'tracker'.*interval_s cannot be 'soon'"),
        ("tracker", {"checker": "cheker"}, "no agent 'cheker'.*Did you mean 'checker'"),
        ("tracker", {"filter_string": "a or b"}, "filter_string"),
        ("checker", {"detector": "psy"}, "no detector 'psy'"),
        ("checker", {"detector_workflow": "detect"}, "no batch workflow 'detect'.*Did you mean 'detector'"),
        ("checker", {"runs_parameter": "runs"}, "has no parameter 'runs'"),
        ("checker", {"labeller": "nobody.py:label"}, "The labeller 'nobody.py:label' cannot be used"),
        ("checker", {"labeller": "nobody"}, "names no function"),
        ("checker", {"reference_parameter": "reference"}, "model_name"),
        ("planner", {"min_gain": -1}, "min_gain"),
        ("planner", {"learn_from": "none"}, "learn_from"),
        ("planner", {"backup_workflow": "serve"}, "cannot be its own backup"),
        ("planner", {"spread_affinity": "apart"}, "spread_affinity"),
        ("planner", {"executor": "nobody"}, "no agent 'nobody'"),
        ("executor", {"service": "server"}, "no online workflow 'server'.*Did you mean 'serve'"),
        ("executor", {"node": "cn"}, "no node 'cn'.*Did you mean 'cnn'"),
        ("executor", {"guard": "luck"}, "guard"),
    ],
)
def test_wrong_parameters_are_reported_when_the_agent_is_loaded(
    harness: LoopHarness, agent: str, parameters: dict[str, Any], message: str
) -> None:
    harness.parameters = {agent: parameters}
    with pytest.raises(InvalidError, match=message):
        harness.load(agent)


def test_an_agent_with_modules_may_have_parameters_for_them(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("")
    other = sf.Agent(name="checker", modules=["own.py"])
    for parameters, fits in (({"colour": "blue"}, True), ({"min_prediction": 5}, False)):
        agent = sf.Agent(name="tracker", template="tracker", modules=["own.py"], parameters=parameters)
        app = sf.Application(name="mnist", team="data", app_dir=tmp_path, agents=[agent, other])
        if fits:
            assert load_declared(app, agent).sensors
        else:
            with pytest.raises(InvalidError, match="min_predictions"):
                load_declared(app, agent)


def test_the_loop_closes_from_predictions_to_another_champion(harness: LoopHarness) -> None:
    """Algorithm 1, with everything between the agents carried by hand."""
    ids = [harness.log_predictions(600), harness.log_predictions(600)]
    called = harness.call("tracker", "count_number_of_predictions")
    [detect] = harness.pass_on(called)
    assert isinstance(detect, Intent)
    assert (detect.primitive, detect.target) == ("run_workflow", "workflow/detector")
    assert (detect.cool_down_s, detect.budget, detect.budget_window_s) == (300.0, 24, 86_400.0)
    assert detect.arguments["parameters"] == {"run_ids": ids, "detector": "default"}

    points = [f"{ids[0]}:{number}" for number in range(100)]
    harness.end_detection("calm-otter-1", points, run_ids=ids)
    assert harness.fire("checker", "detection_ended") == {
        "detections": [{"run": "calm-otter-1", "drifted": True, "anomalies": 300, "picked": 100, "labelled": 0}],
        "errors": [],
    }
    assert harness.fire("checker", "detection_ended") == {"detections": [], "errors": []}
    assert harness.pass_on(called) == []
    harness.give_labels(points)

    retrain = harness.intent("planner", "count_number_of_pickeddata")
    run_parameters = retrain.arguments["parameters"]
    assert isinstance(run_parameters, dict)
    assert (retrain.target, run_parameters["model_uri"]) == ("workflow/training", "models:/mnist_cnn/1")
    assert len(read_json(harness.tracker, str(run_parameters["labels"]), "labels.json")) == 100

    version = harness.end_retraining("bold-fox-2", 0.81, 0.93, labels=run_parameters["labels"])
    change = harness.call("planner", "retraining_ended")
    evidence = change.kwargs["evidence"]
    assert change == Call(
        agent="executor",
        sensor="change_model",
        kwargs={"version": version, "run": "bold-fox-2", "evidence": evidence},
        key=change.key,
    )
    [swap] = harness.pass_on(change)
    assert isinstance(swap, Intent)
    model = f"models:/mnist_cnn/{version}"
    assert swap.arguments == {"workflow": "serve", "kind": "online", "model": model, "node": "cnn"}
    assert swap.evidence == evidence
    assert swap.guard == Guard(metric="service.serve.errors", worse="higher", by=0.02, within_s=60.0)

    harness.control_plane.serves(f"models:/mnist_cnn/{version}")
    harness.control_plane.record_action(swap)
    assert harness.fire("executor", "model_changed")["changes"][0]["verdict"] == "wait"
    assert harness.champion() == 1
    harness.control_plane.now += 62.0
    assert harness.fire("executor", "model_changed")["changes"][0]["verdict"] == "promote"
    assert harness.champion() == version
    assert harness.tags(version)["scanflow.reference"] == f"runs:/{run_parameters['labels']}/labels.json"

    assert harness.wants("tracker", "count_number_of_predictions") == []
    assert harness.wants("planner", "count_number_of_pickeddata") == []
    assert harness.wants("planner", "retraining_ended") == []
    assert harness.fire("executor", "model_changed") == {"changes": []}


# -- the tracker


def test_the_tracker_waits_for_enough_predictions_and_forgets_none(harness: LoopHarness) -> None:
    harness.tracker.log_run("mnist", "data", metrics={"predictions": 5000.0})
    harness.log_predictions(5000, app="other")
    harness.log_predictions(999)
    assert harness.fire("tracker", "count_number_of_predictions")["predictions"] == 999, (
        "only its own that were recorded"
    )
    assert harness.wants("tracker", "count_number_of_predictions") == []
    harness.log_predictions(1)
    [value] = harness.evaluations("tracker", "count_number_of_predictions")
    assert [words in value.rule for words in ("1000", "least=1000")] == [True, True]
    call = harness.call("tracker", "count_number_of_predictions")
    assert (call.agent, call.sensor, call.kwargs["predictions"]) == ("checker", "check_predictions", 1000)
    assert len(call.kwargs["run_ids"]) == 2


def test_the_oldest_files_are_handed_over_and_more_than_is_said_only_where_those_are_not_enough(
    harness: LoopHarness,
) -> None:
    harness.parameters["tracker"] = {"min_predictions": 20, "most_runs": 4}
    ids = [harness.log_predictions(2) for _ in range(9)]
    value = harness.fire("tracker", "count_number_of_predictions")
    assert (value["predictions"], value["due"], value["run_ids"]) == (18, False, ids[:4])
    ids += [harness.log_predictions(2) for _ in range(3)]
    call = harness.call("tracker", "count_number_of_predictions")
    assert (call.kwargs["predictions"], call.kwargs["run_ids"]) == (20, ids[:10])
    harness.parameters["tracker"]["min_predictions"] = 6
    assert harness.call("tracker", "count_number_of_predictions").kwargs["run_ids"] == ids[:4]


def test_the_tracker_counts_by_the_names_of_the_thesis_too(harness: LoopHarness) -> None:
    filter_string = "tags.stage = 'predictor-batch' and metrics.n_predictions > 0"
    harness.parameters["tracker"] = {"metric": "n_predictions", "filter_string": filter_string}
    tags = {"stage": "predictor-batch"}
    harness.tracker.log_run("mnist", "data", metrics={"n_predictions": 1500.0}, tags=tags)
    harness.control_plane.now += 10
    assert harness.call("tracker", "count_number_of_predictions").kwargs["predictions"] == 1500


# -- the checker


def test_predictions_are_not_checked_twice(harness: LoopHarness) -> None:
    harness.log_predictions(2000)
    call = harness.call("tracker", "count_number_of_predictions")
    assert len(harness.pass_on(call)) == 1
    harness.end_detection("calm-otter-1", [], run_ids=call.kwargs["run_ids"], drifted=0)
    harness.fire("checker", "detection_ended")
    assert harness.pass_on(call) == []
    new = harness.log_predictions(1)
    both = {**call.kwargs, "run_ids": [*call.kwargs["run_ids"], new, "gone"]}
    assert harness.intent("checker", "check_predictions", **both).arguments["parameters"] == {
        "run_ids": [new],
        "detector": "default",
    }


def test_predictions_with_a_detection_that_is_noted_while_they_arrive_are_not_checked_twice(
    harness: LoopHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.log_predictions(2000)
    call = harness.call("tracker", "count_number_of_predictions")
    harness.end_detection("calm-otter-1", [], run_ids=call.kwargs["run_ids"], drifted=1)
    read_actions = harness.control_plane.actions

    def end_meanwhile(*args: Any, **kwargs: Any) -> list[Action]:
        """Read the actions, after the other sensor has noted the detection."""
        monkeypatch.undo()
        assert len(harness.fire("checker", "detection_ended")["detections"]) == 1
        return read_actions(*args, **kwargs)

    monkeypatch.setattr(harness.control_plane, "actions", end_meanwhile)
    assert harness.pass_on(call) == []


def test_nothing_is_checked_while_a_detection_goes_on_and_what_came_waits(harness: LoopHarness) -> None:
    harness.log_predictions(2000)
    harness.control_plane.ran("calm-otter-1", "detector", {}, state="running")
    call = harness.call("tracker", "count_number_of_predictions")
    assert harness.pass_on(call) == []
    assert harness.call("tracker", "count_number_of_predictions").kwargs["run_ids"] == call.kwargs["run_ids"]


def detection_fails(harness: LoopHarness, call: Call) -> Intent:
    [intent] = harness.pass_on(call)
    assert isinstance(intent, Intent)
    number = len(harness.control_plane.records)
    record = harness.control_plane.ran(f"calm-otter-{number}", "detector", {}, state="failed")
    failure = Failure(summary="exit 1", cause="KeyError: 'glass'")
    task = record.tasks[0].model_copy(update={"state": "failed", "failure": failure})
    harness.control_plane.records[-1] = record.model_copy(update={"tasks": (task,)})
    harness.control_plane.record_action(intent.model_copy(update={"id": f"i{number}"}), result={"run": record.name})
    return intent


def test_predictions_with_detections_that_all_fail_are_skipped_and_reported_and_later_ones_are_looked_at(
    harness: LoopHarness,
) -> None:
    harness.parameters["checker"] = {"give_up_after": 3}
    bad = harness.log_predictions(2000)
    call = harness.call("tracker", "count_number_of_predictions")
    for failed in range(3):
        value = harness.fire("checker", "check_predictions", **call.kwargs)
        assert (value["run_ids"], value["failed"], value["set_aside"]) == ([bad], failed, [])
        detection_fails(harness, call)
    later = harness.log_predictions(2000)
    both = {**call.kwargs, "run_ids": [bad, later]}

    value = harness.fire("checker", "check_predictions", **both)

    assert (value["run_ids"], value["set_aside"]) == ([later], [bad])
    [report] = [event for event in harness.control_plane.events if event.type == "drift.unknown"]
    assert (report.data["tries"], report.data["files"], report.data["error"]) == (3, 1, "last: KeyError: 'glass'")
    assert report.data["run"] == "calm-otter-2"
    again = harness.call("tracker", "count_number_of_predictions")
    assert again.kwargs["run_ids"] == [later], "it is handed over no more"
    [intent] = harness.pass_on(again)
    assert isinstance(intent, Intent)
    assert [event.type for event in harness.control_plane.events].count("drift.unknown") == 1
    harness.control_plane.records[-1] = harness.control_plane.records[-1].model_copy(update={"state": "succeeded"})
    harness.control_plane.step_outputs["calm-otter-2", "last"] = {"drifted": 0}
    assert [detection["run"] for detection in harness.fire("checker", "detection_ended")["detections"]] == [
        "calm-otter-2"
    ]


def test_detections_that_were_stopped_or_looked_at_others_are_no_failures_of_these(harness: LoopHarness) -> None:
    harness.parameters["checker"] = {"give_up_after": 1}
    old = harness.log_predictions(2000)
    call = harness.call("tracker", "count_number_of_predictions")
    detection_fails(harness, call)
    harness.control_plane.ran("by-hand", "detector", {}, state="failed")
    new = harness.log_predictions(10)
    assert harness.fire("checker", "check_predictions", run_ids=[new])["run_ids"] == [new]
    harness.control_plane.records[0] = harness.control_plane.records[0].model_copy(update={"state": "stopped"})
    assert harness.fire("checker", "check_predictions", run_ids=[old])["set_aside"] == []


def test_what_was_picked_says_where_it_is_and_without_drift_no_labels_are_requested(harness: LoopHarness) -> None:
    harness.end_detection("calm-otter-0", ["a", "b"], drifted=0)
    value = harness.fire("checker", "detection_ended")
    assert (value["detections"][0]["drifted"], harness.control_plane.queue) == (False, {})
    harness.end_detection("calm-otter-1", ["p1:4", "17"])
    harness.control_plane.away = True
    with pytest.raises(UnavailableError):
        harness.fire("checker", "detection_ended")
    harness.control_plane.away = False
    assert harness.fire("checker", "detection_ended")["detections"][0]["picked"] == 2, "it is told of them later"
    assert harness.fire("checker", "detection_ended")["detections"] == []
    assert list(harness.control_plane.queue) == ["p1:4", "calm-otter-1/17"]
    data = harness.control_plane.queue["p1:4"]["data"]
    assert (data["file"], data["at"]) == ("picked.npz", 0)
    assert harness.tracker.get_run(data["tracked"]).tags["scanflow.run"] == "calm-otter-1"


def test_a_detection_that_says_nothing_keeps_no_other_waiting(harness: LoopHarness) -> None:
    harness.control_plane.ran("calm-otter-1", "detector", {})
    harness.end_detection("calm-otter-2", ["p1:4"])
    value = harness.fire("checker", "detection_ended")
    assert [detection["run"] for detection in value["detections"]] == ["calm-otter-2"]
    assert "drifted" in value["errors"][0]


LABELLER = """
def truth(items, context):
    if context.app != "mnist": raise ValueError(context.app)
    return {item["id"]: 8 for item in items if item["guess"] == 3}

def broken(items, context): raise RuntimeError("no truth today")
def wrong(items, context): return {"somebody": 1}
def listed(items, context): return [1]
def paid(items, context):
    key = context.parameters["labeller_parameters"]["key"].read()
    return {item["id"]: len(key) for item in items}
"""


def test_a_labeller_is_called_at_once(harness: LoopHarness) -> None:
    (harness.folder / "labels_of_ours.py").write_text(LABELLER)
    harness.parameters["checker"] = {"labeller": "labels_of_ours.py:truth"}
    harness.end_detection("calm-otter-1", ["p1:4", "p1:5"])
    assert harness.fire("checker", "detection_ended")["detections"][0]["labelled"] == 2
    assert {(item["label"], item["by"]) for item in harness.control_plane.queue.values()} == {
        (8, "labeller labels_of_ours.py:truth")
    }
    assert harness.fire("checker", "label_picked") == {"wanted": 0, "labelled": 0}


def test_a_labeller_reads_its_secret(harness: LoopHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABEL_KEY", "1234567")
    (harness.folder / "labels_of_ours.py").write_text(LABELLER)
    own = {"key": sf.secret("env:LABEL_KEY")}
    harness.parameters["checker"] = {"labeller": "labels_of_ours.py:paid", "labeller_parameters": own}
    harness.end_detection("calm-otter-1", ["p1:4"])
    assert harness.fire("checker", "detection_ended")["detections"][0]["labelled"] == 1
    assert harness.control_plane.queue["p1:4"]["label"] == 7


@pytest.mark.parametrize("name", ["broken", "wrong", "listed"])
def test_a_labeller_that_fails_leaves_the_points_to_people(harness: LoopHarness, name: str) -> None:
    (harness.folder / "labels_of_ours.py").write_text(LABELLER)
    harness.parameters["checker"] = {"labeller": f"labels_of_ours.py:{name}"}
    harness.end_detection("calm-otter-1", ["p1:4"])
    value = harness.fire("checker", "detection_ended")
    assert (value["detections"][0]["picked"], len(value["errors"])) == (1, 1)
    assert harness.control_plane.queue["p1:4"]["state"] == "wanted"


def test_the_detector_learns_what_the_new_champion_was_trained_on(harness: LoopHarness) -> None:
    harness.parameters["checker"] = {"reference_parameter": "reference", "model_name": "mnist_cnn"}
    asked = {"run_ids": [harness.log_predictions(1)]}
    before = harness.intent("checker", "check_predictions", **asked).arguments["parameters"]
    harness.tracker.set_model_tags("mnist_cnn", 1, {"scanflow.reference": "runs:/r9/labels.json"})
    after = harness.intent("checker", "check_predictions", **asked).arguments["parameters"]
    detector = {"run_ids": asked["run_ids"], "detector": "default"}
    assert (before, after) == (detector, detector | {"reference": "runs:/r9/labels.json"})


def test_an_agent_without_a_server_says_what_it_needs(harness: LoopHarness) -> None:
    context = Context(app="mnist", team="data", agent="checker", clock=lambda: 0.0, tracker=harness.tracker)
    with pytest.raises(UsageError, match="scanflow up"):
        harness.load("checker").sensor("detection_ended").function(context)
