"""When requests are due, from a rate over time."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.errors import InvalidError
from scanflow.load.arrivals import (
    RateTrace,
    build_constant_rate,
    build_sine_rate,
    build_step_rates,
    parse_trace,
    read_csv,
)

_RATE = st.floats(0, 200)
_PART = st.floats(0, 5)


@st.composite
def traces(draw: st.DrawFn) -> RateTrace:
    parts = draw(st.lists(st.tuples(_PART, _RATE), min_size=1, max_size=5))
    ends = list(itertools.accumulate(seconds for seconds, _ in parts))
    knots = [(0.0, draw(st.floats(1, 200))), *((at, rate) for at, (_, rate) in zip(ends, parts, strict=True))]
    return RateTrace((*knots, (ends[-1] + 1.0, 10.0)))


def area_until(trace: RateTrace, at: float) -> float:
    """Return the integral of the rate, by the trapezoidal rule on its own lines."""
    total = 0.0
    for (soon, low), (late, high) in itertools.pairwise(trace.knots):
        if at <= soon or late == soon:
            continue
        end = min(at, late)
        rate = low + (high - low) * (end - soon) / (late - soon)
        total += (end - soon) * (low + rate) / 2
    return total


@given(traces())
def test_even_arrivals_are_where_the_area_below_the_rate_is_a_whole_number(trace: RateTrace) -> None:
    due = trace.generate_arrivals()
    assert list(due) == sorted(due)
    assert len(due) in {math.ceil(trace.requests), math.floor(trace.requests), math.floor(trace.requests) + 1}
    for number, at in enumerate(due):
        assert area_until(trace, at) == pytest.approx(number, abs=1e-6 * max(1, number))


@given(traces(), st.integers(0, 2**32))
def test_random_arrivals_are_in_order_within_the_trace_and_the_same_for_a_seed(trace: RateTrace, seed: int) -> None:
    due = trace.generate_arrivals(poisson=seed)
    assert list(due) == sorted(due)
    assert all(0 <= at <= trace.seconds for at in due)
    assert due == trace.generate_arrivals(poisson=seed)


def test_a_poisson_process_has_the_gaps_of_one_and_its_rate_where_that_changes() -> None:
    due = build_constant_rate(1000, 20).generate_arrivals(poisson=7)
    gaps = [late - soon for soon, late in itertools.pairwise(due)]
    assert len(due) == pytest.approx(20_000, abs=4 * math.sqrt(20_000))
    assert statistics.mean(gaps) == pytest.approx(0.001, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.001, rel=0.05)  # of an exponential: its mean
    arrivals = RateTrace(((0, 100), (10, 100), (10, 900), (20, 900))).generate_arrivals(poisson=7)
    fast = sum(at >= 10 for at in arrivals)
    assert fast == pytest.approx(9000, abs=4 * math.sqrt(9000))
    assert len(arrivals) - fast == pytest.approx(1000, abs=4 * math.sqrt(1000))


def test_steps_a_sine_and_a_recorded_rate() -> None:
    assert list(build_step_rates([1, 2], 2).generate_arrivals()) == [0.0, 1.0, 1.5]
    wave = build_sine_rate(20, 200, 60, 120)
    assert wave.requests == pytest.approx(110 * 120, rel=1e-3)
    assert [min(rate for _, rate in wave.knots), max(rate for _, rate in wave.knots)] == pytest.approx([20.0, 200.0])
    recorded = read_csv(["seconds,rate\n", "5,10\n", "7,10\n", "7,0\n", "9,20\n"], "a.csv")
    assert list(recorded.knots) == [(0.0, 10.0), (2.0, 10.0), (2.0, 0.0), (4.0, 20.0)]
    assert parse_trace("steps:1,2", 2) == build_step_rates([1, 2], 2)
    assert parse_trace("sine:20,200,60s", 120) == wave


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build_constant_rate(0, 10), "always 0"),
        (lambda: build_constant_rate(-1, 10), "0 or more"),
        (lambda: build_constant_rate(math.inf, 10), "0 or more"),
        (lambda: build_constant_rate(10, 0), "begin at 0 s and increase"),
        (lambda: build_constant_rate(1e9, 10), "too many"),
        (lambda: RateTrace(((0, 1),)), "needs at least two times"),
        (lambda: RateTrace(((0, 1), (2, 1), (1, 1))), "begin at 0 s and increase"),
        (lambda: read_csv(["0,1\n", "a,b\n"], "x.csv"), "x.csv, row 2: 'a,b'"),
        (lambda: read_csv([], "x.csv"), "needs at least two times"),
        (lambda: parse_trace("steps:", 1), "cannot be read"),
        (lambda: parse_trace("sine:1,2", 1), "cannot be read"),
        (lambda: parse_trace("sine:1,2,0", 1), "cannot be read"),
        (lambda: parse_trace("ramp:1", 1), "steps:50,100,200"),
    ],
)
def test_what_is_no_rate_is_refused(make: object, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        make()  # type: ignore[operator]
