"""The four built-in agents: what they declare, what they refuse, and the loop they close together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.agent.actions import Call
from scanflow.agent.agent_records import Guard, Intent, Sample
from scanflow.agent.context import Context
from scanflow.agent.decide import DecisionContext, evaluate
from scanflow.errors import InvalidError, UnavailableError, UsageError
from scanflow.knowledge.labelled_points import read_json
from scanflow.plugins import list_plugins
from scanflow_agents.templates import load_declared
from tests.unit.agents.templates.fakes import World


def test_each_template_declares_its_strategies_those_of_table_5_5_and_one_for_streams(world: World) -> None:
    world.parameters["stream"] = {}
    found = {name: sorted(one.name for one in world.load(name).strategies) for name in list_plugins("templates")}
    assert found == {
        "tracker": ["count_number_of_predictions"],
        "checker": ["check_predictions"],
        "planner": ["evaluate_again", "retrain_model", "update_model"],
        "executor": ["change_model_on_approval", "change_model_transition"],
        "stream": ["check_changed_stream"],
    }


@pytest.mark.parametrize("agent", ["tracker", "checker", "planner", "executor", "stream"])
def test_a_sample_without_what_a_built_in_strategy_reads_is_an_error_that_names_it(world: World, agent: str) -> None:
    inputs = {"retune": "on_promotion", "retune_inputs": [[1.0]]}
    placement = {"spread_affinity": "cpu", "target_p95_s": 0.3}
    world.parameters = {"stream": {}, "planner": {**inputs, **placement}}
    sample = Sample(id="s", agent=agent, sensor="any", at=0.0, value={}, cause="c")
    situation = DecisionContext(app="mnist", team="data", at=0.0)
    strategies = world.load(agent).strategies
    errors = {strategy.name: evaluate(strategy, sample, situation).error or "none" for strategy in strategies}
    assert {name for name, error in errors.items() if " needs the field " not in error} == set()


def test_a_tracker_that_has_handed_predictions_over_does_not_at_once_again(world: World) -> None:
    (strategy,) = world.load("tracker").strategies
    value: dict[str, Any] = {"predictions": 2000, "new": 0, "due": False, "run_ids": ["a"], "since": 0.0}
    sample = Sample(id="s", agent="tracker", sensor="any", at=0.0, value=value, cause="c")
    evaluation = evaluate(strategy, sample, DecisionContext(app="mnist", team="data", at=0.0))
    assert (evaluation.held, evaluation.error) == (False, None)


def test_what_one_strategy_of_the_executor_has_put_to_use_the_other_may_replace(world: World) -> None:
    priorities = {one.priority for one in world.load("executor").strategies}
    assert len(priorities) == 1, "of one agent those with one priority above 0 hand a field on"
    assert priorities.pop() > 0


@pytest.mark.parametrize(
    ("agent", "parameters", "said"),
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
def test_wrong_parameters_are_told_when_the_agent_is_loaded(
    world: World, agent: str, parameters: dict[str, Any], said: str
) -> None:
    world.parameters = {agent: parameters}
    with pytest.raises(InvalidError, match=said):
        world.load(agent)


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


def test_the_loop_closes_from_predictions_to_another_champion(world: World) -> None:
    """Algorithm 1, with everything between the agents carried by hand."""
    ids = [world.predicted(600), world.predicted(600)]
    called = world.call("tracker", "count_number_of_predictions")
    [detect] = world.passed_on(called)
    assert isinstance(detect, Intent)
    assert (detect.primitive, detect.target) == ("run_workflow", "workflow/detector")
    assert (detect.cool_down_s, detect.budget, detect.budget_window_s) == (300.0, 24, 86_400.0)
    assert detect.arguments["parameters"] == {"run_ids": ids, "detector": "default"}

    points = [f"{ids[0]}:{number}" for number in range(100)]
    world.detected("calm-otter-1", points, run_ids=ids)
    assert world.fire("checker", "detection_ended") == {
        "detections": [{"run": "calm-otter-1", "drifted": True, "anomalies": 300, "picked": 100, "labelled": 0}],
        "errors": [],
    }
    assert world.fire("checker", "detection_ended") == {"detections": [], "errors": []}
    assert world.passed_on(called) == []
    world.given(points)

    retrain = world.intent("planner", "count_number_of_pickeddata")
    given = retrain.arguments["parameters"]
    assert isinstance(given, dict)
    assert (retrain.target, given["model_uri"]) == ("workflow/training", "models:/mnist_cnn/1")
    assert len(read_json(world.tracker, str(given["labels"]), "labels.json")) == 100

    version = world.retrained("bold-fox-2", 0.81, 0.93, labels=given["labels"])
    change = world.call("planner", "retraining_ended")
    evidence = change.kwargs["evidence"]
    assert change == Call(
        agent="executor",
        sensor="change_model",
        kwargs={"version": version, "run": "bold-fox-2", "evidence": evidence},
        key=change.key,
    )
    [swap] = world.passed_on(change)
    assert isinstance(swap, Intent)
    model = f"models:/mnist_cnn/{version}"
    assert swap.arguments == {"workflow": "serve", "kind": "online", "model": model, "node": "cnn"}
    assert swap.evidence == evidence
    assert swap.guard == Guard(metric="service.serve.errors", worse="higher", by=0.02, within_s=60.0)

    world.control_plane.serves(f"models:/mnist_cnn/{version}")
    world.control_plane.acted(swap)
    assert world.fire("executor", "model_changed")["changes"][0]["verdict"] == "wait"
    assert world.champion() == 1
    world.control_plane.now += 62.0
    assert world.fire("executor", "model_changed")["changes"][0]["verdict"] == "promote"
    assert world.champion() == version
    assert world.tags(version)["scanflow.reference"] == f"runs:/{given['labels']}/labels.json"

    assert world.wants("tracker", "count_number_of_predictions") == []
    assert world.wants("planner", "count_number_of_pickeddata") == []
    assert world.wants("planner", "retraining_ended") == []
    assert world.fire("executor", "model_changed") == {"changes": []}


# -- the tracker


def test_the_tracker_waits_for_enough_predictions_and_forgets_none(world: World) -> None:
    world.tracker.log_run("mnist", "data", metrics={"predictions": 5000.0})
    world.predicted(5000, app="other")
    world.predicted(999)
    assert world.fire("tracker", "count_number_of_predictions")["predictions"] == 999, "only its own that were recorded"
    assert world.wants("tracker", "count_number_of_predictions") == []
    world.predicted(1)
    [found] = world.evaluations("tracker", "count_number_of_predictions")
    assert [words in found.rule for words in ("1000", "least=1000")] == [True, True]
    call = world.call("tracker", "count_number_of_predictions")
    assert (call.agent, call.sensor, call.kwargs["predictions"]) == ("checker", "check_predictions", 1000)
    assert len(call.kwargs["run_ids"]) == 2


def test_the_oldest_files_are_handed_over_and_more_than_is_said_only_where_those_are_not_enough(world: World) -> None:
    world.parameters["tracker"] = {"min_predictions": 20, "most_runs": 4}
    ids = [world.predicted(2) for _ in range(9)]
    found = world.fire("tracker", "count_number_of_predictions")
    assert (found["predictions"], found["due"], found["run_ids"]) == (18, False, ids[:4])
    ids += [world.predicted(2) for _ in range(3)]
    call = world.call("tracker", "count_number_of_predictions")
    assert (call.kwargs["predictions"], call.kwargs["run_ids"]) == (20, ids[:10])
    world.parameters["tracker"]["min_predictions"] = 6
    assert world.call("tracker", "count_number_of_predictions").kwargs["run_ids"] == ids[:4]


def test_the_tracker_counts_by_the_names_of_the_thesis_too(world: World) -> None:
    filter_string = "tags.stage = 'predictor-batch' and metrics.n_predictions > 0"
    world.parameters["tracker"] = {"metric": "n_predictions", "filter_string": filter_string}
    tags = {"stage": "predictor-batch"}
    world.tracker.log_run("mnist", "data", metrics={"n_predictions": 1500.0}, tags=tags)
    world.control_plane.now += 10
    assert world.call("tracker", "count_number_of_predictions").kwargs["predictions"] == 1500


# -- the checker


def test_predictions_are_not_checked_twice(world: World) -> None:
    world.predicted(2000)
    call = world.call("tracker", "count_number_of_predictions")
    assert len(world.passed_on(call)) == 1
    world.detected("calm-otter-1", [], run_ids=call.kwargs["run_ids"], drifted=0)
    world.fire("checker", "detection_ended")
    assert world.passed_on(call) == []
    new = world.predicted(1)
    both = {**call.kwargs, "run_ids": [*call.kwargs["run_ids"], new, "gone"]}
    assert world.intent("checker", "check_predictions", **both).arguments["parameters"] == {
        "run_ids": [new],
        "detector": "default",
    }


def test_nothing_is_checked_while_a_detection_goes_on_and_what_came_waits(world: World) -> None:
    world.predicted(2000)
    world.control_plane.ran("calm-otter-1", "detector", {}, state="running")
    call = world.call("tracker", "count_number_of_predictions")
    assert world.passed_on(call) == []
    assert world.call("tracker", "count_number_of_predictions").kwargs["run_ids"] == call.kwargs["run_ids"]


def detection_fails(world: World, call: Call) -> Intent:
    [intent] = world.passed_on(call)
    assert isinstance(intent, Intent)
    number = len(world.control_plane.records)
    record = world.control_plane.ran(f"calm-otter-{number}", "detector", {}, state="failed")
    world.control_plane.records[-1] = record.model_copy(update={"error": "step 'collect' failed"})
    world.control_plane.acted(intent.model_copy(update={"id": f"i{number}"}), result={"run": record.name})
    return intent


def test_predictions_whose_detections_all_fail_are_set_aside_and_told_and_later_ones_are_looked_at(
    world: World,
) -> None:
    world.parameters["checker"] = {"give_up_after": 3}
    bad = world.predicted(2000)
    call = world.call("tracker", "count_number_of_predictions")
    for failed in range(3):
        found = world.fire("checker", "check_predictions", **call.kwargs)
        assert (found["run_ids"], found["failed"], found["set_aside"]) == ([bad], failed, [])
        detection_fails(world, call)
    later = world.predicted(2000)
    both = {**call.kwargs, "run_ids": [bad, later]}

    found = world.fire("checker", "check_predictions", **both)

    assert (found["run_ids"], found["set_aside"]) == ([later], [bad])
    [told] = [event for event in world.control_plane.told if event.type == "drift.unknown"]
    assert (told.data["tries"], told.data["files"], told.data["error"]) == (3, 1, "step 'collect' failed")
    assert told.data["run"] == "calm-otter-2"
    again = world.call("tracker", "count_number_of_predictions")
    assert again.kwargs["run_ids"] == [later], "it is handed over no more"
    [intent] = world.passed_on(again)
    assert isinstance(intent, Intent)
    assert [event.type for event in world.control_plane.told].count("drift.unknown") == 1
    world.control_plane.records[-1] = world.control_plane.records[-1].model_copy(update={"state": "succeeded"})
    world.control_plane.left["calm-otter-2", "last"] = {"drifted": 0}
    assert [one["run"] for one in world.fire("checker", "detection_ended")["detections"]] == ["calm-otter-2"]


def test_detections_that_were_stopped_or_looked_at_others_are_no_failures_of_these(world: World) -> None:
    world.parameters["checker"] = {"give_up_after": 1}
    old = world.predicted(2000)
    call = world.call("tracker", "count_number_of_predictions")
    detection_fails(world, call)
    world.control_plane.ran("by-hand", "detector", {}, state="failed")
    new = world.predicted(10)
    assert world.fire("checker", "check_predictions", run_ids=[new])["run_ids"] == [new]
    world.control_plane.records[0] = world.control_plane.records[0].model_copy(update={"state": "stopped"})
    assert world.fire("checker", "check_predictions", run_ids=[old])["set_aside"] == []


def test_what_was_picked_says_where_it_is_and_without_drift_nobody_is_asked_to_label(world: World) -> None:
    world.detected("calm-otter-0", ["a", "b"], drifted=0)
    found = world.fire("checker", "detection_ended")
    assert (found["detections"][0]["drifted"], world.control_plane.queue) == (False, {})
    world.detected("calm-otter-1", ["p1:4", "17"])
    world.control_plane.away = True
    with pytest.raises(UnavailableError):
        world.fire("checker", "detection_ended")
    world.control_plane.away = False
    assert world.fire("checker", "detection_ended")["detections"][0]["picked"] == 2, "it is told of them later"
    assert world.fire("checker", "detection_ended")["detections"] == []
    assert list(world.control_plane.queue) == ["p1:4", "calm-otter-1/17"]
    data = world.control_plane.queue["p1:4"]["data"]
    assert (data["file"], data["at"]) == ("picked.npz", 0)
    assert world.tracker.get_run(data["tracked"]).tags["scanflow.run"] == "calm-otter-1"


def test_a_detection_that_says_nothing_keeps_no_other_waiting(world: World) -> None:
    world.control_plane.ran("calm-otter-1", "detector", {})
    world.detected("calm-otter-2", ["p1:4"])
    found = world.fire("checker", "detection_ended")
    assert [one["run"] for one in found["detections"]] == ["calm-otter-2"]
    assert "drifted" in found["errors"][0]


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


def test_a_labeller_is_asked_at_once(world: World) -> None:
    (world.folder / "labels_of_ours.py").write_text(LABELLER)
    world.parameters["checker"] = {"labeller": "labels_of_ours.py:truth"}
    world.detected("calm-otter-1", ["p1:4", "p1:5"])
    assert world.fire("checker", "detection_ended")["detections"][0]["labelled"] == 2
    assert {(one["label"], one["by"]) for one in world.control_plane.queue.values()} == {
        (8, "labeller labels_of_ours.py:truth")
    }
    assert world.fire("checker", "label_picked") == {"wanted": 0, "labelled": 0}


def test_a_labeller_reads_its_secret(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABEL_KEY", "1234567")
    (world.folder / "labels_of_ours.py").write_text(LABELLER)
    own = {"key": sf.secret("env:LABEL_KEY")}
    world.parameters["checker"] = {"labeller": "labels_of_ours.py:paid", "labeller_parameters": own}
    world.detected("calm-otter-1", ["p1:4"])
    assert world.fire("checker", "detection_ended")["detections"][0]["labelled"] == 1
    assert world.control_plane.queue["p1:4"]["label"] == 7


@pytest.mark.parametrize("name", ["broken", "wrong", "listed"])
def test_a_labeller_that_fails_leaves_the_points_to_people(world: World, name: str) -> None:
    (world.folder / "labels_of_ours.py").write_text(LABELLER)
    world.parameters["checker"] = {"labeller": f"labels_of_ours.py:{name}"}
    world.detected("calm-otter-1", ["p1:4"])
    found = world.fire("checker", "detection_ended")
    assert (found["detections"][0]["picked"], len(found["errors"])) == (1, 1)
    assert world.control_plane.queue["p1:4"]["state"] == "wanted"


def test_the_detector_is_told_what_the_new_champion_was_trained_on(world: World) -> None:
    world.parameters["checker"] = {"reference_parameter": "reference", "model_name": "mnist_cnn"}
    asked = {"run_ids": [world.predicted(1)]}
    before = world.intent("checker", "check_predictions", **asked).arguments["parameters"]
    world.tracker.set_model_tags("mnist_cnn", 1, {"scanflow.reference": "runs:/r9/labels.json"})
    after = world.intent("checker", "check_predictions", **asked).arguments["parameters"]
    detector = {"run_ids": asked["run_ids"], "detector": "default"}
    assert (before, after) == (detector, detector | {"reference": "runs:/r9/labels.json"})


def test_an_agent_without_a_server_says_what_it_needs(world: World) -> None:
    context = Context(app="mnist", team="data", agent="checker", clock=lambda: 0.0, tracker=world.tracker)
    with pytest.raises(UsageError, match="scanflow up"):
        world.load("checker").sensor("detection_ended").function(context)
