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
from scanflow.wire import FoundModel, ModelFiles, Node, Revision
from tests.unit.standin import EXPLANATION
from tests.waiting import until


def files(version: int) -> ModelFiles:
    return ModelFiles(name="digits", version=version, path=f"/models/digits/{version}")


def found(version: int, rejection: str) -> FoundModel:
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


def deployed() -> DesiredState:
    return DesiredState(name="w", port=46700, created=0.0, definition=definition()).settle()


def complete(_: ServiceSpec, shape: Shape) -> Shape:
    return shape


def versions(stored: DesiredState) -> list[tuple[int, float]]:
    return [(revision.nodes[0].model.version, revision.weight) for revision in stored.definition.revisions]  # type: ignore[union-attr]


def changed(
    stored: DesiredState, version: int | None = None, *, recall: Recall = lambda *_: None, **fields: Any
) -> DesiredState:
    if version is None:
        return apply_change(stored, ServiceChange(**fields), None, recall, complete)
    change = ServiceChange(model=f"models:/digits/{version}", **fields)
    return apply_change(stored, change, files(version), recall, complete)


@pytest.mark.parametrize("way", [{}, {"weight": 0.1}, {"shadow": True}], ids=str)
def test_a_rejected_version_is_served_by_a_person_who_says_why_alone(way: dict[str, Any]) -> None:
    rejected = found(2, "rejected by ada: it is unfair")
    stored, change = deployed(), ServiceChange(model="models:/digits/2", **way)
    with pytest.raises(UsageError, match=r"Version 2 of digits was rejected by ada: it is unfair\. .* --why TEXT"):
        apply_change(stored, change, rejected, lambda *_: None, complete)
    with_reason = change.model_copy(update={"reason": "the audit was wrong"})
    asked = apply_change(stored, with_reason, rejected, lambda *_: None, complete)
    assert asked.definition.revisions[-1].nodes[0].model == files(2), "what is served does not hold the rejection"
    assert asked.definition == apply_change(stored, change, files(2), lambda *_: None, complete).definition


def test_the_canary_of_a_rejected_version_can_be_removed() -> None:
    stored = changed(deployed(), 2, weight=0.1).settle()
    removal = ServiceChange(model="models:/digits/2", weight=0.0)
    removed = apply_change(stored, removal, found(2, "rejected"), lambda *_: None, complete)
    assert versions(removed) == [(1, 1.0)]


def test_a_change_keeps_what_served_until_it_is_in_effect() -> None:
    asked = changed(deployed(), 2)
    assert (asked.generation, asked.in_effect, versions(asked)) == (2, False, [(2, 1.0)])
    assert asked.fallback == deployed().definition
    settled = asked.settle()
    assert (settled.in_effect, settled.fallback, settled.previous) == (True, None, deployed().definition)


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

    second = changed(deployed(), 2).settle()
    assert (list_previous(deployed()), list_previous(second)) == ({}, {"model": "models:/digits/1"})
    with_canary = changed(second, 3, weight=0.1).settle()
    assert list_previous(with_canary) == {"model": "models:/digits/2"}, "it removes the canary alone"


def test_a_change_that_cannot_be_is_undone_with_a_generation_of_its_own() -> None:
    undone = changed(deployed(), 2).give_up("it is broken")
    assert (undone.generation, versions(undone), undone.previous) == (3, [(1, 1.0)], None)
    assert undone.definition.serves == 3  # some instances may have taken generation 2
    assert undone.failed is not None
    assert (undone.failed.generation, undone.failed.reason) == (2, "it is broken")
    assert not undone.hopeless
    recut = changed(deployed(), instances=4, cores=2).give_up("no cores")
    assert recut.definition == deployed().definition  # the instances that are there stay as they are


def test_a_new_scaling_keeps_the_canary_and_the_instances() -> None:
    before = changed(deployed(), 2, weight=0.5).settle()
    scaling = Scaling(metric="rps", target=5, min=1, max=4)
    after = changed(before, scaling=scaling).definition
    assert (after.scaling, after.revisions, after.spec_hash) == (
        scaling,
        before.definition.revisions,
        before.definition.spec_hash,
    )
    off = changed(before.request_definition(after, replaces=False).settle(), scaling="off", instances=3).definition
    assert (off.scaling, off.shape.instances) == (None, 3)


def test_a_backup_is_named_and_taken_away_without_replacing_an_instance() -> None:
    named = changed(deployed(), backup="spare")
    assert named.definition.serving.backup == "spare"
    assert named.definition.spec_hash == deployed().definition.spec_hash
    assert changed(named.settle(), backup="").definition.serving.backup is None


def test_a_first_deployment_that_cannot_be_has_nothing_to_go_back_to() -> None:
    failed = DesiredState(name="w", port=1, created=0.0, definition=definition()).give_up("no such class")
    assert (failed.hopeless, failed.generation, failed.in_effect) == (True, 1, False)


