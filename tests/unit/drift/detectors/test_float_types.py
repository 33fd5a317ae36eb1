"""A reference is kept as float64 and requests mostly come as float32: the type alone is no drift, and hides none."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanflow.drift.detectors import catalogue
from scanflow.drift.detectors.ks import KS
from scanflow.drift.detectors.port import Detector, Floats, Scores
from scanflow.drift.detectors.samples import Reference
from scanflow.errors import InvalidError

NAMES = ("ks", "psi", "mmd")


def made(name: str) -> Detector:
    return catalogue.make(name, generator=np.random.default_rng(3))


def drifted_features(scores: Scores) -> list[int]:
    assert scores.by_feature is not None
    found: list[int] = np.flatnonzero(scores.by_feature > scores.threshold).tolist()
    return found


def measured(generator: np.random.Generator, count: int) -> Floats:
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
    mixed = np.random.default_rng(99).normal(size=(3, 40))
    return generator.normal(size=(count, 3)) @ mixed + 5.0


def of_low_rank_in_float32(generator: np.random.Generator, count: int) -> Any:
    """The same, worked out in float32: off by a little more than by rounding once."""
    mixed = np.random.default_rng(99).normal(size=(3, 40)).astype(np.float32)
    return generator.normal(size=(count, 3)).astype(np.float32) @ mixed + np.float32(5.0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("draw", [measured, of_low_rank])
def test_a_batch_says_the_same_in_float32_as_in_float64(name: str, draw: Any) -> None:
    known, batch = draw(np.random.default_rng(0), 1500), draw(np.random.default_rng(1), 500)
    fitted = made(name).fit(known)

    one, other = fitted.score(batch), fitted.score(batch.astype(np.float32))

    assert not other.drifted
    assert len(other.outliers) <= 20
    assert (one.statistic, one.threshold, one.p_value) == (other.statistic, other.threshold, other.p_value)
    assert np.array_equal(one.values, other.values)
    if draw is measured:
        other = made(name).fit(known.astype(np.float32)).score(batch)
        assert (one.statistic, one.threshold) == (other.statistic, other.threshold)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_off_by_its_last_digits_has_not_drifted_where_nothing_ever_varied(name: str) -> None:
    reference, batch = (measured(np.random.default_rng(seed), 600) for seed in (0, 1))
    near = batch.astype(np.float32)
    near[:, 0] = np.nextafter(near[:, 0], np.float32(1))
    assert not made(name).fit(reference).score(near).drifted
    fitted = made(name).fit(of_low_rank(np.random.default_rng(0), 1500))

    scores = fitted.score(of_low_rank_in_float32(np.random.default_rng(1), 500))

    assert not scores.drifted
    assert len(scores.outliers) <= 20


@pytest.mark.parametrize("name", NAMES)
def test_drift_is_seen_in_float32_all_the_same(name: str) -> None:
    fitted = made(name).fit(of_low_rank(np.random.default_rng(0), 1500))
    inside = of_low_rank_in_float32(np.random.default_rng(1), 500) * np.float32(1.5)
    outside = of_low_rank_in_float32(np.random.default_rng(1), 500)
    outside[:, 7] += 3

    assert fitted.score(inside).drifted
    assert fitted.score(outside).drifted


def test_a_small_column_counts_beside_one_a_thousand_million_times_as_large() -> None:
    generator = np.random.default_rng(0)
    reference, batch = (generator.normal(size=(600, 2)) * [1e9, 1.0] for _ in range(2))
    fitted = KS().fit(reference)

    assert not fitted.score(batch.astype(np.float32)).drifted
    assert drifted_features(fitted.score((batch + np.array([0.0, 1.0])).astype(np.float32))) == [1]


def test_small_directions_count_beside_one_a_hundred_million_times_as_large() -> None:
    generator = np.random.default_rng(0)
    reference, batch = generator.normal(size=(2, 600, 30))
    reference[:, 0] *= 1e8
    batch[:, 0] *= 1e8
    fitted = KS(components=24).fit(reference)

    assert not fitted.score(batch.astype(np.float32)).drifted
    batch[:, 1:] *= 2
    assert len(drifted_features(fitted.score(batch.astype(np.float32)))) > 15
    assert made("mmd").fit(reference).score(batch.astype(np.float32)).drifted


@pytest.mark.parametrize("columns", [3, 40])
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_beyond_what_float32_holds_is_strange_and_no_mistake(name: str, columns: int) -> None:
    generator = np.random.default_rng(0)
    fitted = made(name).fit(generator.normal(size=(400, columns)))
    batch = generator.normal(size=(200, columns))
    batch[:100, 0] = 1e300
    batch[100:150, 1] = -1e300

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = fitted.score(batch)

    assert scores.drifted
    assert set(range(150)) <= set(scores.outliers.tolist())
    assert np.isfinite(scores.values).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_reference_beyond_what_float32_holds_is_refused_with_what_to_do(name: str) -> None:
    reference = np.random.default_rng(0).normal(size=(50, 3))
    reference[7, 1] = -1e39

    with pytest.raises(
        InvalidError, match=r"1 of the reference's 50 samples .* beyond 3\.4e\+38.*first number 7.*Scale"
    ):
        made(name).fit(reference)


@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-9, 9), columns=st.sampled_from([4, 30]))
@settings(max_examples=25)
def test_features_do_not_depend_on_the_type_nor_on_the_unit(seed: int, power: int, columns: int) -> None:
    generator = np.random.default_rng(seed)
    plain = generator.normal(size=(60, columns))
    other = plain * 2.0**power  # exact in either type
    known = Reference.of(plain, components=8, outlier_share=0.05)

    assert np.array_equal(known.features_of(plain), known.features_of(plain.astype(np.float32)))
    scaled = Reference.of(other, components=8, outlier_share=0.05).features_of(other)
    assert np.abs(scaled) == pytest.approx(np.abs(known.features_of(plain)), rel=1e-6, abs=1e-6)
