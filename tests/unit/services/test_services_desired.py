"""What is wanted of a service, kept in its folder: changes, undone changes, and what there is to go back to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scanflow.app.scaling import Scaling
from scanflow.backends.local.services.service_layout import ServiceFolder
from scanflow.backends.local.services.state.desired import read_desired, update_desired
from scanflow.backends.local.services.state.observed import ObservedState, is_equal_ignoring_time
from scanflow.backends.local.services.supervisor.service_report import build_record
from scanflow.backends.service_change import ServiceChange
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_metrics import MetricsWindow
from scanflow.backends.service_records import CanaryPolicy, Shape
from scanflow.backends.service_reports import report
from scanflow.backends.service_spec import ServiceSpec
from scanflow.backends.service_transitions import Recall, apply_change
from scanflow.errors import NotFoundError, UsageError
from scanflow.instance_messages import FoundModel, ModelFiles, Node, Revision
from tests.unit.standin import EXPLANATION
from tests.waiting import wait_until


def files(version: int) -> ModelFiles:
    return ModelFiles(name="digits", version=version, path=f"/models/digits/{version}")


def make_model(version: int, rejection: str) -> FoundModel:
    return FoundModel(name="digits", version=version, path=f"/models/digits/{version}", rejection=rejection)


def definition() -> ServiceSpec:
    node = Node(name="model", model=files(1))
    return ServiceSpec(
        app="shop",
        team="default",
        workflow="w",
        app_dir="/app",
        deployment=1,
        serves=1,
        shape=Shape(),
        revisions=(Revision(id="r1", nodes=(node,)),),
        python=sys.executable,
    )


def make_state() -> DesiredState:
    return DesiredState(name="w", port=46700, created=0.0, definition=definition()).settle()


def complete(_: ServiceSpec, shape: Shape) -> Shape:
    return shape


def versions(stored: DesiredState) -> list[tuple[int, float]]:
    return [(revision.nodes[0].model.version, revision.weight) for revision in stored.definition.revisions]  # type: ignore[union-attr]


def change_state(
    stored: DesiredState, version: int | None = None, *, recall: Recall = lambda *_: None, **fields: Any
) -> DesiredState:
    if version is None:
        return apply_change(stored, ServiceChange(**fields), None, recall, complete)
    change = ServiceChange(model=f"models:/digits/{version}", **fields)
    return apply_change(stored, change, files(version), recall, complete)


@pytest.mark.parametrize("way", [{}, {"weight": 0.1}, {"shadow": True}], ids=str)
def test_a_rejected_version_is_served_by_a_person_who_says_why_alone(way: dict[str, Any]) -> None:
    rejected = make_model(2, "rejected by ada: it is unfair")
    stored, change = make_state(), ServiceChange(model="models:/digits/2", **way)
    with pytest.raises(UsageError, match=r"Version 2 of digits was rejected by ada: it is unfair\. .* --why TEXT"):
        apply_change(stored, change, rejected, lambda *_: None, complete)
    with_reason = change.model_copy(update={"reason": "the audit was wrong"})
    asked = apply_change(stored, with_reason, rejected, lambda *_: None, complete)
    assert asked.definition.revisions[-1].nodes[0].model == files(2), "what is served does not hold the rejection"
    assert asked.definition == apply_change(stored, change, files(2), lambda *_: None, complete).definition


def test_the_canary_of_a_rejected_version_can_be_removed() -> None:
    stored = change_state(make_state(), 2, weight=0.1).settle()
    removal = ServiceChange(model="models:/digits/2", weight=0.0)
    removed = apply_change(stored, removal, make_model(2, "rejected"), lambda *_: None, complete)
    assert versions(removed) == [(1, 1.0)]


def test_a_change_keeps_what_served_until_it_is_in_effect() -> None:
    asked = change_state(make_state(), 2)
    assert (asked.generation, asked.in_effect, versions(asked)) == (2, False, [(2, 1.0)])
    assert asked.fallback == make_state().definition
    settled = asked.settle()
    assert (settled.in_effect, settled.fallback, settled.previous) == (True, None, make_state().definition)


def test_the_record_says_what_a_rollback_would_serve() -> None:
    def list_previous(state: DesiredState) -> dict[str, str]:
        return report(
            state,
            MetricsWindow(0.0),
            state="ready",
            url="",
            grpc=None,
            count=1,
            ready=1,
            instances=(),
            revisions=(),
            problem=None,
        ).previous_models

    second = change_state(make_state(), 2).settle()
    assert (list_previous(make_state()), list_previous(second)) == ({}, {"model": "models:/digits/1"})
    with_canary = change_state(second, 3, weight=0.1).settle()
    assert list_previous(with_canary) == {"model": "models:/digits/2"}, "it removes the canary alone"


def test_a_change_that_cannot_be_is_undone_with_a_generation_of_its_own() -> None:
    undone = change_state(make_state(), 2).give_up("it is broken")
    assert (undone.generation, versions(undone), undone.previous) == (3, [(1, 1.0)], None)
    assert undone.definition.serves == 3  # some instances may have taken generation 2
    assert undone.failed is not None
    assert (undone.failed.generation, undone.failed.reason) == (2, "it is broken")
    assert not undone.hopeless
    recut = change_state(make_state(), instances=4, cores=2).give_up("no cores")
    assert recut.definition == make_state().definition  # the instances that are there stay as they are


def test_a_new_scaling_keeps_the_canary_and_the_instances() -> None:
    before = change_state(make_state(), 2, weight=0.5).settle()
    scaling = Scaling(metric="rps", target=5, min=1, max=4)
    after = change_state(before, scaling=scaling).definition
    assert (after.scaling, after.revisions, after.spec_hash) == (
        scaling,
        before.definition.revisions,
        before.definition.spec_hash,
    )
    off = change_state(before.request_definition(after, replaces=False).settle(), scaling="off", instances=3).definition
    assert (off.scaling, off.shape.instances) == (None, 3)


def test_a_backup_is_named_and_taken_away_without_replacing_an_instance() -> None:
    named = change_state(make_state(), backup="spare")
    assert named.definition.serving.backup == "spare"
    assert named.definition.spec_hash == make_state().definition.spec_hash
    assert change_state(named.settle(), backup="").definition.serving.backup is None


def test_a_first_deployment_that_cannot_be_has_nothing_to_go_back_to() -> None:
    failed = DesiredState(name="w", port=1, created=0.0, definition=definition()).give_up("no such class")
    assert (failed.hopeless, failed.generation, failed.in_effect) == (True, 1, False)


def test_two_changes_one_after_the_other_go_back_to_what_last_served() -> None:
    first = change_state(make_state(), 2)
    second = change_state(first, 3)
    assert versions(second.give_up("broken")) == [(1, 1.0)]
    assert second.settle().previous == make_state().definition


def test_a_canary_gets_its_share_and_the_current_version_the_rest() -> None:
    policy = CanaryPolicy(after_requests=7)
    asked = change_state(make_state(), 2, weight=0.25, policy=policy).settle()
    assert versions(asked) == [(1, 0.75), (2, 0.25)]
    more = change_state(asked, 2, weight=0.5)
    assert versions(more) == [(1, 0.5), (2, 0.5)]
    assert [revision.id for revision in more.definition.revisions] == [
        revision.id for revision in asked.definition.revisions
    ]
    assert more.definition.policy == policy
    assert change_state(asked, 3, weight=0.2).definition.policy is None
    assert versions(change_state(asked, 2, weight=0.0)) == versions(change_state(asked, rollback=True)) == [(1, 1.0)]
    shadow = change_state(make_state(), 2, shadow=True)
    assert versions(shadow) == [(1, 1.0), (2, 1.0)]
    for state, kind in ((asked, "canary"), (shadow, "shadow")):
        name, alone = state.definition.revisions[1].id, change_state(state, rollback=True)
        assert str(state.describe_dropped_canary(alone)).startswith(f"the {kind} {name} is removed: a deployment")
        assert state.describe_dropped_canary(state) is None
    assert make_state().describe_dropped_canary(asked) is None
    assert shadow.definition.revisions[1].shadow


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"version": 2, "weight": 0.0}, UsageError, "already gets no requests"),
        ({"version": 1, "weight": 0.5}, UsageError, "already served by"),
        ({"version": 1}, UsageError, "already served by"),
        ({"promote": True}, UsageError, "has no canary"),
        ({"rollback": True}, UsageError, "'w' has no earlier definition to roll back to"),
        ({"version": 2, "node": "modle"}, NotFoundError, "no node 'modle'"),
    ],
)
def test_what_cannot_be_changed_is_refused(fields: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        change_state(make_state(), **fields)


def test_a_promoted_canary_can_be_rolled_back_and_forth() -> None:
    promoted = change_state(change_state(make_state(), 2, weight=0.5).settle(), promote=True).settle()
    assert versions(promoted) == [(2, 1.0)]
    back = change_state(promoted, rollback=True).settle()
    assert versions(back) == [(1, 1.0)]
    assert versions(change_state(back, rollback=True)) == [(2, 1.0)]


def test_a_rollback_brings_the_shape_of_that_version_back() -> None:
    wide = change_state(make_state(), instances=2, cores=1).settle()
    swapped = change_state(wide, 2).settle()
    narrow = change_state(swapped, instances=1, cores=2).settle()
    assert change_state(narrow, rollback=True).definition.shape == Shape(instances=2, cores=1)
    remembered = {("digits", 1): Shape(instances=3)}
    back = change_state(narrow, rollback=True, recall=lambda name, version: remembered.get((name, version)))
    assert back.definition.shape == Shape(instances=3)


WRITER = """
import sys
from pathlib import Path
from scanflow.backends.local.services.service_layout import ServiceFolder
from scanflow.backends.local.services.state.desired import update_desired
while True:
    update_desired(
        ServiceFolder(Path(sys.argv[1])),
        lambda found: found.request_definition(found.definition, replaces=False).settle(),
    )
