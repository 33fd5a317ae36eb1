"""Changes in a stream: seen soon after they come, and seldom where there is none."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest

from scanflow.drift import streaming
from scanflow.drift.streaming import ADWIN, KSWIN, PageHinkley, StreamDetector, detect_changes
from scanflow.errors import InvalidError

DETECTORS: dict[str, Callable[[], StreamDetector]] = {
    "page-hinkley": lambda: PageHinkley(delta=0.1, threshold=30),
    "adwin": ADWIN,
    "kswin": KSWIN,
}


def alarms(detector: StreamDetector, values: np.ndarray) -> list[int]:
    return [at for at, value in enumerate(values.tolist()) if detector.update(value)]


@pytest.mark.parametrize("name", DETECTORS)
def test_a_change_of_the_mean_is_seen_soon_and_nothing_before(name: str) -> None:
    for seed in range(3):
        generator = np.random.default_rng(seed)
        values = np.concatenate([generator.normal(size=600), generator.normal(2, 1, size=200)])
        (first, *_) = alarms(DETECTORS[name](), values)
        assert 600 < first < 700


@pytest.mark.parametrize("name", DETECTORS)
def test_a_stream_that_does_not_change_seldom_alarms(name: str) -> None:
    alarm_times = [alarms(DETECTORS[name](), np.random.default_rng(seed).normal(size=1000)) for seed in range(10)]
    assert sum(map(bool, alarm_times)) <= 1


def test_adwin_keeps_the_window_that_is_alike_in_little_memory() -> None:
    detector = ADWIN()
    generator = np.random.default_rng(0)
    alarms(detector, np.concatenate([generator.normal(size=3000), generator.normal(5, 1, size=1000)]))
    assert 900 <= detector.width <= 1032
    assert detector.mean == pytest.approx(5, abs=0.2)
    assert len(pickle.dumps(detector)) < 80 * 20, "of fewer than 80 buckets, each of two numbers of 9 bytes"


def test_kswin_sees_a_small_change_of_the_mean_by_many_numbers() -> None:
    generator = np.random.default_rng(1)
    values = np.concatenate([generator.normal(size=1000), generator.normal(0.5, 1, size=600)])
    (first, *_) = alarms(KSWIN(), values)
    assert 1050 < first < 1400


def test_kswin_sees_a_change_of_the_spread_alone() -> None:
    generator = np.random.default_rng(0)
    values = np.concatenate([generator.normal(size=300), generator.normal(0, 6, size=300)])
    assert any(300 < at < 450 for at in alarms(KSWIN(), values))


@pytest.mark.parametrize(
    "wrong",
    [lambda: PageHinkley(threshold=0), lambda: ADWIN(delta=1), lambda: KSWIN(newest=[300]), lambda: KSWIN(level=2)],
)
def test_settings_that_cannot_be_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(InvalidError):
        wrong()


@pytest.mark.parametrize("name", streaming.DETECTORS)
@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_changes_are_reported_with_their_averages_whatever_the_unit_and_the_way(name: str, unit: float) -> None:
    generator = np.random.default_rng(1)
    values = np.concatenate([generator.normal(5, 1, size=600), generator.normal(3, 1, size=600)])

    (change, *more) = detect_changes((values * unit).tolist(), name)

    assert 600 < change.row < 700
    assert (change.before / unit, change.after / unit) == pytest.approx((5, 3), abs=0.3)
    assert not more
    assert detect_changes(values[:600].tolist(), name) == []


def test_a_stream_that_is_short_and_a_detector_that_is_not_there_are_reported() -> None:
    with pytest.raises(InvalidError, match="more than 100 are needed"):
        detect_changes([1.0] * 100)
    with pytest.raises(InvalidError, match=r"'adwni'\. Did you mean 'adwin'\?.*kswin"):
        detect_changes([1.0] * 200, "adwni")
