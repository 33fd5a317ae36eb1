"""A better model is one that is better: promotions by simulation, of models whose true accuracy is known."""

from __future__ import annotations

import numpy as np
import pytest

from scanflow.drift.promotion import CURRENT, PromotionDecision, Slice, decide

RUNS = 1000
CLEAN, WINDOW = 2000, 180


def answers(
    generator: np.random.Generator, n: int, champion: float, challenger: float, differ: float, name: str
) -> Slice:
    """Return two models' answers: of that accuracy each, and unlike on the share ``differ`` of points."""
    gained, lost = (differ + challenger - champion) / 2, (differ - challenger + champion) / 2
    assert min(gained, lost) >= 0
    right = champion - lost
    both, won, gone, _ = generator.multinomial(n, [right, gained, lost, 1 - right - gained - lost])
    return Slice(name=name, n=n, champion_right=int(both + gone), challenger_right=int(both + won), gained=int(won))


def decided(seed: int, *, clean: float = 0.0, drifted: float = 0.0) -> PromotionDecision:
    generator = np.random.default_rng(seed)
    now = answers(generator, WINDOW, 0.70, 0.70 + drifted, 0.20, CURRENT)
    return decide([now, answers(generator, CLEAN, 0.97, 0.97 + clean, max(0.02, abs(clean)), "clean")])


def promoted(**true: float) -> float:
    return float(np.mean([decided(seed, **true).verdict == "promote" for seed in range(RUNS)]))


def test_an_equal_model_is_seldom_promoted() -> None:
    assert promoted() <= 0.05


def test_a_model_that_forgets_is_seldom_promoted() -> None:
    assert promoted(clean=-0.03, drifted=0.05) <= 0.05


def test_a_model_that_is_better_by_ten_points_mostly_is() -> None:
    assert promoted(drifted=0.10) >= 0.80


def test_the_interval_covers_the_true_gain() -> None:
    covered = [(found := decided(seed, drifted=0.10)).low <= 0.10 <= found.high for seed in range(RUNS)]
    assert np.mean(covered) >= 0.90


def test_looking_again_and_again_does_not_promote_an_equal_model() -> None:
    lucky = 0
    for seed in range(400):
        generator = np.random.default_rng(seed)
        clean = answers(generator, CLEAN, 0.97, 0.97, 0.02, "clean")
        gained = lost = right = n = 0
        for look in range(1, 21):
            new = answers(generator, 50, 0.70, 0.70, 0.20, CURRENT)
            gained, lost, right, n = gained + new.gained, lost + new.lost, right + new.champion_right, n + new.n
            now = Slice(name=CURRENT, n=n, champion_right=right, challenger_right=right + gained - lost, gained=gained)
            if decide([now, clean], look=look).verdict == "promote":
                lucky += 1
                break
    assert lucky / 400 <= 0.05


@pytest.mark.parametrize(("n", "verdict"), [(30, "wait"), (150, "promote")])
def test_too_few_points_wait_and_say_how_many_more(n: int, verdict: str) -> None:
    part = Slice(name=CURRENT, n=n, champion_right=n // 2, challenger_right=n * 9 // 10, gained=n * 4 // 10)
    found = decide([part])
    assert found.verdict == verdict, found.reason
    assert (found.needed == 20) == (verdict == "wait")