"""


@pytest.mark.processes
def test_a_writer_killed_at_any_moment_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    folder = ServiceFolder(tmp_path / "w")
    assert read_desired(folder) is None
    update_desired(folder, lambda _: make_state())
    assert read_desired(folder) == make_state()
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(folder.path)]) as writer:
            enough = generation(folder) + 20
            wait_until(lambda: generation(folder) > enough, "the writer has written")  # noqa: B023
            writer.kill()
        state = update_desired(folder, lambda spec: spec)  # the lock is free, and the file is whole
        assert state is not None
        assert state.in_effect


def generation(folder: ServiceFolder) -> int:
    state = read_desired(folder)
    assert state is not None
    assert state.in_effect
    return state.generation


def test_a_state_is_reported_again_only_where_more_than_time_has_passed(tmp_path: Path) -> None:
    record = build_record(make_state(), ServiceFolder(tmp_path / "w"), count=1)
    state = ObservedState(record=record, explanation=EXPLANATION)

    def is_equal_with(**changes: Any) -> bool:
        return is_equal_ignoring_time(state, state.model_copy(update=changes))

    assert is_equal_with(explanation=EXPLANATION.model_copy(update={"at": 2.0}))
    assert not is_equal_with(explanation=EXPLANATION.model_copy(update={"decision": "add 1"}))
    assert not is_equal_with(explanation=None)
    assert not is_equal_with(by=7)
    assert not is_equal_with(record=record.model_copy(update={"state": "failed"}))


def test_a_service_in_a_home_that_was_moved_has_its_models_and_its_recorder_there(tmp_path: Path) -> None:
    before, now = tmp_path / "before", tmp_path / "now"
    (model := before / "models" / "digits" / "1-abc").mkdir(parents=True)
    node = Node(name="model", model=ModelFiles(name="digits", version=1, path=str(model)))
    spec = definition().model_copy(update={"revisions": (Revision(id="r1", nodes=(node,)),)})
    options = {"home": str(before), "service": "w"}
    recorder = ("python", "-m", "rec", str(before / "services" / "w" / "recorded"), "f:g", json.dumps(options))
    folder = ServiceFolder(before / "services" / "w")
    state = make_state().model_copy(update={"definition": spec, "previous": spec, "recorder": recorder})
    assert update_desired(folder, lambda _: state) == state == read_desired(folder)
    document = json.loads(folder.desired.read_text())
    assert document["definition"]["revisions"][0]["nodes"][0]["model"]["path"] == "models/digits/1-abc"
    before.rename(now)
    moved = read_desired(ServiceFolder(now / "services" / "w"))
    assert moved is not None
    for service_spec in (moved.definition, moved.previous):
        assert service_spec is not None
        assert service_spec.revisions[0].nodes[0].model == ModelFiles(
            name="digits", version=1, path=str(now / "models" / "digits" / "1-abc")
        )
    assert moved.recorder[3:5] == (str(now / "services" / "w" / "recorded"), "f:g")
    assert json.loads(moved.recorder[5]) == {**options, "home": str(now)}
