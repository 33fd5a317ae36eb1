"""A promoted model is better: networks that were really retrained, on digits that really drift.

The quick form runs with the suite. The long one (``SCANFLOW_SCIENCE=long``) has the repetitions that figures need, and
``python -m tests.science.test_promotion_of_models`` prints the table of docs/science.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import signature
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import binomtest

from scanflow.drift.slices import CURRENT
from scanflow.drift.workflows import detection
from tests.science.retrained_models import CLEAN, Digits, Pair, Samples, decide_promotion

pytestmark = pytest.mark.science
LONG = os.environ.get("SCANFLOW_SCIENCE") == "long"
SEEDS = 30 if LONG else 3
BUDGET, SHARE = (signature(detection).parameters[name].default for name in ("budget", "evaluation_share"))
KINDS, SHIFTS = ("nothing", "little", "all", "alone"), ("noise", "moved", "hidden", "turned")
SLACK = 0.0 if LONG else 0.15


@cache
def pairs() -> Sequence[Pair]:
    divided = [Digits(seed) for seed in range(SEEDS)]
    return [split.pair(kind, drift, BUDGET, SHARE) for split in divided for drift in SHIFTS for kind in KINDS]


def compute_promotion_share(which: Callable[[Pair], bool], *, half_clean: bool = False) -> tuple[float, int]:
    """Return how many of some were promoted without a person, and how many there are."""
    some = [pair.half_clean if half_clean else pair.decision for pair in pairs() if which(pair)]
    return float(np.mean([entry.verdict == "promote" for entry in some])), len(some)


def no_better(pair: Pair) -> bool:
    return pair.gain <= 0


def forgets(pair: Pair) -> bool:
    return pair.clean <= -0.03


def forgets_much(pair: Pair) -> bool:
    return pair.clean <= -0.10


def ten_points(pair: Pair) -> bool:
    return pair.gain >= 0.10 and pair.clean >= -0.01


def compute_coverage(*, exactly_known: bool = False) -> float:
    """Return how often the interval holds the true gain: made wider by the error that this has itself, or as if it had
    none."""
    misses = []
    for pair in pairs():
        half = (pair.decision.high - pair.decision.low) / 2
        own = 0.0 if exactly_known else NormalDist().inv_cdf(1 - pair.decision.level) * pair.error
        misses.append(abs(pair.over_traffic - pair.decision.low - half) <= np.hypot(half, own))
    return float(np.mean(misses))


def test_what_is_no_better_or_forgets_what_is_sent_is_seldom_promoted() -> None:
    for which, half_clean in ((no_better, False), (no_better, True), (forgets, True)):
        share, n = compute_promotion_share(which, half_clean=half_clean)
        assert n >= SEEDS
        if LONG:
            assert share <= 0.05
        else:  # so many of the few there are would be, of a hundred such tests, in one
            assert binomtest(round(share * n), n, 0.05, alternative="greater").pvalue >= 0.01


def test_what_forgets_much_is_promoted_by_a_person_alone() -> None:
    share, n = compute_promotion_share(forgets_much)
    assert (share, n >= SEEDS) == (0, True)


def test_what_is_ten_points_better_mostly_is() -> None:
    share, n = compute_promotion_share(ten_points)
    assert n >= SEEDS
    assert share >= 0.8 - SLACK


def test_the_claimed_gain_s_interval_holds_the_true_one() -> None:
    assert compute_coverage() >= 0.9 - SLACK


@dataclass(frozen=True, kw_only=True)
class Promotion:
    drift: str
    asked: bool
    """Whether a person had to agree, who always does."""

    gain: float
    """The true one on the drift."""

    elsewhere: float
    """The least true gain on what was known before."""


def three_drifts(seed: int) -> list[Promotion]:
    """Have a model meet three drifts, one after the other; return the promotions."""
    digits = Digits(seed)
    champion = digits.champion
    labelled: list[Samples] = []
    earlier: dict[str, Samples] = {}
    promotions: list[Promotion] = []
    for drift in ("turned", "moved", "hidden"):
        evaluated: list[Samples] = []
        for attempt in range(3):  # while it waits, the next window of the same drift is labelled too
            picks, drawn = digits.window(drift, champion, BUDGET, SHARE)
            labelled.append(picks)
            evaluated.append(drawn)
            challenger = digits.model(seed + attempt + 1, *labelled)
            now = evaluated[0] if len(evaluated) == 1 else sum(evaluated[1:], evaluated[0])
            slices = {CURRENT: now, **earlier, CLEAN: digits.clean}
            verdict = decide_promotion(champion, challenger, slices).verdict
            if verdict in {"promote", "ask"}:
                gains = {drift_: digits.truth(drift_, champion, challenger)[0] for drift_ in (drift, CLEAN, *earlier)}
                gain, elsewhere = gains.pop(drift), min(gains.values())
                promotions.append(Promotion(drift=drift, asked=verdict == "ask", gain=gain, elsewhere=elsewhere))
                champion = challenger
                break
        earlier[drift] = evaluated[0]
    return promotions


def test_of_three_drifts_in_a_row_each_is_followed_by_a_promotion_that_is_real() -> None:
    for seed in range(SEEDS // 3):
        promotions = three_drifts(seed)
        assert [promotion.drift for promotion in promotions] == ["turned", "moved", "hidden"]
        assert all(promotion.gain > 0.05 and promotion.elsewhere > -0.06 for promotion in promotions), promotions


def main() -> None:
    kinds = {"no better": no_better, "forgets 3": forgets, "forgets 10": forgets_much, "10 points better": ten_points}
    for name, which in kinds.items():
        for half_clean in (False, True):
            share, n = compute_promotion_share(which, half_clean=half_clean)
            print(f"{name:20} {100 * share:5.1f} % of {n} promoted{', half of the traffic clean' * half_clean}")
    print(f"{'interval covers':20} {100 * compute_coverage():5.1f} % of {len(pairs())}", end="")
    print(f"; as if truth were known exactly {100 * compute_coverage(exactly_known=True):.1f} %")
    cycles = [three_drifts(seed) for seed in range(SEEDS)]
    promotions = [step for cycle in cycles for step in cycle]
    print(f"three drifts in a row: {len(promotions)} of {3 * len(cycles)} were followed by a promotion,")
    for asked in (False, True):
        some = [promotion for promotion in promotions if promotion.asked == asked]
        print(f"  {len(some)} {'that a person agreed to' if asked else 'without a person'}, of which")
        print(f"    {sum(promotion.gain > 0 for promotion in some)} are truly better on the drift,")
        print(
            f"    and {sum(promotion.elsewhere < -0.03 for promotion in some)} truly worse by over 3 points elsewhere"
        )


if __name__ == "__main__":
    main()
