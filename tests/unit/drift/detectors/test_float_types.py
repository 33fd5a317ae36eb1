"""A reference is kept as float64 and requests mostly come as float32: the type alone is no drift, and hides none."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from scanflow.drift.detectors.detector_port import Floats
from scanflow.drift.detectors.table_detector import TableDetector


def draw_columns(generator: np.random.Generator, count: int) -> Floats:
    """A constant, a column in tenths, one of two values, and one that varies."""
    return np.column_stack(
        [
            np.full(count, 0.1),
            np.round(generator.normal(size=count), 1),
            np.where(generator.random(count) < 0.3, 0.7, 0.2),
            generator.normal(size=count),
        ]
    )


def of_low_rank(generator: np.random.Generator, count: int) -> Floats:
    mixed = np.random.default_rng(99).normal(size=(3, 300))
    return generator.normal(size=(count, 3)) @ mixed + 5.0


def of_low_rank_in_float32(generator: np.random.Generator, count: int) -> Any:
    """The same, worked out in float32: off by a little more than by rounding once."""
    mixed = np.random.default_rng(99).normal(size=(3, 300)).astype(np.float32)
    return generator.normal(size=(count, 3)).astype(np.float32) @ mixed + np.float32(5.0)


@pytest.mark.parametrize("draw", [draw_columns, of_low_rank])
def test_a_batch_says_the_same_in_float32_as_in_float64(draw: Any) -> None:
    reference, batch = draw(np.random.default_rng(0), 1500), draw(np.random.default_rng(1), 500)
    fitted = TableDetector().fit(reference)

    scores, other = fitted.score(batch), fitted.score(batch.astype(np.float32))

    assert not other.drifted
    assert len(other.outliers) <= 20
    assert other.p_value == pytest.approx(scores.p_value, abs=0.05)


def test_what_is_off_by_its_last_digits_has_not_drifted_where_nothing_ever_varied() -> None:
    reference, batch = (draw_columns(np.random.default_rng(seed), 600) for seed in (0, 1))
    near = batch.astype(np.float32)
    near[:, :3] = np.nextafter(near[:, :3], np.float32(1))
    assert not TableDetector().fit(reference).score(near).drifted
    fitted = TableDetector().fit(of_low_rank(np.random.default_rng(0), 1500))

    scores = fitted.score(of_low_rank_in_float32(np.random.default_rng(1), 500))

    assert not scores.drifted
    assert len(scores.outliers) <= 20


def test_drift_is_seen_in_float32_all_the_same() -> None:
    fitted = TableDetector().fit(of_low_rank(np.random.default_rng(0), 1500))
    inside = of_low_rank_in_float32(np.random.default_rng(1), 500) * np.float32(1.5)
    outside = of_low_rank_in_float32(np.random.default_rng(1), 500)
    outside[:, 7] += 3

    assert fitted.score(inside).drifted
    assert fitted.score(outside).drifted


def test_a_small_column_counts_beside_one_a_thousand_million_times_as_large() -> None:
    generator = np.random.default_rng(0)
    reference, batch = (generator.normal(size=(600, 2)) * [1e9, 1.0] for _ in range(2))
    fitted = TableDetector().fit(reference)

    assert not fitted.score(batch.astype(np.float32)).drifted
    moved = fitted.score((batch + np.array([0.0, 1.0])).astype(np.float32))
    assert [column.name for column in moved.columns if column.test == "ks"] == ["1"]


@pytest.mark.parametrize("columns", [3, 40])
def test_values_beyond_what_float32_holds_are_strange_and_no_mistake(columns: int) -> None:
    generator = np.random.default_rng(0)
    fitted = TableDetector().fit(generator.normal(size=(400, columns)))
    batch = generator.normal(size=(200, columns))
    batch[:100, 0] = 1e300
    batch[100:150, 1] = -np.inf

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = fitted.score(batch)

    assert scores.drifted
    assert set(range(150)) <= set(scores.outliers.tolist())
    assert np.isfinite(scores.values).all()
