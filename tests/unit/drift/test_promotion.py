"""What is decided of a challenger, and how it is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scanflow.drift.promotion import compute_expected_traffic, decide, for_evaluation, format_decision
from scanflow.drift.slices import CURRENT, Slice
from scanflow.errors import InvalidError


def part(name: str, n: int, champion: int, gained: int, lost: int) -> Slice:
    return Slice(name=name, n=n, champion_right=champion, challenger_right=champion + gained - lost, gained=gained)


NOW = part(CURRENT, 59, 42, 14, 1)
SOME = part(CURRENT, 180, 126, 23, 11)
CLEAN = part("clean", 500, 490, 0, 1)


@given(st.integers(0, 300), st.integers(0, 300))
def test_the_p_value_is_mcnemar_s_of_which_as_many_points_count_half(gained: int, lost: int) -> None:
    p_value, of = part(CURRENT, 600, lost, gained, lost).p, gained + lost
    assert p_value == pytest.approx(stats.binom.sf(gained, of, 0.5) + 0.5 * stats.binom.pmf(gained, of, 0.5))


def test_so_many_points_that_they_are_not_counted_out_have_nearly_the_same_p_value() -> None:
    comparison = part(CURRENT, 9000, 3000, 3100, 2900)
    assert comparison.p == pytest.approx(
        (stats.binom.sf(3099, 6000, 0.5) + stats.binom.sf(3100, 6000, 0.5)) / 2, rel=0.01
    )


@pytest.mark.parametrize(
    ("slices", "verdict", "reason"),
    [
        ([NOW, CLEAN], "promote", "better by 19.2 points on the expected traffic (current 90 %, clean 10 %), at"),
        ([NOW], "promote", "better by 21.3 points on the expected traffic (current 100 %), at least 10.5 points"),
        ([part(CURRENT, 49, 20, 25, 0)], "wait", "evaluated on 49 points of 50; about 1 more"),
        ([part(CURRENT, 100, 70, 10, 6)], "wait", "the gain may be as low as -"),
        ([part(CURRENT, 100, 70, 2, 20)], "reject", "gains "),
        ([NOW, part("clean", 500, 490, 5, 20)], "promote", "better by"),
        ([NOW, part("clean", 1541, 1500, 5, 19)], "promote", "better by"),
        ([SOME, part("clean", 500, 490, 0, 75)], "wait", "the gain may be as low as -0.7 points; about 351 more"),
        ([NOW, part("clean", 500, 490, 0, 50)], "ask", "worse on 'clean' by 10.0 points, at least"),
        ([NOW, part("clean", 500, 490, 5, 24)], "ask", "on 'clean' it may lose 5.6 points, but 5.0 points are allowed"),
        ([NOW, CLEAN, part("a-b-1", 60, 50, 1, 10)], "ask", "worse on 'a-b-1' by 15.0 points, at least"),
        ([NOW, CLEAN, part("a-b-1", 180, 150, 3, 3)], "promote", "current 90 %, clean 5 %, a-b-1 5 %"),
        ([NOW, CLEAN, part("a-b-1", 60, 50, 3, 3)], "ask", "on 'a-b-1' it may lose 7.5 points"),
        ([NOW, part("clean", 90, 80, 2, 3), part("a-b-1", 90, 80, 3, 2)], "promote", "better by"),
        ([NOW, part("clean", 30, 26, 1, 3), part("a-b-1", 30, 26, 2, 4)], "ask", "on 'clean and a-b-1' it may lose"),
    ],
)
def test_a_challenger_is_promoted_waits_or_is_rejected(slices: list[Slice], verdict: str, reason: str) -> None:
    decision = decide(slices)
    assert (decision.verdict, reason in decision.reason) == (verdict, True), decision.reason
    assert (decision.needed > 0) == ("more labelled points would decide" in decision.reason)
    assert (verdict == "wait") == ("would decide" in decision.reason)


def test_what_people_ask_for_weighs_as_much_as_they_ask_for_it() -> None:
    forgets = [part(CURRENT, 180, 126, 36, 8), part("clean", 500, 490, 5, 20)]
    assert decide(forgets).verdict == "promote"
    half = decide(forgets, recent={"clean": 0.5})
    assert half.traffic == {CURRENT: 0.45, "clean": 0.55}
    assert (half.verdict, half.reason) == (
        "reject",
        "worse on 'clean' by 3.0 points, at least 1.3 points, but 0.9 points are allowed",
    )
    gone = decide(forgets, recent={"clean": 1.0})
    assert gone.traffic == {CURRENT: 0.0, "clean": 1.0}
    assert gone.verdict == "reject"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), st.floats(0, 1))
def test_the_traffic_to_be_expected_is_all_there_is_and_what_may_return_is_never_without(
    shares: list[float], returning: float
) -> None:
    recent = {f"window {number}": share for number, share in enumerate(shares)}
    traffic = compute_expected_traffic([CURRENT, *recent], recent, returning=returning)
    assert sum(traffic.values()) == pytest.approx(1)
    assert min(traffic[name] for name in recent) >= returning / len(recent) - 1e-9
    assert compute_expected_traffic([CURRENT], recent) == {CURRENT: 1.0}


def test_a_challenger_waits_only_for_labels_that_can_tell_and_that_people_give() -> None:
    little = part(CURRENT, 180, 126, 20, 14)
    waits = decide([little, CLEAN])
    assert (waits.verdict, waits.needed > 180) == ("wait", True)
    assert decide([little, CLEAN], most_n=180 + waits.needed).verdict == "wait"
    decision = decide([little, CLEAN], most_n=179 + waits.needed)
    assert (decision.verdict, decision.needed) == ("reject", 0)
    assert "more labelled points would decide, but people label" in decision.reason
    few = part("clean", 20, 18, 1, 1)
    unknown = decide([part(CURRENT, 2000, 1400, 110, 60), few], recent={"clean": 0.9})
    assert (unknown.verdict, "more labels would not decide" in unknown.reason) == ("reject", True)


def test_the_looks_share_the_level() -> None:
    levels = [decide([NOW, CLEAN], look=look).level for look in range(1, 2000)]
    assert levels[0] == pytest.approx(0.04)
    assert sum(levels) == pytest.approx(0.05, abs=1e-5)
    assert decide([part(CURRENT, 59, 42, 9, 2)]).verdict == "promote"
    assert decide([part(CURRENT, 59, 42, 9, 2)], look=2).verdict == "wait"


def test_points_of_which_two_models_cannot_have_so_many_right_are_refused() -> None:
    with pytest.raises(InvalidError, match="Count the same points for both"):
        Slice(name=CURRENT, n=10, champion_right=8, challenger_right=9, gained=3)
    with pytest.raises(InvalidError, match="There are 0 slices named 'current'"):
        decide([CLEAN])


def test_a_promotion_is_described_in_one_sentence() -> None:
    about: dict[str, Any] = {"champion": 1, "version": 3, "run": "bold-fox-1", "drifted": ["latitude"]}
    evidence = decide([NOW, CLEAN]).evidence(**about)
    assert format_decision(json.loads(evidence.model_dump_json())) == (
        "Replace version 1 (71.2 %) by version 3 (93.2 %), n = 59, +22.0 points (+10.5 to +32.1); gain on the "
        "expected traffic +19.2 (+9.4 to +28.9): current 90 %, clean 10 %; other slices, no clear change: "
        "clean -0.2 (-0.8 to +0.4, n = 500); drift in `latitude`; run bold-fox-1"
    )


@pytest.mark.parametrize(("gained", "lost", "message"), [(10, 6, "waits"), (2, 20, "is rejected")])
def test_why_a_challenger_is_not_promoted_is_reported_too(gained: int, lost: int, message: str) -> None:
    decision = decide([part(CURRENT, 100, 70, gained, lost)])
    text = format_decision(decision.evidence(version=3).model_dump(mode="json"))
    assert text.startswith("Keep the champion (70.0 %); version 3 (")
    assert f") {message}, n = 100" in text
    assert decision.reason in text


@pytest.mark.parametrize("odd", [{}, {"slices": 3}, {"slices": [{"name": CURRENT}], "verdict": "promote"}])
def test_what_holds_no_evidence_is_reported_by_its_reason(odd: dict[str, Any]) -> None:
    assert format_decision({**odd, "reason": "because"}) == "because"


def test_a_point_is_for_evaluation_once_and_for_ever() -> None:
    chosen = [for_evaluation(str(number).encode()) for number in range(5000)]
    assert 0.28 < sum(chosen) / 5000 < 0.32
    assert chosen == [for_evaluation(str(number).encode()) for number in range(5000)]
