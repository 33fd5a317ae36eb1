"""The tests that detectors use: what must hold of them at the edges, and what scipy does not have."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.drift.detectors.statistics import (
    chi_square,
    chi_square_critical,
    exceedances_allowed,
    exceedances_at_least,
    ks,
)


@pytest.mark.parametrize(("new", "old"), [(1, 20), (30, 30), (400, 2500)])
def test_the_critical_ks_distance_parts_the_p_values(new: int, old: int) -> None:
    generator = np.random.default_rng(0)
    distances, p_values, critical = ks(
        generator.normal(size=(new, 40)), generator.normal(size=(old, 40)) + np.linspace(0, 1, 40), 0.01
    )

    assert distances.shape == p_values.shape == (40,)
    assert ((distances > critical) == (p_values < 0.01)).all()


@given(st.floats(1e-6, 0.5), st.integers(1, 60))
def test_the_critical_chi_square_is_the_inverse_and_what_cannot_vary_is_never_off(level: float, freedom: int) -> None:
    freedoms = np.array([freedom, 0])
    critical = chi_square_critical(level, freedoms)
    assert chi_square(critical, freedoms) == pytest.approx([level, 1.0], rel=1e-6)
    assert critical[1] == 0.0


def test_nothing_is_exceeded_more_often_than_always_and_less_than_never() -> None:
    assert exceedances_at_least(0, 10, 20, 1) == 1.0
    assert exceedances_at_least(11, 10, 20, 1) == 0.0
    assert exceedances_at_least(1, 1, 19, 1) == pytest.approx(1 / 20)


@given(st.floats(0.001, 0.5), st.integers(1, 500), st.integers(20, 500), st.integers(1, 10))
def test_what_is_allowed_is_the_least_that_chance_seldom_exceeds(level: float, new: int, old: int, rank: int) -> None:
    allowed = exceedances_allowed(level, new, old, rank)
    assert exceedances_at_least(allowed + 1, new, old, rank) <= level
    assert allowed == 0 or exceedances_at_least(allowed, new, old, rank) > level
