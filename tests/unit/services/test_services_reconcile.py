"""What a supervisor does next, and that cutting a service anew never leaves callers without an instance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanflow.backends.local.services.control.channel import Channel
from scanflow.backends.local.services.supervisor.attempts import Template
from scanflow.backends.local.services.supervisor.instance import Instance, Phase
from scanflow.backends.local.services.supervisor.pool import split_grants
from scanflow.backends.local.services.supervisor.reconcile import (
    APPLY_SILENT_S,
    SILENT_S,
    START_S,
    InstanceAction,
    PoolTarget,
    is_settled,
    reconcile,
)
from scanflow.placement.place import Grant

NOW = 1000.0


def make_target(
    count: int = 1, *, spec_hash: str = "a", serves: int = 1, cores: float = 1.0, changing: bool = True
) -> PoolTarget:
    return PoolTarget(spec_hash=spec_hash, count=count, serves=serves, cores=cores, deadline_s=30.0, changing=changing)


def make_instance(
    name: str,
    phase: Phase,
    *,
    spec_hash: str = "a",
    cores: float = 1.0,
    failures: int = 0,
    in_phase_s: float = 0.0,
    silent_s: float = 0.0,
    due_s: float = 0.0,
    applying: bool = False,
    **more: Any,
) -> Instance:
    template = Template(spec_hash, cores, Grant(cpus=(), memory_nodes=()))
    since = NOW - max(in_phase_s, silent_s)
    return Instance(
        name=name,
        template=template,
        path=Path(name),
        phase=phase,
        since=since,
        answered=NOW - silent_s,
        due=NOW + due_s,
        lives=[1.0] * failures,
        channel=cast("Channel", SimpleNamespace(is_awaiting=lambda _: True)) if applying else None,
        **more,
    )


def ready(name: str, *, serves: int = 1, **more: Any) -> Instance:
    return make_instance(name, "ready", was_ready=True, serves=serves, **more)


GONE = make_instance("1", "waiting", due_s=0.4, was_ready=True, failures=2)
OLD = [ready("1", spec_hash="b"), ready("2", spec_hash="b")]


SILENT, LOADING = ready("1", silent_s=SILENT_S + 0.1), ready("1", silent_s=SILENT_S + 0.1, applying=True)
LEAVING = make_instance("1", "draining", spec_hash="b", in_phase_s=61)
USELESS = [make_instance("1", "waiting", was_ready=True), make_instance("2", "starting")]

NEXT: dict[str, tuple[PoolTarget, list[Instance], str]] = {
    "what is missing is started at once": (make_target(3), [], "start 1, start 2, start 3"),
    "names are used again": (make_target(3), [ready("2"), ready("4")], "start 1"),
    "one that ended has a pause": (make_target(), [GONE], ""),
    "and is started again after it": (make_target(), [replace(GONE, due=NOW)], "start 1"),
    "surplus goes, the useless first": (make_target(), [*USELESS, ready("3"), ready("4")], "forget 1, end 2, drain 4"),
    "one that does not answer is killed": (make_target(), [SILENT], "kill 1"),
    "one that loads has more time": (make_target(), [LOADING], ""),
    "but not for ever": (make_target(), [ready("1", silent_s=APPLY_SILENT_S + 1, applying=True)], "kill 1"),
    "one that never gets ready is killed": (
        make_target(),
        [make_instance("1", "starting", in_phase_s=START_S + 1)],
        "kill 1",
    ),
    "one that does not go is ended": (make_target(), [LEAVING, ready("2")], "end 1"),
    "versions are swapped in one instance": (make_target(2, serves=2), [ready("1"), ready("2")], "apply 1"),
    "after the other": (make_target(2, serves=2), [ready("1", applying=True), ready("2")], ""),
    "until all have it": (make_target(2, serves=2), [ready("1", serves=2), ready("2")], "apply 2"),
    "a new cut starts one at a time": (make_target(2), OLD, "start 3"),
    "while the old answer": (make_target(2), [*OLD, make_instance("3", "starting")], ""),
    "old ones go as soon as they are not needed": (make_target(2), [*OLD, ready("3")], "drain 2, start 4"),
    "all at once where that is enough": (make_target(cores=2), [*OLD, ready("3", cores=2)], "drain 2, drain 1"),
    "a change that cannot be is given up": (
        make_target(2),
        [OLD[0], make_instance("3", "failed", failures=1)],
        "give up ",
    ),
    "and one that fails too often": (
        make_target(2),
        [OLD[0], make_instance("3", "waiting", failures=3, due_s=1)],
        "give up ",
    ),
    "but not what is in effect": (
        make_target(changing=False),
        [make_instance("1", "waiting", failures=3, due_s=1)],
        "",
    ),
    "nor what was ready once": (make_target(), [make_instance("1", "waiting", failures=9, was_ready=True)], "start 1"),
}


@pytest.mark.parametrize(("want", "there", "actions"), NEXT.values(), ids=NEXT)
def test_what_is_done_next(want: PoolTarget, there: list[Instance], actions: str) -> None:
    assert ", ".join(f"{action.kind} {action.name}" for action in reconcile(want, there, NOW)) == actions


def test_when_all_is_well_there_is_nothing_to_do() -> None:
    there = [ready("1"), ready("2")]
    assert is_settled(make_target(2), there, NOW)
    for in_phase_s, in_flight, over in ((1.0, 0, False), (3.0, 0, True), (3.0, 1, False)):
        leaving = make_instance("3", "draining", spec_hash="b", in_phase_s=in_phase_s, state={"in_flight": in_flight})
        assert is_settled(make_target(2), [*there, leaving], NOW) is over
    assert reconcile(make_target(2), there, NOW) == []


class SimulatedPool:
    """Instances that do what they are told, in an order that hypothesis chooses."""

    def __init__(self, seen: list[Instance]) -> None:
        self.seen = {each.name: each for each in seen}

    def do(self, want: PoolTarget, action: InstanceAction) -> None:
        match action.kind:
            case "start":
                self.seen[action.name] = make_instance(
                    action.name, "starting", spec_hash=want.spec_hash, cores=want.cores, serves=want.serves
                )
            case "apply":
                self.seen[action.name].serves = want.serves
            case "drain" | "end":
                self.seen[action.name].phase = "draining"
            case "forget":
                del self.seen[action.name]
            case _:
                raise AssertionError(action)

    def happen(self, choice: int) -> None:
        moving = sorted(name for name, each in self.seen.items() if each.phase in {"starting", "draining"})
        if not moving:
            return
        name = moving[choice % len(moving)]
        if self.seen[name].phase == "starting":
            self.seen[name].phase, self.seen[name].was_ready = "ready", True
        else:
            del self.seen[name]

    @property
    def serving(self) -> float:
        return sum(each.cores for each in self.seen.values() if each.phase == "ready")


CUTS = st.tuples(st.integers(1, 6), st.sampled_from([0.5, 1.0, 2.0, 4.0]))


@settings(max_examples=300)
@given(CUTS, CUTS, st.lists(st.integers(0, 10), min_size=60, max_size=60))
def test_resizing_always_leaves_enough_and_always_ends(
    before: tuple[int, float], after: tuple[int, float], order: list[int]
) -> None:
    (old_count, old_cores), (new_count, new_cores) = before, after
    pool = SimulatedPool([ready(str(place + 1), spec_hash="b", cores=old_cores) for place in range(old_count)])
    want = make_target(new_count, spec_hash="a", cores=new_cores)
    least = min(old_count * old_cores, new_count * new_cores)
    for choice in order:
        for action in reconcile(want, list(pool.seen.values()), NOW):
            pool.do(want, action)
            assert pool.serving >= least
        if is_settled(want, list(pool.seen.values()), NOW):
            break
        pool.happen(choice)
        assert any(each.phase == "ready" for each in pool.seen.values())
        assert pool.serving >= least
    else:
        raise AssertionError("it never came to rest")
    assert reconcile(want, list(pool.seen.values()), NOW) == []


def test_instances_that_drain_hold_no_place_of_a_service_that_is_cut_back() -> None:
    phases: list[tuple[Phase, str]] = [
        ("draining", "a"),  # of the cut before the last, which is wanted again
        ("ready", "b"),
        ("starting", "a"),
        ("waiting", "a"),
        ("failed", "b"),
    ]
    others = [make_instance(str(place), phase, spec_hash=spec_hash) for place, (phase, spec_hash) in enumerate(phases)]
    for place, other in enumerate(others):
        other.template = replace(other.template, grant=Grant(cpus=(place,), memory_nodes=()))
    staying, leaving = split_grants(others, "a")
    assert [instance.cpus for instance in staying] == [(2,), (3,)]
    assert [instance.cpus for instance in leaving] == [(0,), (1,)], "of one that has no process nothing is held"
