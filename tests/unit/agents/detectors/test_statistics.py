"""The distributions that detectors test with, against scipy where it is installed, and against what must hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow_agents.detectors.statistics import (
    chi_square_above,
    chi_square_critical,
    exceedances_at_least,
    holm,
    ks_critical,
    ks_distance,
    ks_p_value,
)

FEW = st.lists(st.integers(-5, 5), min_size=1, max_size=30)


def by_definition(one: list[int], other: list[int]) -> float:
    return max(
        abs(sum(x <= at for x in one) / len(one) - sum(x <= at for x in other) / len(other)) for at in one + other
    )


@given(FEW, FEW)
def test_the_ks_distance_is_that_of_its_definition_ties_included(one: list[int], other: list[int]) -> None:
    found = ks_distance(np.array(one, dtype=float), np.array(other, dtype=float))

    assert found == pytest.approx(by_definition(one, other), abs=1e-12)


@given(st.floats(0.001, 0.1), st.integers(20, 5000), st.integers(20, 5000))
def test_the_critical_distance_has_the_p_value_it_was_asked_for(level: float, one: int, other: int) -> None:
    assert ks_p_value(ks_critical(level, one, other), one, other) == pytest.approx(level, rel=1e-3)


def test_p_values_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")

    for freedom in (1, 2, 3, 8, 9, 41):
        for value in (0.1, 1.0, 7.3, 60.0):
            assert chi_square_above(value, freedom) == pytest.approx(float(stats.chi2.sf(value, freedom)), rel=1e-9)
    for count in (0, 3, 12, 80):
        ours = exceedances_at_least(count, 200, 400, 20)
        assert ours == pytest.approx(float(stats.betabinom.sf(count - 1, 200, 20, 381)), rel=1e-8)
    exact = float(stats.ks_2samp(np.arange(300.0), np.arange(300.0) + 40).pvalue)
    assert ks_p_value(40 / 300, 300, 300) == pytest.approx(exact, rel=0.15)


@given(st.floats(1e-6, 0.5), st.integers(1, 60))
def test_the_critical_chi_square_is_the_inverse(level: float, freedom: int) -> None:
    assert chi_square_above(chi_square_critical(level, freedom), freedom) == pytest.approx(level, rel=1e-6)


def test_nothing_is_exceeded_more_often_than_always_and_less_than_never() -> None:
    assert exceedances_at_least(0, 10, 20, 1) == 1.0
    assert exceedances_at_least(11, 10, 20, 1) == 0.0
    assert exceedances_at_least(1, 1, 19, 1) == pytest.approx(1 / 20)
    assert chi_square_above(0.0, 3) == 1.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_is_between_no_correction_and_bonferronis(p_values: list[float]) -> None:
    plain = np.array(p_values)
    adjusted = holm(plain)

    assert (adjusted >= plain).all()
    assert (adjusted <= np.minimum(1, plain * len(plain)) + 1e-15).all()
    assert math.isclose(adjusted.min(), min(1.0, plain.min() * len(plain)))
    order = np.argsort(plain, kind="stable")
    assert (np.diff(adjusted[order]) >= 0).all()
