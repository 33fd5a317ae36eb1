"""How busy a GPU was lately: the mean of what its driver said, and nothing where it said nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.backends.device_load import WINDOW_S, LoadReading, RecentLoad, compute_mean

SHARES = st.none() | st.floats(0, 1)


def make_load(*readings: tuple[float, float | None]) -> RecentLoad:
    load = RecentLoad()
    for at, share in readings:
        load.add(LoadReading(at, share, None if share is None else 100 * share))
    return load


def test_the_mean_is_that_of_the_last_seconds() -> None:
    load = make_load((0.0, 0.0), (1.0, 0.0), (2.0, 0.6), (3.0, 1.0))
    assert load.compute_busy_share() == pytest.approx(0.4)
    assert load.compute_busy_share(1.0) == pytest.approx(0.8)
    assert load.compute_power_w() == pytest.approx(40.0)


def test_what_is_older_than_a_minute_does_not_count() -> None:
    load = make_load((0.0, 1.0), (WINDOW_S, 1.0), (WINDOW_S + 1, 0.0))
    assert load.compute_busy_share() == 0.5
    assert load.compute_busy_share(10 * WINDOW_S) == 0.5


def test_what_was_never_read_is_unknown_and_not_idle() -> None:
    assert RecentLoad().compute_busy_share() is None
    assert RecentLoad().compute_power_w() is None
    assert make_load((0.0, None), (1.0, None)).compute_busy_share() is None
    assert make_load((0.0, None), (1.0, 0.5)).compute_busy_share() == 0.5


@given(st.lists(SHARES, min_size=1, max_size=200), st.floats(0, 200))
def test_a_mean_lies_among_what_was_said_within_the_window(shares: list[float | None], window_s: float) -> None:
    """One reading a second: the oracle takes the last ones by their number."""
    load = make_load(*((float(at), share) for at, share in enumerate(shares)))
    last = [share for share in shares[-1 - int(min(window_s, WINDOW_S)) :] if share is not None]
    mean = load.compute_busy_share(window_s)
    assert mean == (pytest.approx(sum(last) / len(last)) if last else None)


def test_the_mean_of_nothing_is_unknown() -> None:
    assert compute_mean([]) is None
    assert compute_mean([None, 1.0, 0.0]) == 0.5
