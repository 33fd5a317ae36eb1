"""Who slows a service down, decided from its own windows."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scanflow.placement.interference import (
    MAX_LOAD,
    MIN_PAIRS,
    SAME_LOAD,
    LoadPoint,
    Window,
    compare,
    compute_coverage,
    is_confirmed,
    pair_windows,
    split,
)

POINTS = st.lists(st.builds(LoadPoint, st.floats(0.1, 1000), st.floats(0.001, 10)), max_size=30)


def windows(count: int, *, slower: float = 1.0, load: float = 20.0, seed: int = 0) -> list[LoadPoint]:
    noise = random.Random(seed)
    return [
        LoadPoint(load * noise.uniform(0.97, 1.03), 0.03 * slower * noise.lognormvariate(0, 0.1)) for _ in range(count)
    ]


@given(POINTS, POINTS)
def test_a_pair_is_of_comparable_load_and_no_window_is_in_two(
    quiet: list[LoadPoint], disturbed: list[LoadPoint]
) -> None:
    pairs = pair_windows(quiet, disturbed)
    assert len(pairs) <= min(len(quiet), len(disturbed))
    assert all(SAME_LOAD * slow.load <= fast.load <= MAX_LOAD * slow.load for fast, slow in pairs)
    for side, points in enumerate((quiet, disturbed)):
        used = [pair[side] for pair in pairs]
        assert all(used.count(point) <= points.count(point) for point in points)


@given(POINTS, POINTS)
@settings(max_examples=20)  # SciPy works through all signs of few pairs of which some are equal
def test_a_comparison_does_not_depend_on_the_order_and_takes_scale_with_it(
    quiet: list[LoadPoint], slow: list[LoadPoint]
) -> None:
    comparison, turned = compare([(quiet, slow)]), compare([(quiet[::-1], slow[::-1])])
    assert comparison == turned
    if comparison is not None:
        assert comparison.pairs >= MIN_PAIRS
        assert 0 <= comparison.p <= 1
        scaled = [LoadPoint(point.load, point.p95_s * 2) for point in slow]
        doubled = compare([(quiet, scaled)])
        assert doubled is not None
        assert doubled.ratio == pytest.approx(2 * comparison.ratio)
        assert doubled.p <= comparison.p + 1e-9


@given(st.lists(st.booleans(), max_size=12), st.integers(1, 5), st.integers(1, 5))
def test_a_look_that_disagrees_never_confirms_and_one_alone_never_does(
    looks: list[bool], agreeing: int, more: int
) -> None:
    of = agreeing + more
    answer_now = is_confirmed(looks, agreeing, of)
    assert answer_now == (bool(looks) and looks[-1] and sum(looks[-of:]) >= agreeing)
    assert not is_confirmed([*looks, False], agreeing, of)
    assert not is_confirmed([True], 2, 3)


def test_a_neighbour_that_doubles_the_latency_disturbs_and_one_that_does_nothing_does_not() -> None:
    quiet = windows(12)
    slow, same = (compare([(quiet, windows(12, slower=by, seed=1))]) for by in (2.0, 1.0))
    assert slow is not None
    assert same is not None
    assert slow.is_disturbing(neighbours=5)
    assert slow.ratio == pytest.approx(2.0, rel=0.15)
    assert not same.is_disturbing()


def test_a_small_effect_is_left_alone_however_sure_it_is() -> None:
    comparison = compare([(windows(200), windows(200, slower=1.1, seed=1))])
    assert comparison is not None
    assert comparison.p < 1e-6
    assert not comparison.is_disturbing()


def test_a_service_that_is_slow_since_it_has_more_to_do_is_not_disturbed() -> None:
    assert compare([(windows(50), windows(50, slower=4, load=30, seed=1))]) is None
    # Clients that wait for answers send less to a slow service: it carried more while it was quick.
    comparison = compare([(windows(20, load=40), windows(20, slower=2, load=20, seed=1))])
    assert comparison is not None
    assert comparison.is_disturbing()


def test_windows_are_compared_within_one_model_and_the_same_other_neighbours() -> None:
    def make_window(beside: str, revision: str = "r1") -> Window:
        return Window(ended=0.0, point=LoadPoint(1.0, 1.0), revision=revision, beside=frozenset(beside))

    groups = split(
        [
            make_window("a"),
            make_window(""),
            make_window("b"),
            make_window("ab"),
            make_window("a", "r2"),
            make_window("c", "r3"),
        ],
        "a",
    )
    assert [(len(quiet), len(disturbed)) for quiet, disturbed in groups] == [(1, 1), (1, 1)]


def spans() -> Iterator[st.SearchStrategy[float]]:
    yield from (st.floats(0, 100), st.floats(0, 100))


@given(st.lists(st.tuples(*spans()).map(sorted).map(tuple), max_size=8), st.floats(0, 50), st.floats(51, 100))
def test_the_share_that_spans_cover_is_a_share_and_grows_with_them(
    given_spans: list[tuple[float, float]], start: float, end: float
) -> None:
    share = compute_coverage(start, end, given_spans)
    assert 0 <= share <= 1 + 1e-9
    assert compute_coverage(start, end, [*given_spans, (start, end)]) == pytest.approx(1)
    assert compute_coverage(start, end, given_spans[1:]) <= share + 1e-9
    assert compute_coverage(0, 10, [(2, 4), (3, 5), (9, float("inf"))]) == pytest.approx(0.4)
