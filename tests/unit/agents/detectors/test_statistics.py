"""The tests that detectors use: what must hold of them at the edges, and what scipy does not have."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow_agents.detectors.statistics import chi_square, chi_square_critical, exceedances_at_least, holm, ks


@pytest.mark.parametrize(("new", "old"), [(1, 20), (30, 30), (400, 2500)])
def test_the_critical_ks_distance_parts_the_p_values(new: int, old: int) -> None:
    generator = np.random.default_rng(0)
    distances, p_values, critical = ks(
        generator.normal(size=(new, 40)), generator.normal(size=(old, 40)) + np.linspace(0, 1, 40), 0.01
    )

    assert distances.shape == p_values.shape == (40,)
    assert ((distances > critical) == (p_values < 0.01)).all()


@given(st.floats(1e-6, 0.5), st.integers(1, 60))
def test_the_critical_chi_square_is_the_inverse(level: float, freedom: int) -> None:
    assert chi_square(chi_square_critical(level, freedom), freedom) == pytest.approx(level, rel=1e-6)


def test_what_cannot_vary_is_never_off() -> None:
    assert (chi_square(0.0, 0), chi_square_critical(0.01, 0)) == (1.0, 0.0)


def test_nothing_is_exceeded_more_often_than_always_and_less_than_never() -> None:
    assert exceedances_at_least(0, 10, 20, 1) == 1.0
    assert exceedances_at_least(11, 10, 20, 1) == 0.0
    assert exceedances_at_least(1, 1, 19, 1) == pytest.approx(1 / 20)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_is_between_no_correction_and_bonferronis(p_values: list[float]) -> None:
    plain = np.array(p_values)
    adjusted = holm(plain)

    assert (adjusted >= plain).all()
    assert (adjusted <= np.minimum(1, plain * len(plain)) + 1e-15).all()
    assert math.isclose(adjusted.min(), min(1.0, plain.min() * len(plain)))
    assert (np.diff(adjusted[np.argsort(plain, kind="stable")]) >= 0).all()
