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
from tests.unit.server.arbiter.standin import World
from tests.unit.server.arbiter.test_engine import action, trail, wanted
from tests.waiting import until

DATABASES = ["sqlite", "postgresql"]
P95 = "service.serve.p95_s"
GUARD = Guard(metric=P95, worse="higher", by=0.05, within_s=600.0)


@pytest.fixture(params=["failed", "taken back"])
def after_another(request: pytest.FixtureRequest, world: World) -> World:
    """A guarded change from 2 to 4 by ``i1``, and one after it by ``i2``, of which nothing stands."""
    world.metrics[P95] = 0.1
    world.do(wanted("i1", guard=GUARD))
    world.now += 1
    if request.param == "failed":
        world.fail = UsageError("It does not fit.")
    world.do(wanted("i2", 6, strategy="other", priority=1))
    world.fail = None
    if request.param == "taken back":
        assert world.engine.revert("i2", by="ann").state == "reverted"
    assert world.replicas["serve"] == 4
    return world


def test_what_stood_before_it_can_be_taken_back(after_another: World) -> None:
    assert after_another.restarted().revert("i1", by="ann").state == "reverted"
    assert after_another.replicas["serve"] == 2


def test_the_guard_of_what_stood_before_it_still_takes_that_back(after_another: World) -> None:
    after_another.metrics[P95] = 9.0
    after_another.restarted().settle()
    assert (action(after_another, "i1").state, after_another.replicas["serve"]) == ("reverted", 2)


def test_the_field_belongs_again_to_whom_it_did_before_and_to_nobody_when_nothing_stands(after_another: World) -> None:
    after_another.now += 1
    assert after_another.engine.submit(wanted("i3", 7, strategy="third")).winner == "i1"
    assert after_another.engine.submit(wanted("i4", 5)).verdict == "act"
    after_another.engine.settle()
    for id in ("i4", "i1"):
        assert after_another.engine.revert(id, by="ann").state == "reverted"
    assert after_another.engine.submit(wanted("i5", 7, strategy="third")).verdict == "act"


def test_what_stood_before_it_is_not_turned_at_once_by_who_leaves_changes_standing(after_another: World) -> None:
    after_another.now += 1
    decision = after_another.restarted().submit(wanted("i3", 2, hysteresis_s=60))
    assert (decision.verdict, decision.winner) == ("refuse", "i1")


def test_somebody_elses_value_is_still_somebody_elses_after_an_action_that_failed(world: World) -> None:
    world.do(wanted("i1"))
    world.replicas["serve"] = 9
    world.engine.submit(wanted("i2", 5))
    world.fail = UsageError("It does not fit.")
    world.engine.approve("i2", by="ann")
    world.engine.settle()
    assert action(world, "i2").state == "failed"
    reason = world.engine.submit(wanted("i3", 5)).reason
    assert all(text in reason for text in ("it is 9", "last wrote 4"))


def test_what_is_tried_again_later_is_not_done_after_what_comes_after_it(world: World) -> None:
    world.does_not_answer()
    world.do(wanted("i1", 3, strategy="a"))
    assert action(world, "i1").state == "pending"
    world.fail = None
    world.now += 0.5
    decision = world.engine.submit(wanted("i2", 8, strategy="b", priority=10))
    assert (decision.verdict, decision.winner) == ("queue", "i1")
    world.engine.settle()
    assert world.done == [], "the time of neither has come"
    for _ in range(3):
        world.now += 1
        world.engine.settle()
    assert [(key, given["instances"]) for key, given in world.done] == [("intent/i1", 3), ("intent/i2", 8)]


def test_what_is_being_taken_back_is_not_done_after_what_comes_after_it(world: World) -> None:
    world.do(wanted("i1", 3))
    world.does_not_answer()
    world.engine.revert("i1", by="ann", timeout_s=0.0)
    back = action(world, "i1")
    assert (back.state, back.error, back.reverted_by) == ("succeeded", None, "ann"), "it does not stand any more"
    world.fail = None
    assert world.engine.submit(wanted("i2", 8)).winner == "i1"
    for _ in range(3):
        world.now += 1
        world.engine.settle()
    assert (action(world, "i1").state, world.replicas["serve"]) == ("reverted", 8)


def test_what_was_written_into_one_that_was_deleted_is_nothing_to_the_next_of_its_name(world: World) -> None:
    world.since = 900.0
    world.do(wanted("i1"))
    world.replicas["serve"] = 9
    assert world.engine.submit(wanted("i2", 5)).verdict == "refuse"
    world.now, world.since = 1010.0, 1005.0  # deleted, and deployed anew
    assert world.engine.submit(wanted("i3", 5, strategy="other")).verdict == "act"
    world.engine.settle()
    world.replicas["serve"] = 9
    reason = world.engine.submit(wanted("i4", 6, strategy="other")).reason
    assert all(text in reason for text in ("it is 9", "last wrote 5"))


