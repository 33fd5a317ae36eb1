"""A better model is one that is better: promotions by simulation, of models whose true accuracy is known.

The quick form runs with the suite; ``python -m tests.science.test_promotion_rule`` prints the table of docs/science.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pytest

from scanflow.drift.promotion import PromotionDecision, decide
from scanflow.drift.slices import CURRENT, Slice
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


def simulate_decision(
    seed: int, *, clean: float = 0.0, drifted: float = 0.0, n_clean: int = 500, window: int = WINDOW, share: float = 0.0
) -> PromotionDecision:
    """Decide by answers whose true changes are known; ``share`` of the recent predictions are clean."""
    generator = np.random.default_rng(seed)
    now = answers(generator, window, 0.70, 0.70 + drifted, DIFFER, CURRENT)
    of_clean = answers(generator, n_clean, 0.97, 0.97 + clean, max(0.02, abs(clean)), "clean")
    return decide([now, of_clean], recent={"clean": share})


def compute_promotion_share(make: Callable[[int], PromotionDecision], *verdicts: str) -> float:
    """Return how often a model is promoted without a person, or is given one of some verdicts."""
    return float(np.mean([make(seed).verdict in (verdicts or ("promote",)) for seed in range(RUNS)]))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("n_clean", [50, 200, 500, 2000])
def test_an_equal_model_is_seldom_promoted(n_clean: int, share: float) -> None:
    assert (
        compute_promotion_share(lambda seed: simulate_decision(seed, n_clean=n_clean, share=share), "promote", "ask")
        <= 0.05
    )


@pytest.mark.parametrize("n_clean", [50, 100, 200, 500, 2000])
def test_a_model_that_forgets_what_half_of_the_traffic_asks_for_is_seldom_promoted(n_clean: int) -> None:
    assert (
        compute_promotion_share(
            lambda seed: simulate_decision(seed, clean=-0.03, drifted=0.05, n_clean=n_clean, share=0.5)
        )
        <= 0.05
    )


@pytest.mark.parametrize("n_clean", [500, 2000])
def test_a_model_that_is_better_by_ten_points_mostly_is(n_clean: int) -> None:
    assert compute_promotion_share(lambda seed: simulate_decision(seed, drifted=0.10, n_clean=n_clean)) >= 0.80


@pytest.mark.parametrize(("n_clean", "mostly"), [(200, 0.90), (500, 0.99), (2000, 0.99)])
def test_a_point_that_nobody_asks_for_keeps_out_no_better_model(n_clean: int, mostly: float) -> None:
    assert (
        compute_promotion_share(lambda seed: simulate_decision(seed, clean=-0.01, drifted=0.10, n_clean=n_clean))
        >= 0.80
    )
    assert (
        compute_promotion_share(lambda seed: simulate_decision(seed, clean=-0.01, drifted=0.20, n_clean=n_clean))
        >= mostly
    )
    assert (
        compute_promotion_share(
            partial(simulate_decision, clean=-0.01, drifted=0.20, n_clean=n_clean), "promote", "ask"
        )
        >= 0.99
    )


@pytest.mark.parametrize("n_clean", [20, 50, 100, 200, 500, 2000])
@pytest.mark.parametrize("drifted", [0.10, 0.20])
def test_ten_points_that_nobody_asks_for_are_given_up_by_a_person_alone(n_clean: int, drifted: float) -> None:
    make = partial(simulate_decision, clean=-0.10, drifted=drifted, n_clean=n_clean)
    assert compute_promotion_share(make) <= (0 if n_clean >= 500 else 0.01)
    assert (
        compute_promotion_share(partial(simulate_decision, clean=-0.10, drifted=0.20, n_clean=n_clean), "ask") >= 0.95
    )


@pytest.mark.parametrize("drifted", [0.0, 0.10])
def test_the_interval_covers_the_true_gain(drifted: float) -> None:
    decisions = [simulate_decision(seed, drifted=drifted) for seed in range(RUNS)]
    assert np.mean([decision.low <= drifted <= decision.high for decision in decisions]) >= 0.90


def find_promotion_look(seed: int, drifted: float, looks: int) -> int | None:
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
    lucky = [find_promotion_look(seed, 0.0, 20) is not None for seed in range(RUNS)]
    assert np.mean(lucky) <= 0.05


CHANGES: Mapping[str, tuple[float, float, float]] = {
    "equal": (0.0, 0.0, 0.0),
    "equal, half clean": (0.0, 0.0, 0.5),
    "clean -3, drifted +5, half clean": (-0.03, 0.05, 0.5),
    "clean -1, drifted +10": (-0.01, 0.10, 0.0),
    "clean -1, drifted +20": (-0.01, 0.20, 0.0),
    "clean -10, drifted +20": (-0.10, 0.20, 0.0),
    "+5": (0.0, 0.05, 0.0),
    "+10": (0.0, 0.10, 0.0),
    "+20": (0.0, 0.20, 0.0),
}
"""True changes on clean and on drifted data, and the share of clean data in the recent predictions."""

SIZES = ((60, 500), (120, 500), (180, 50), (180, 100), (180, 200), (180, 500), (180, 2000), (300, 2000))


def _shares(true: tuple[float, float, float], window: int, n_clean: int) -> str:
    clean, drifted, share = true
    make = partial(simulate_decision, clean=clean, drifted=drifted, share=share, window=window, n_clean=n_clean)
    return f"{100 * compute_promotion_share(make):.1f} + {100 * compute_promotion_share(make, 'ask'):.1f}"


def main() -> None:
    print("Promoted by itself + by a person, in %")
    print(f"{'true change':34}" + "".join(f"{f'{window}/{n_clean}':>13}" for window, n_clean in SIZES))
    for name, true in CHANGES.items():
        print(f"{name:34}" + "".join(f"{_shares(true, *size):>13}" for size in SIZES))
    for name, drifted in (("equal", 0.0), ("+10", 0.10)):
        reverts = [find_promotion_look(seed, drifted, 20) is not None for seed in range(RUNS)]
        print(f"{name}, 20 looks at windows of 60: {100 * np.mean(reverts):.1f} %")
        covered = [
            decision.low <= drifted <= decision.high
            for decision in (simulate_decision(seed, drifted=drifted) for seed in range(RUNS))
        ]
        print(f"{name}: the interval covers in {100 * np.mean(covered):.1f} %")


if __name__ == "__main__":
    main()
