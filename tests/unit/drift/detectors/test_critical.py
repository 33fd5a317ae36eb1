"""Critical points: the strange and the doubtful, of many kinds, the same ones in whatever order samples come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.drift.selection import CriticalPoint, ScoredSamples, compute_uncertainty, pick
from scanflow.errors import InvalidError


def batch(seed: int = 0, count: int = 40) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    strangeness = generator.random(count)
    return {
        "ids": [f"id-{number:03d}" for number in range(count)],
        "runs": [f"run-{number % 3}" for number in range(count)],
        "guesses": generator.integers(0, 10, count).tolist(),
        "strangeness": strangeness,
        "uncertainty": generator.random(count),
        "outliers": np.flatnonzero(strangeness > 0.8),
        "features": generator.normal(size=(count, 3)),
        "most": 10,
    }


def pick_from(batch: dict[str, Any]) -> list[CriticalPoint]:
    return pick(ScoredSamples(**{name: value for name, value in batch.items() if name != "most"}), batch["most"])


def reorder(given_: dict[str, Any], order: Any) -> dict[str, Any]:
    back = np.argsort(order)
    other: dict[str, Any] = {key: [given_[key][at] for at in order] for key in ("ids", "runs", "guesses")}
    other |= {key: given_[key][order] for key in ("strangeness", "uncertainty", "features")}
    return other | {"outliers": np.sort(back[given_["outliers"]]), "most": given_["most"]}


@given(st.integers(0, 10_000), st.integers(0, 60))
def test_only_outliers_and_doubtful_ones_are_picked_none_twice_and_no_more_than_wanted(seed: int, most: int) -> None:
    given_: dict[str, Any] = batch(seed) | {"most": most}

    points = pick_from(given_)

    eligible = set(given_["outliers"].tolist()) | set(np.flatnonzero(given_["uncertainty"] > 0.5).tolist())
    assert {point.index for point in points} <= eligible
    assert len({point.id for point in points}) == len(points) == min(most, len(eligible))
    for point in points:
        of = [given_[name][point.index] for name in ("ids", "runs", "guesses")]
        assert [point.id, point.run, point.guess] == of
        assert 0 <= point.score <= 1


@given(st.integers(0, 10_000))
def test_the_order_of_samples_does_not_matter(seed: int) -> None:
    given_: dict[str, Any] = batch(seed)
    order = np.random.default_rng(seed).permutation(len(given_["ids"]))

    def list_scores(points: list[CriticalPoint]) -> list[tuple[str, float]]:
        return [(point.id, point.score) for point in points]

    assert list_scores(pick_from(given_)) == list_scores(pick_from(reorder(given_, order)))


def test_the_best_score_comes_first() -> None:
    given_: dict[str, Any] = batch() | {"strangeness": np.arange(40.0), "uncertainty": np.full(40, 0.6)}

    guess = given_["guesses"][39]
    assert pick_from(given_)[0] == CriticalPoint(id="id-039", run="run-0", index=39, guess=guess, score=0.8)


def test_of_three_groups_of_like_samples_one_each_is_picked_first() -> None:
    features = np.repeat([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]], [30, 5, 5], axis=0)
    features += np.random.default_rng(0).normal(scale=0.01, size=features.shape)
    given_: dict[str, Any] = batch() | {"features": features, "uncertainty": np.full(40, 0.9), "most": 3}

    groups = {0 if point.index < 30 else 1 if point.index < 35 else 2 for point in pick_from(given_)}

    assert groups == {0, 1, 2}


def test_samples_that_are_all_the_same_are_picked_by_score() -> None:
    given_: dict[str, Any] = batch() | {"features": np.zeros((40, 2)), "uncertainty": np.full(40, 0.9), "most": 5}

    points = pick_from(given_)

    assert [point.index for point in points] == np.argsort(-given_["strangeness"])[:5].tolist()


def test_no_samples_give_no_points_and_one_is_picked_when_it_is_doubtful() -> None:
    empty = {key: value[:0] if hasattr(value, "__getitem__") else value for key, value in batch().items()}
    assert pick_from(empty) == []
    single: dict[str, Any] = batch(count=1) | {"uncertainty": np.ones(1)}
    assert [point.id for point in pick_from(single)] == ["id-000"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"runs": ["one"]}, "There are 40 ids, but {'runs': 1}"),
        ({"ids": ["same"] * 40}, "Some ids occur twice"),
        ({"most": -1}, "most=-1 is below 0"),
        ({"strangeness": np.full(40, np.nan)}, "NaN or infinite"),
    ],
)
def test_what_cannot_be_picked_from_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidError, match=words):
        pick_from(batch() | change)


def test_a_model_that_gives_one_class_all_is_sure_and_one_that_halves_is_not() -> None:
    scores = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.6, 0.3, 0.1]])

    assert compute_uncertainty(scores) == pytest.approx([0.0, 1.0, 0.7])


@pytest.mark.parametrize("scores", [np.ones(3), np.ones((3, 1)), np.array([[2.0, -1.0]])])
def test_what_are_no_probabilities_is_refused(scores: Any) -> None:
    with pytest.raises(InvalidError, match="Give probabilities"):
        compute_uncertainty(scores)
