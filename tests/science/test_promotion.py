"""A better model is one that is better: promotions by simulation, of models whose true accuracy is known.

The quick form runs with the suite; ``python -m tests.science.test_promotion`` prints the table of docs/science.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from scanflow.drift.promotion import CURRENT, PromotionDecision, Slice, decide
from tests.science.test_promotion_of_models import BUDGET, LONG, SHARE

pytestmark = pytest.mark.science
RUNS = 4000 if LONG else 500
WINDOW = round(BUDGET * SHARE)
DIFFER = 0.20  # of the drifted points: what the two answer differently


def answers(
    generator: np.random.Generator, n: int, champion: float, challenger: float, differ: float, name: str
) -> Slice:
    """Return two models' answers: of that accuracy each, and unlike on the share ``differ`` of points."""
    gained, lost = (differ + challenger - champion) / 2, (differ - challenger + champion) / 2
    assert min(gained, lost) >= 0
    right = champion - lost
    both, won, gone, _ = generator.multinomial(n, [right, gained, lost, 1 - right - gained - lost])
    return Slice(name=name, n=n, champion_right=int(both + gone), challenger_right=int(both + won), gained=int(won))


def decided(
    seed: int, *, clean: float = 0.0, drifted: float = 0.0, n_clean: int = 500, window: int = WINDOW
) -> PromotionDecision:
    generator = np.random.default_rng(seed)
    now = answers(generator, window, 0.70, 0.70 + drifted, DIFFER, CURRENT)
    return decide([now, answers(generator, n_clean, 0.97, 0.97 + clean, max(0.02, abs(clean)), "clean")])


def promoted(make: Callable[[int], PromotionDecision]) -> float:
    return float(np.mean([make(seed).verdict == "promote" for seed in range(RUNS)]))


@pytest.mark.parametrize("n_clean", [200, 500, 2000])
def test_an_equal_model_is_seldom_promoted(n_clean: int) -> None:
    assert promoted(lambda seed: decided(seed, n_clean=n_clean)) <= 0.05


@pytest.mark.parametrize("n_clean", [50, 100, 200, 500, 2000])
def test_a_model_that_forgets_is_seldom_promoted(n_clean: int) -> None:
    assert promoted(lambda seed: decided(seed, clean=-0.03, drifted=0.05, n_clean=n_clean)) <= 0.05


@pytest.mark.parametrize("n_clean", [500, 2000])
def test_a_model_that_is_better_by_ten_points_mostly_is(n_clean: int) -> None:
    assert promoted(lambda seed: decided(seed, drifted=0.10, n_clean=n_clean)) >= 0.80


@pytest.mark.parametrize("drifted", [0.0, 0.10])
def test_the_interval_covers_the_true_gain(drifted: float) -> None:
    found = [decided(seed, drifted=drifted) for seed in range(RUNS)]
    assert np.mean([one.low <= drifted <= one.high for one in found]) >= 0.90


def looked_at_again(seed: int, drifted: float, looks: int) -> int | None:
    """Return at which look a model is promoted, as a window after the other is labelled; None: at none."""
    generator = np.random.default_rng(seed)
    clean = answers(generator, 500, 0.97, 0.97, 0.02, "clean")
    gained = lost = right = n = 0
    for look in range(1, looks + 1):
        new = answers(generator, 60, 0.70, 0.70 + drifted, DIFFER, CURRENT)
        gained, lost, right, n = gained + new.gained, lost + new.lost, right + new.champion_right, n + new.n
        now = Slice(name=CURRENT, n=n, champion_right=right, challenger_right=right + gained - lost, gained=gained)
        if decide([now, clean], look=look).verdict == "promote":
            return look
    return None


def test_looking_again_and_again_does_not_promote_an_equal_model() -> None:
    lucky = [looked_at_again(seed, 0.0, 20) is not None for seed in range(RUNS)]
    assert np.mean(lucky) <= 0.05


CHANGES: Mapping[str, tuple[float, float]] = {
    "equal": (0.0, 0.0),
    "clean -3, drifted +5": (-0.03, 0.05),
    "clean -3, drifted +20": (-0.03, 0.20),
    "+5": (0.0, 0.05),
    "+10": (0.0, 0.10),
    "+20": (0.0, 0.20),
}
SIZES = ((60, 500), (120, 500), (180, 50), (180, 100), (180, 200), (180, 500), (180, 2000), (300, 2000))


def _share(true: tuple[float, float], window: int, n_clean: int) -> float:
    clean, drifted = true
    return promoted(lambda seed: decided(seed, clean=clean, drifted=drifted, window=window, n_clean=n_clean))


def main() -> None:
    print(f"{'true change':22}" + "".join(f"{f'{window}/{n_clean}':>12}" for window, n_clean in SIZES))
    for name, true in CHANGES.items():
        print(f"{name:22}" + "".join(f"{100 * _share(true, *size):11.1f}%" for size in SIZES))
    for name, drifted in (("equal", 0.0), ("+10", 0.10)):
        found = [looked_at_again(seed, drifted, 20) is not None for seed in range(RUNS)]
        print(f"{name}, 20 looks at windows of 60: {100 * np.mean(found):.1f} %")
        covered = [one.low <= drifted <= one.high for one in (decided(seed, drifted=drifted) for seed in range(RUNS))]
        print(f"{name}: the interval covers in {100 * np.mean(covered):.1f} %")


if __name__ == "__main__":
    main()
