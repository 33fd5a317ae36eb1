"""The population stability index of values that repeat: seen whichever way they change, and quiet when they do not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanflow.drift.detectors.port import Floats
from scanflow.drift.detectors.psi import MAJOR, PSI

Column = Callable[[np.random.Generator, int], Floats]


def binary(share: float) -> Column:
    return lambda generator, count: (generator.random(count) < share).astype(float)


def few(generator: np.random.Generator, count: int) -> Floats:
    """Five values, each half as frequent as the one before."""
    return np.minimum(generator.geometric(0.5, count), 5).astype(float)


def mostly_zero(generator: np.random.Generator, count: int) -> Floats:
    return np.where(generator.random(count) < 0.7, 0.0, generator.gamma(2.0, size=count))


def continuous(generator: np.random.Generator, count: int) -> Floats:
    return generator.normal(size=count)


def tenths(generator: np.random.Generator, count: int) -> Floats:
    return np.round(generator.normal(size=count), 1)


def constant(value: float) -> Column:
    return lambda _, count: np.full(count, value)


COLUMNS: dict[str, Column] = {
    "binary, even": binary(0.5),
    "binary, mostly ones": binary(0.95),
    "binary, mostly zeros": binary(0.05),
    "few": few,
    "mostly zero": mostly_zero,
    "tenths": tenths,
    "continuous": continuous,
    "constant": constant(1.0),
}


def index(old: Floats, new: Floats, *, bins: int = 10) -> float:
    return PSI(bins=bins).fit(old[:, None]).score(new[:, None]).statistic


@pytest.mark.parametrize("bins", [2, 3, 20])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (binary(0.95), binary(0.05)),
        (binary(0.05), binary(0.95)),
        (binary(0.6), binary(0.1)),
        (binary(0.4), binary(0.9)),
        (constant(1.0), constant(0.0)),
        (constant(0.0), constant(1.0)),
        (mostly_zero, lambda generator, count: -mostly_zero(generator, count)),
        (mostly_zero, lambda generator, count: generator.gamma(2.0, size=count)),
        (few, lambda generator, count: 6.0 - few(generator, count)),
    ],
)
def test_a_clear_change_is_seen_in_both_directions(before: Column, after: Column, bins: int) -> None:
    generator = np.random.default_rng(0)
    old, new = before(generator, 1000), after(generator, 400)

    for sign in (1.0, -1.0):
        scores = PSI(bins=bins).fit(sign * old[:, None]).score(sign * new[:, None])

        assert scores.drifted
        assert scores.statistic > MAJOR
        assert scores.p_value is not None
        assert scores.p_value < 1e-6


@given(
    kind=st.sampled_from(sorted(COLUMNS)),
    other=st.sampled_from(sorted(COLUMNS)),
    bins=st.integers(2, 12),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60)
def test_a_feature_turned_over_has_the_same_index(kind: str, other: str, bins: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    old, new = COLUMNS[kind](generator, 700), COLUMNS[other](generator, 500)

    plain, turned = index(old, new, bins=bins), index(-old, -new, bins=bins)

    # The few values that lie at an edge are counted to one side or to the other: of major changes, only that they are.
    assert min(plain, turned) > 4 * MAJOR or turned == pytest.approx(plain, rel=0.25, abs=0.1)


@pytest.mark.parametrize("count", [60, 400])
@pytest.mark.parametrize("kind", COLUMNS)
def test_chance_raises_alarms_about_as_often_as_stated(kind: str, count: int) -> None:
    alarms, rounds = 0, 200
    for seed in range(rounds):
        generator = np.random.default_rng(seed)
        detector = PSI(level=0.05, alarm_above=1e-9)  # so that chance alone decides
        fitted = detector.fit(COLUMNS[kind](generator, 800)[:, None])
        alarms += fitted.score(COLUMNS[kind](generator, count)[:, None]).drifted

    assert alarms / rounds <= 0.1  # three standard deviations above 5 %
    if kind == "constant":
        assert alarms == 0
    elif count == 400 and kind != "few":
        assert alarms / rounds >= 0.015


def test_features_of_few_and_of_many_values_are_each_held_to_what_chance_does_to_them() -> None:
    generator = np.random.default_rng(0)
    detector = PSI(level=0.01, alarm_above=1e-9)
    fitted = detector.fit(np.column_stack([column(generator, 800) for column in COLUMNS.values()]))

    alarms = 0
    for seed in range(200):
        generator = np.random.default_rng(seed + 1)
        alarms += fitted.score(np.column_stack([column(generator, 300) for column in COLUMNS.values()])).drifted
    assert alarms <= 8

    changed = np.column_stack([column(generator, 300) for column in COLUMNS.values()])
    changed[:, 0] = binary(0.75)(generator, 300)
    scores = fitted.score(changed)
    assert scores.drifted
    assert scores.by_feature is not None
    assert scores.by_feature.argmax() == 0
    assert scores.statistic == scores.by_feature[0]
