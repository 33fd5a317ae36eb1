"""Rows in order of time: false alarms of comparing all of them, and of comparing those that are nearly independent."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from scanflow.drift.dependence import compute_autocorrelation_time, compute_autocorrelations, find_dependence, thin
from scanflow.drift.table import DataTable
from scanflow.drift.two_sample import compare

LEVEL = 0.05
TABLES = 80
pytestmark = pytest.mark.science


def draw_series(generator: np.random.Generator, rows: int, autocorrelation: float) -> NDArray[np.float64]:
    """Return a stationary first-order autoregressive series of three columns, (rows, 3), each of variance 1."""
    steps: NDArray[np.float64] = generator.normal(size=(rows + 200, 3)) * np.sqrt(1 - autocorrelation**2)
    for at in range(1, len(steps)):
        steps[at] += autocorrelation * steps[at - 1]
    series: NDArray[np.float64] = steps[200:]
    return series


def count_alarms(rows: int, autocorrelation: float, *, is_thinned: bool, shift: float = 0.0) -> float:
    alarms = 0
    for number in range(TABLES):
        generator = np.random.default_rng(number)
        before, after = (DataTable.from_data(draw_series(generator, rows, autocorrelation) + by) for by in (0.0, shift))
        if is_thinned:
            before, after, _ = thin(before, after)
        alarms += compare(before, after, level=LEVEL, permutations=199).drifted
    return alarms / TABLES


@pytest.mark.parametrize(("autocorrelation", "rows", "power"), [(0.5, 500, 0.9), (0.9, 1000, 0.8)])
def test_nearly_independent_rows_keep_the_level_that_all_rows_break(
    autocorrelation: float, rows: int, power: float
) -> None:
    assert count_alarms(rows, autocorrelation, is_thinned=False) > 4 * LEVEL
    assert count_alarms(rows, autocorrelation, is_thinned=True) <= 2 * LEVEL
    assert count_alarms(rows, autocorrelation, is_thinned=True, shift=1.0) >= power


@pytest.mark.parametrize("autocorrelation", [0.0, 0.5, 0.9])
def test_the_autocorrelation_time_is_that_of_theory(autocorrelation: float) -> None:
    generator = np.random.default_rng(1)
    times = [
        compute_autocorrelation_time(compute_autocorrelations(draw_series(generator, 5000, autocorrelation)[:, 0]))
        for _ in range(20)
    ]
    assert np.median(times) == pytest.approx((1 + autocorrelation) / (1 - autocorrelation), rel=0.1)


def test_independent_rows_are_not_taken_for_dependent_ones() -> None:
    generator = np.random.default_rng(1)
    tables = [DataTable.from_data(generator.normal(size=(300, 20))) for _ in range(50)]
    assert not any(find_dependence(table, table) for table in tables)