def test_what_could_not_be_taken_back_says_so_and_stands(world: World) -> None:
    world.do(wanted("i1", 3))
    world.fail = UsageError("It does not fit.")
    back = world.engine.revert("i1", by="ann")
    assert (back.state, back.error, back.reverted_by) == ("succeeded", "It does not fit.", None)


def test_a_failed_action_leaves_the_time_for_which_somebody_elses_value_is_left_alone_as_it_was(world: World) -> None:
    world.restarted(foreign_s=100)
    world.do(wanted("i1"))
    world.replicas["serve"] = 9
    assert world.engine.submit(wanted("i2", 5)).retry_at == 1100
    world.now, world.fail = 1050, UsageError("It does not fit.")
    world.engine.approve("i2", by="ann")
    world.engine.settle()
    assert action(world, "i2").state == "failed"
    assert world.engine.submit(wanted("i3", 5)).retry_at == 1100


def test_a_value_that_an_action_which_is_lost_may_have_written_is_nobody_elses(world: World) -> None:
    world.do(wanted("i1", 3))
    world.does_not_answer()
    world.engine.submit(wanted("i2", 8))
    for _ in range(6):
        world.engine.settle()
        world.now += 60
    assert action(world, "i2").state == "lost"
    world.replicas["serve"] = 8
    assert world.engine.submit(wanted("i3", 5)).verdict == "act"


def test_what_cannot_be_measured_is_not_known_and_holds_nothing_up(world: World) -> None:
    def measure(_app: str, metric: str) -> float | None:
        raise OSError(f"{metric} cannot be read")

    world.metrics[P95] = 0.1
    world.restarted().submit(wanted("i1", guard=GUARD))
    world.restarted().settle()
    world.measure = measure  # type: ignore[method-assign]
    with world.restarted() as engine:
        engine.submit(wanted("i2", 3, service="other", guard=GUARD))
        until(lambda: action(world, "i2").state == "succeeded", "it is done")
        engine.submit(wanted("i3", 2, service="other"))
        until(lambda: action(world, "i3").state == "succeeded", "so is the next")
    assert any("which was unknown" in text for text in trail(world, "i2"))
    assert action(world, "i1").state == "succeeded"


def test_what_the_engine_stumbles_over_it_leaves_alone_for_longer_and_longer(world: World) -> None:
    looked: list[float] = []

    def look(_intent: Any) -> dict[str, Any]:
        looked.append(world.now)
        raise OSError("too many open files")

    world.engine.submit(wanted("i1"))
    world.engine.submit(wanted("i2", 3, service="other"))
    world.look = look  # type: ignore[method-assign,assignment]
    world.restarted()
    for _ in range(40):
        world.engine.settle()
        world.now += 0.5
    assert sorted(set(looked)) == [1000.0, 1001.0, 1003.0, 1007.0, 1015.0]
    assert [action(world, id).state for id in ("i1", "i2")] == ["running"] * 2


def test_an_engine_that_cannot_look_or_begin_goes_on_when_it_can(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = [RuntimeError("can't start new thread"), MemoryError(), ValueError("a row that cannot be read")]
    list_due = intent_store.list_due

    def stumble(connection: Any) -> Any:
        if failing:
            raise failing.pop()
        return list_due(connection)

    monkeypatch.setattr(intent_store, "list_due", stumble)
    monkeypatch.setattr("scanflow_server.controller_loop.RETRY_PAUSE_S", 0.01)
    with world.engine:
        world.engine.submit(wanted("i1"))
        until(lambda: action(world, "i1").state == "succeeded", "it goes on")
    assert not failing


def test_a_posted_metric_is_a_number_or_not_known_and_of_its_own_application(store: Store) -> None:
    def told(app: str, value: Any) -> Event:
        return Event(at=1.0, type="metric", app=app, subject="accuracy", data={"value": value})

    context: Any = SimpleNamespace(store=store)
    for value in (10**400, True, "0.5", None):
        with store.write() as connection:
            event_store.append(connection, [told("mnist", value)])
        assert read_posted_metric(context, "mnist", "accuracy", team="t") is None, value
    with store.write() as connection:
        event_store.append(connection, [told("mnist", 0.9), told("shop", 0.1)])
    assert (
        read_posted_metric(context, "mnist", "accuracy", team="t"),
        read_posted_metric(context, "new", "accuracy", team="t"),
    ) == (0.9, None)
    with store.write() as connection:
        event_store.append(connection, [told("", 0.5)])
    assert read_posted_metric(context, "mnist", "accuracy", team="t") == 0.5, "it was posted for whoever wants to know"
