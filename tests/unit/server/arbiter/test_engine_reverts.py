"""What stands of several actions on one target, when some fail, are put off or taken back; what the engine survives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from scanflow.agent.agent_records import Event, Guard
from scanflow.errors import UsageError
from scanflow_server.arbiter.engine_assembly import read_posted_metric
from scanflow_server.store import event_store, intent_store
from scanflow_server.store.base import Store
from tests.unit.server.arbiter.arbiter_harness import ArbiterHarness
from tests.unit.server.arbiter.test_arbiter_engine import action, make_intent, trail
from tests.waiting import wait_until

DATABASES = ["sqlite", "postgresql"]
P95 = "service.serve.p95_s"
GUARD = Guard(metric=P95, worse="higher", by=0.05, within_s=600.0)


@pytest.fixture(params=["failed", "taken back"])
def harness_after_two(request: pytest.FixtureRequest, harness: ArbiterHarness) -> ArbiterHarness:
    """A guarded change from 2 to 4 by ``i1``, and one after it by ``i2``, of which nothing stands."""
    harness.metrics[P95] = 0.1
    harness.do(make_intent("i1", guard=GUARD))
    harness.now += 1
    if request.param == "failed":
        harness.fail = UsageError("It does not fit.")
    harness.do(make_intent("i2", 6, strategy="other", priority=1))
    harness.fail = None
    if request.param == "taken back":
        assert harness.engine.revert("i2", by="ann").state == "reverted"
    assert harness.replicas["serve"] == 4
    return harness


def test_what_stood_before_it_can_be_taken_back(harness_after_two: ArbiterHarness) -> None:
    assert harness_after_two.restart().revert("i1", by="ann").state == "reverted"
    assert harness_after_two.replicas["serve"] == 2


def test_the_guard_of_what_stood_before_it_still_takes_that_back(harness_after_two: ArbiterHarness) -> None:
    harness_after_two.metrics[P95] = 9.0
    harness_after_two.restart().settle()
    assert (action(harness_after_two, "i1").state, harness_after_two.replicas["serve"]) == ("reverted", 2)


def test_the_field_belongs_again_to_whom_it_did_before_and_to_nobody_when_nothing_stands(
    harness_after_two: ArbiterHarness,
) -> None:
    harness_after_two.now += 1
    assert harness_after_two.engine.submit(make_intent("i3", 7, strategy="third")).winner == "i1"
    assert harness_after_two.engine.submit(make_intent("i4", 5)).verdict == "act"
    harness_after_two.engine.settle()
    for id in ("i4", "i1"):
        assert harness_after_two.engine.revert(id, by="ann").state == "reverted"
    assert harness_after_two.engine.submit(make_intent("i5", 7, strategy="third")).verdict == "act"


def test_what_stood_before_it_is_not_turned_at_once_by_who_leaves_changes_in_place(
    harness_after_two: ArbiterHarness,
) -> None:
    harness_after_two.now += 1
    decision = harness_after_two.restart().submit(make_intent("i3", 2, hysteresis_s=60))
    assert (decision.verdict, decision.winner) == ("refuse", "i1")


def test_a_foreign_value_is_still_foreign_after_an_action_that_failed(harness: ArbiterHarness) -> None:
    harness.do(make_intent("i1"))
    harness.replicas["serve"] = 9
    harness.engine.submit(make_intent("i2", 5))
    harness.fail = UsageError("It does not fit.")
    harness.engine.approve("i2", by="ann")
    harness.engine.settle()
    assert action(harness, "i2").state == "failed"
    reason = harness.engine.submit(make_intent("i3", 5)).reason
    assert all(text in reason for text in ("it is 9", "last wrote 4"))


def test_what_is_tried_again_later_is_not_done_after_what_comes_after_it(harness: ArbiterHarness) -> None:
    harness.does_not_answer()
    harness.do(make_intent("i1", 3, strategy="a"))
    assert action(harness, "i1").state == "pending"
    harness.fail = None
    harness.now += 0.5
    decision = harness.engine.submit(make_intent("i2", 8, strategy="b", priority=10))
    assert (decision.verdict, decision.winner) == ("queue", "i1")
    harness.engine.settle()
    assert harness.done == [], "the time of neither has come"
    for _ in range(3):
        harness.now += 1
        harness.engine.settle()
    assert [(key, arguments["instances"]) for key, arguments in harness.done] == [("intent/i1", 3), ("intent/i2", 8)]


def test_what_is_being_taken_back_is_not_done_after_what_comes_after_it(harness: ArbiterHarness) -> None:
    harness.do(make_intent("i1", 3))
    harness.does_not_answer()
    harness.engine.revert("i1", by="ann", timeout_s=0.0)
    back = action(harness, "i1")
    assert (back.state, back.error, back.reverted_by) == ("succeeded", None, "ann"), "it does not stand any more"
    harness.fail = None
    assert harness.engine.submit(make_intent("i2", 8)).winner == "i1"
    for _ in range(3):
        harness.now += 1
        harness.engine.settle()
    assert (action(harness, "i1").state, harness.replicas["serve"]) == ("reverted", 8)


def test_what_was_written_into_one_that_was_deleted_is_nothing_to_the_next_of_its_name(harness: ArbiterHarness) -> None:
    harness.since = 900.0
    harness.do(make_intent("i1"))
    harness.replicas["serve"] = 9
    assert harness.engine.submit(make_intent("i2", 5)).verdict == "refuse"
    harness.now, harness.since = 1010.0, 1005.0  # deleted, and deployed anew
    assert harness.engine.submit(make_intent("i3", 5, strategy="other")).verdict == "act"
    harness.engine.settle()
    harness.replicas["serve"] = 9
    reason = harness.engine.submit(make_intent("i4", 6, strategy="other")).reason
    assert all(text in reason for text in ("it is 9", "last wrote 5"))


def test_what_could_not_be_taken_back_says_so_and_stands(harness: ArbiterHarness) -> None:
    harness.do(make_intent("i1", 3))
    harness.fail = UsageError("It does not fit.")
    back = harness.engine.revert("i1", by="ann")
    assert (back.state, back.error, back.reverted_by) == ("succeeded", "It does not fit.", None)


def test_a_failed_action_leaves_the_time_for_which_a_foreign_value_is_left_alone_as_it_was(
    harness: ArbiterHarness,
) -> None:
    harness.restart(foreign_s=100)
    harness.do(make_intent("i1"))
    harness.replicas["serve"] = 9
    assert harness.engine.submit(make_intent("i2", 5)).retry_at == 1100
    harness.now, harness.fail = 1050, UsageError("It does not fit.")
    harness.engine.approve("i2", by="ann")
    harness.engine.settle()
    assert action(harness, "i2").state == "failed"
    assert harness.engine.submit(make_intent("i3", 5)).retry_at == 1100


def test_a_value_that_an_action_which_is_lost_may_have_written_is_nobody_elses(harness: ArbiterHarness) -> None:
    harness.do(make_intent("i1", 3))
    harness.does_not_answer()
    harness.engine.submit(make_intent("i2", 8))
    for _ in range(6):
        harness.engine.settle()
        harness.now += 60
    assert action(harness, "i2").state == "lost"
    harness.replicas["serve"] = 8
    assert harness.engine.submit(make_intent("i3", 5)).verdict == "act"


def test_what_cannot_be_measured_is_not_known_and_holds_nothing_up(harness: ArbiterHarness) -> None:
    def measure(_app: str, metric: str) -> float | None:
        raise OSError(f"{metric} cannot be read")

    harness.metrics[P95] = 0.1
    harness.restart().submit(make_intent("i1", guard=GUARD))
    harness.restart().settle()
    harness.measure = measure  # type: ignore[method-assign]
    with harness.restart() as engine:
        engine.submit(make_intent("i2", 3, service="other", guard=GUARD))
        wait_until(lambda: action(harness, "i2").state == "succeeded", "it is done")
        engine.submit(make_intent("i3", 2, service="other"))
        wait_until(lambda: action(harness, "i3").state == "succeeded", "so is the next")
    assert any("which was unknown" in text for text in trail(harness, "i2"))
    assert action(harness, "i1").state == "succeeded"


def test_what_the_engine_stumbles_over_it_leaves_alone_for_longer_and_longer(harness: ArbiterHarness) -> None:
    looked: list[float] = []

    def look(_intent: Any) -> dict[str, Any]:
        looked.append(harness.now)
        raise OSError("too many open files")

    harness.engine.submit(make_intent("i1"))
    harness.engine.submit(make_intent("i2", 3, service="other"))
    harness.look = look  # type: ignore[method-assign,assignment]
    harness.restart()
    for _ in range(40):
        harness.engine.settle()
        harness.now += 0.5
    assert sorted(set(looked)) == [1000.0, 1001.0, 1003.0, 1007.0, 1015.0]
    assert [action(harness, id).state for id in ("i1", "i2")] == ["running"] * 2


def test_an_engine_that_cannot_look_or_begin_goes_on_when_it_can(
    harness: ArbiterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = [RuntimeError("can't start new thread"), MemoryError(), ValueError("a row that cannot be read")]
    list_due = intent_store.list_due

    def stumble(connection: Any) -> Any:
        if failing:
            raise failing.pop()
        return list_due(connection)

    monkeypatch.setattr(intent_store, "list_due", stumble)
    monkeypatch.setattr("scanflow_server.controller_loop.RETRY_PAUSE_S", 0.01)
    with harness.engine:
        harness.engine.submit(make_intent("i1"))
        wait_until(lambda: action(harness, "i1").state == "succeeded", "it goes on")
    assert not failing


def test_a_posted_metric_is_a_number_or_not_known_and_of_its_own_application(store: Store) -> None:
    def make_metric_event(app: str, value: Any) -> Event:
        return Event(at=1.0, type="metric", app=app, subject="accuracy", data={"value": value})

    context: Any = SimpleNamespace(store=store)
    for value in (10**400, True, "0.5", None):
        with store.write() as connection:
            event_store.append(connection, [make_metric_event("mnist", value)])
        assert read_posted_metric(context, "mnist", "accuracy", team="t") is None, value
    with store.write() as connection:
        event_store.append(connection, [make_metric_event("mnist", 0.9), make_metric_event("shop", 0.1)])
    assert (
        read_posted_metric(context, "mnist", "accuracy", team="t"),
        read_posted_metric(context, "new", "accuracy", team="t"),
    ) == (0.9, None)
    with store.write() as connection:
        event_store.append(connection, [make_metric_event("", 0.5)])
    assert read_posted_metric(context, "mnist", "accuracy", team="t") == 0.5, "it was posted for whoever wants to know"
