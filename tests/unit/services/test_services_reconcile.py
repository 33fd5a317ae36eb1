"""What a supervisor does next, and that cutting a service anew never leaves callers without an instance."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanflow.backends.local.services.supervisor.reconcile import (
    APPLY_SILENT_S,
    SILENT_S,
    START_S,
    InstanceAction,
    PoolTarget,
    Seen,
    reconcile,
    settled,
)


def wanted(
    count: int = 1, *, spec_hash: str = "a", serves: int = 1, cores: float = 1.0, changing: bool = True
) -> PoolTarget:
    return PoolTarget(spec_hash=spec_hash, count=count, serves=serves, cores=cores, changing=changing)


def ready(name: str, *, spec_hash: str = "a", cores: float = 1.0, serves: int = 1, **more: object) -> Seen:
    made = Seen(name=name, spec_hash=spec_hash, phase="ready", cores=cores, serves=serves, was_ready=True)
    return replace(made, **more)  # type: ignore[arg-type]


def told(want: PoolTarget, *seen: Seen) -> list[tuple[str, str]]:
    return [(action.kind, action.name) for action in reconcile(want, seen)]


def test_what_is_missing_is_started_at_once() -> None:
    assert told(wanted(3)) == [("start", "1"), ("start", "2"), ("start", "3")]


def test_names_are_used_again() -> None:
    assert told(wanted(3), ready("2"), ready("4")) == [("start", "1")]


def test_when_all_is_well_there_is_nothing_to_do() -> None:
    assert told(wanted(2), ready("1"), ready("2")) == []
    assert settled(wanted(2), [ready("1"), ready("2")])


def test_an_instance_that_ended_is_started_again_when_its_pause_is_over() -> None:
    gone = Seen(name="1", spec_hash="a", phase="waiting", due_s=0.4, was_ready=True, failures=2)
    assert told(wanted(), gone) == []
    assert told(wanted(), replace(gone, due_s=0.0)) == [("start", "1")]


def test_surplus_goes_the_useless_first() -> None:
    waiting = Seen(name="1", spec_hash="a", phase="waiting", was_ready=True)
    starting = Seen(name="2", spec_hash="a", phase="starting")
    assert told(wanted(1), waiting, starting, ready("3"), ready("4")) == [("forget", "1"), ("end", "2"), ("drain", "4")]


def test_one_that_does_not_answer_is_killed_and_one_that_loads_has_more_time() -> None:
    assert told(wanted(), ready("1", silent_s=SILENT_S + 0.1)) == [("kill", "1")]
    assert told(wanted(), ready("1", silent_s=SILENT_S + 0.1, applying=True)) == []
    assert told(wanted(), ready("1", silent_s=APPLY_SILENT_S + 1, applying=True))[0] == ("kill", "1")


def test_one_that_never_gets_ready_is_killed() -> None:
    assert told(wanted(), Seen(name="1", spec_hash="a", phase="starting", phase_s=START_S + 1))[0] == ("kill", "1")


def test_one_that_does_not_go_is_ended() -> None:
    assert ("end", "1") in told(wanted(), Seen(name="1", spec_hash="b", phase="draining", phase_s=60), ready("2"))


def test_versions_are_swapped_in_place_one_instance_after_the_other() -> None:
    assert told(wanted(2, serves=2), ready("1"), ready("2")) == [("apply", "1")]
    assert told(wanted(2, serves=2), ready("1", applying=True), ready("2")) == []
    assert told(wanted(2, serves=2), ready("1", serves=2), ready("2")) == [("apply", "2")]


def test_a_new_cut_starts_one_at_a_time_while_the_old_answers() -> None:
    old = [ready("1", spec_hash="b"), ready("2", spec_hash="b")]
    assert told(wanted(2), *old) == [("start", "3")]
    assert told(wanted(2), *old, Seen(name="3", spec_hash="a", phase="starting")) == []


def test_old_ones_go_as_soon_as_they_are_not_needed() -> None:
    old = [ready("1", spec_hash="b"), ready("2", spec_hash="b")]
    assert told(wanted(1, cores=2), *old, ready("3", cores=2)) == [("drain", "2"), ("drain", "1")]
    assert told(wanted(2), *old, ready("3")) == [("drain", "2"), ("start", "4")]


@pytest.mark.parametrize(
    "bad",
    [
        Seen(name="3", spec_hash="a", phase="failed", failures=1),
        Seen(name="3", spec_hash="a", phase="waiting", failures=3, due_s=1),
    ],
)
def test_a_change_that_cannot_be_is_given_up(bad: Seen) -> None:
    assert told(wanted(2), ready("1", spec_hash="b"), bad) == [("give up", "")]
    assert ("give up", "") not in told(wanted(2, changing=False), bad)


def test_one_that_was_ready_once_is_tried_for_ever() -> None:
    gone = Seen(name="1", spec_hash="a", phase="waiting", failures=9, due_s=0, was_ready=True)
    assert told(wanted(), gone) == [("start", "1")]


class World:
    """Instances that do what they are told, in an order that hypothesis chooses."""

    def __init__(self, seen: list[Seen]) -> None:
        self.seen = {one.name: one for one in seen}

    def do(self, want: PoolTarget, action: InstanceAction) -> None:
        match action.kind:
            case "start":
                self.seen[action.name] = Seen(
                    name=action.name, spec_hash=want.spec_hash, phase="starting", cores=want.cores, serves=want.serves
                )
            case "apply":
                self.seen[action.name] = replace(self.seen[action.name], serves=want.serves)
            case "drain" | "end":
                self.seen[action.name] = replace(self.seen[action.name], phase="draining")
            case "forget":
                del self.seen[action.name]
            case _:
                raise AssertionError(action)

    def happen(self, choice: int) -> None:
        moving = sorted(name for name, one in self.seen.items() if one.phase in {"starting", "draining"})
        if not moving:
            return
        name = moving[choice % len(moving)]
        if self.seen[name].phase == "starting":
            self.seen[name] = replace(self.seen[name], phase="ready", was_ready=True)
        else:
            del self.seen[name]

    @property
    def serving(self) -> float:
        return sum(one.cores for one in self.seen.values() if one.phase == "ready")


CUTS = st.tuples(st.integers(1, 6), st.sampled_from([0.5, 1.0, 2.0, 4.0]))


@settings(max_examples=300)
@given(CUTS, CUTS, st.lists(st.integers(0, 10), min_size=60, max_size=60))
def test_cutting_anew_always_leaves_enough_and_always_ends(
    before: tuple[int, float], after: tuple[int, float], order: list[int]
) -> None:
    (old_count, old_cores), (new_count, new_cores) = before, after
    world = World([ready(str(place + 1), spec_hash="b", cores=old_cores) for place in range(old_count)])
    want = wanted(new_count, spec_hash="a", cores=new_cores)
    least = min(old_count * old_cores, new_count * new_cores)
    for choice in order:
        for action in reconcile(want, list(world.seen.values())):
            world.do(want, action)
            assert world.serving >= least
        if settled(want, list(world.seen.values())):
            break
        world.happen(choice)
        assert any(one.phase == "ready" for one in world.seen.values())
        assert world.serving >= least
    else:
        raise AssertionError("it never came to rest")
    assert reconcile(want, list(world.seen.values())) == []
