"""A strategy is its limits: cool-down, budget, autonomy and priority hold whatever ``then`` is.

What is done is exactly what the limits allow, the journal has a reason for the rest, people are told once of what stays
the same, and a replay does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import pytest
from hypothesis import example, given, seed, settings
from hypothesis import strategies as st

from scanflow_server.store.base import Store, open_store
from scanflow_server.store.migrations import migrate
from tests.laws.limited_strategies import THEN, Done, Limited, Simulation, explain_refusal
from tests.laws.strategies import SEEDED

_NUMBERS = count(1)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path_factory.mktemp('limits') / 'store.db'}")
    migrate(opened)
    yield opened
    opened.close()


@st.composite
def limited_strategies(draw: st.DrawFn) -> tuple[Limited, ...]:
    return tuple(
        Limited(
            name=f"s{number}",
            then=tuple(
                draw(
                    st.lists(st.sampled_from([*sorted(THEN), *["primitive on a service"] * 3]), min_size=1, max_size=2)
                )
            ),
            autonomy=draw(st.sampled_from(["auto", "auto", "auto", "approve", "suggest", "observe"])),
            cool_down=draw(st.sampled_from([0.0, 0.0, 4.0, 30.0])),
            budget=draw(st.sampled_from([None, None, 1, 3])),
            window=draw(st.sampled_from([5.0, 25.0])),
            priority=draw(st.sampled_from([0, 0, 5, 9])),
        )
        for number in range(draw(st.integers(1, 2)))
    )


SERIES = st.lists(st.tuples(st.integers(1, 9), st.sampled_from([1, 1, 1, 0])), min_size=1, max_size=8)
"""Seconds until the next sample, and its value: the rules hold above 0."""


def check(store: Store, strategies: Sequence[Limited], series: Sequence[tuple[int, int]], restart: int) -> None:
    simulation = Simulation(store, f"app{next(_NUMBERS)}", strategies)
    owner: Limited | None = None
    for number, (seconds, value) in enumerate(series):
        simulation.now += seconds
        if number == restart:
            simulation.start()
        before = list(simulation.done)
        actual = simulation.fire(value)
        reasons = simulation.list_reasons(simulation.samples[-1])
        for limited in strategies:
            expected, refused, unanswered = [], 0, 0
            for form in limited.then if value else ():
                for target in THEN[form][1]:
                    rival = owner if target == "service/serve" else None
                    why = explain_refusal(limited, target, simulation.now, before, rival, unanswered)
                    if why is None:
                        expected.append(target)
                        before.append(Done(simulation.now, limited.name, target))
                        owner = limited if target == "service/serve" else owner
                        continue
                    refused += 1
                    unanswered += target.startswith(("workflow/", "service/"))
                    if target.startswith("function/"):
                        break  # it was not called, so it requests nothing
            assert [act.target for act in actual if act.strategy == limited.name] == expected, (limited, number)
            assert reasons.get(limited.name, 0) == refused, (limited, number)
    events = simulation.list_decisions()
    for which in {row[:2] for row in events}:
        rows = [row for row in events if row[:2] == which]
        acts = sum(row[2] == "act" for row in rows)
        kinds = len({row[2:] for row in rows if row[2] != "act"})
        assert len(rows) - acts <= kinds * (acts + 1), f"people are told again of what stayed the same: {rows}"
    assert simulation.replay() == ([], []), "a replay acts, or decides otherwise"


def make_rivals(*priorities: int) -> tuple[Limited, ...]:
    return tuple(
        Limited(f"s{number}", ("primitive on a service",), "auto", 0.0, None, 5.0, priority)
        for number, priority in enumerate(priorities)
    )


@settings(SEEDED, max_examples=80)
@example(strategies=make_rivals(0, 0), series=[(1, 1), (1, 1)], restart=0)
@example(strategies=make_rivals(5, 0), series=[(1, 1), (1, 1)], restart=0)
@example(strategies=make_rivals(0, 5), series=[(1, 1), (1, 1)], restart=0)
@example(strategies=make_rivals(5, 5), series=[(1, 1), (1, 1)], restart=0)
@given(strategies=limited_strategies(), series=SERIES, restart=st.integers(0, 7))
def test_a_strategy_is_its_limits(
    store: Store, strategies: tuple[Limited, ...], series: list[tuple[int, int]], restart: int
) -> None:
    check(store, strategies, series, restart)


@pytest.mark.slow
def test_four_hundred_strategies_are_their_limits(store: Store) -> None:
    @seed(11)
    @settings(SEEDED, derandomize=False, max_examples=400)
    @given(strategies=limited_strategies(), series=SERIES, restart=st.integers(0, 7))
    def hold(strategies: tuple[Limited, ...], series: list[tuple[int, int]], restart: int) -> None:
        check(store, strategies, series, restart)

    hold()