def test_two_changes_one_after_the_other_go_back_to_what_last_served() -> None:
    first = changed(deployed(), 2)
    second = changed(first, 3)
    assert versions(second.give_up("broken")) == [(1, 1.0)]
    assert second.settle().previous == deployed().definition


def test_a_canary_gets_its_share_and_the_current_version_the_rest() -> None:
    policy = CanaryPolicy(after_requests=7)
    asked = changed(deployed(), 2, weight=0.25, policy=policy).settle()
    assert versions(asked) == [(1, 0.75), (2, 0.25)]
    more = changed(asked, 2, weight=0.5)
    assert versions(more) == [(1, 0.5), (2, 0.5)]
    assert [one.id for one in more.definition.revisions] == [one.id for one in asked.definition.revisions]
    assert more.definition.policy == policy
    assert changed(asked, 3, weight=0.2).definition.policy is None
    assert versions(changed(asked, 2, weight=0.0)) == versions(changed(asked, rollback=True)) == [(1, 1.0)]
    shadow = changed(deployed(), 2, shadow=True)
    assert versions(shadow) == [(1, 1.0), (2, 1.0)]
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
        changed(deployed(), **fields)


def test_a_promoted_canary_can_be_rolled_back_and_forth() -> None:
    promoted = changed(changed(deployed(), 2, weight=0.5).settle(), promote=True).settle()
    assert versions(promoted) == [(2, 1.0)]
    back = changed(promoted, rollback=True).settle()
    assert versions(back) == [(1, 1.0)]
    assert versions(changed(back, rollback=True)) == [(2, 1.0)]


def test_a_rollback_brings_the_shape_of_that_version_back() -> None:
    wide = changed(deployed(), instances=2, cores=1).settle()
    swapped = changed(wide, 2).settle()
    narrow = changed(swapped, instances=1, cores=2).settle()
    assert changed(narrow, rollback=True).definition.shape == Shape(instances=2, cores=1)
    remembered = {("digits", 1): Shape(instances=3)}
    back = changed(narrow, rollback=True, recall=lambda name, version: remembered.get((name, version)))
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
    update_desired(folder, lambda _: deployed())
    assert read_desired(folder) == deployed()
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(folder.path)]) as writer:
            enough = generation(folder) + 20
            until(lambda: generation(folder) > enough, "the writer has written")  # noqa: B023
            writer.kill()
        found = update_desired(folder, lambda found: found)  # the lock is free, and the file is whole
        assert found is not None
        assert found.in_effect


def generation(folder: ServiceFolder) -> int:
    found = read_desired(folder)
    assert found is not None
    assert found.in_effect
    return found.generation


def test_a_state_is_told_again_only_where_more_than_time_has_passed(tmp_path: Path) -> None:
    record = build_record(deployed(), ServiceFolder(tmp_path / "w"), count=1)
    state = ObservedState(record=record, explanation=EXPLANATION)

    def told_with(**changes: Any) -> bool:
        return is_equal_ignoring_time(state, state.model_copy(update=changes))

    assert told_with(explanation=EXPLANATION.model_copy(update={"at": 2.0}))
    assert not told_with(explanation=EXPLANATION.model_copy(update={"decision": "add 1"}))
    assert not told_with(explanation=None)
    assert not told_with(by=7)
    assert not told_with(record=record.model_copy(update={"state": "failed"}))


def test_a_service_in_a_home_that_was_moved_has_its_models_and_its_recorder_there(tmp_path: Path) -> None:
    before, now = tmp_path / "before", tmp_path / "now"
    (model := before / "models" / "digits" / "1-abc").mkdir(parents=True)
    node = Node(name="model", model=ModelFiles(name="digits", version=1, path=str(model)))
    spec = definition().model_copy(update={"revisions": (Revision(id="r1", nodes=(node,)),)})
    options = {"home": str(before), "service": "w"}
    recorder = ("python", "-m", "rec", str(before / "services" / "w" / "recorded"), "f:g", json.dumps(options))
    folder = ServiceFolder(before / "services" / "w")
    state = deployed().model_copy(update={"definition": spec, "previous": spec, "recorder": recorder})
    assert update_desired(folder, lambda _: state) == state == read_desired(folder)
    document = json.loads(folder.desired.read_text())
    assert document["definition"]["revisions"][0]["nodes"][0]["model"]["path"] == "models/digits/1-abc"
    before.rename(now)
    moved = read_desired(ServiceFolder(now / "services" / "w"))
    assert moved is not None
    for one in (moved.definition, moved.previous):
        assert one is not None
        assert one.revisions[0].nodes[0].model == ModelFiles(
            name="digits", version=1, path=str(now / "models" / "digits" / "1-abc")
        )
    assert moved.recorder[3:5] == (str(now / "services" / "w" / "recorded"), "f:g")
    assert json.loads(moved.recorder[5]) == {**options, "home": str(now)}
