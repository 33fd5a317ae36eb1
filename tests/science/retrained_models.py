"""Digits that drift, and networks that are retrained on what was labelled of them, whose true accuracy is known.

They are scikit-learn's 1,797 digits; or MNIST's, made as small, where ``SCANFLOW_SCIENCE_DATA`` names an ``.npz`` file
with ``x_train``, ``y_train``, ``x_test`` and ``y_test``. The ones of ``unseen`` are learnt from by nobody, and true
accuracies are of these. A window has the others: what :func:`~scanflow.drift.promotion.for_evaluation` says is
evaluated by, the rest is learnt from.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from scanflow.drift.promotion import PromotionDecision, decide, for_evaluation
from scanflow.drift.slices import CURRENT, Slice

Pictures = NDArray[np.float64]
"""(n, 8, 8), 0 to 1."""

CLEAN = "clean"


def _noisy(x: Pictures, generator: np.random.Generator) -> Pictures:
    return np.clip(x + generator.normal(0, 0.45, x.shape), 0, 1)


def _move(x: Pictures, _: np.random.Generator) -> Pictures:
    return np.roll(x, 1, axis=2)


def _turn(x: Pictures, _: np.random.Generator) -> Pictures:
    return np.transpose(x, (0, 2, 1))


def _hide(x: Pictures, generator: np.random.Generator) -> Pictures:
    seen = x.copy()
    rows = generator.integers(1, 6, len(x))
    for picture, row in zip(seen, rows, strict=True):
        picture[row : row + 2] = 0.5
    return seen


DRIFTS: Mapping[str, Callable[[Pictures, np.random.Generator], Pictures]] = {
    CLEAN: lambda x, _: x,
    "noise": _noisy,
    "moved": _move,
    "turned": _turn,
    "hidden": _hide,
}


@dataclass(frozen=True, kw_only=True)
class Samples:
    x: Pictures
    y: NDArray[np.int64]

    def apply_drift(self, drift: str, generator: np.random.Generator) -> Samples:
        return Samples(x=DRIFTS[drift](self.x, generator), y=self.y)

    def take(self, at: Any) -> Samples:
        return Samples(x=self.x[at], y=self.y[at])

    def score(self, model: Any) -> NDArray[np.float64]:
        probabilities: NDArray[np.float64] = model.predict_proba(self.x.reshape(len(self.y), -1))
        return probabilities

    def __add__(self, other: Samples) -> Samples:
        return Samples(x=np.concatenate([self.x, other.x]), y=np.concatenate([self.y, other.y]))


@cache
def load_samples() -> Samples:
    if file := os.environ.get("SCANFLOW_SCIENCE_DATA"):
        with np.load(file) as arrays:
            x, y = (np.concatenate([arrays[f"{of}_train"], arrays[f"{of}_test"]]) for of in "xy")
        small = x.reshape(-1, 7, 4, 7, 4).mean(axis=(2, 4)) / 255
        return Samples(x=np.pad(small, ((0, 0), (0, 1), (0, 1))), y=y.astype(np.int64))
    digits: Any = load_digits()
    x, y = digits.data, digits.target
    return Samples(x=x.reshape(-1, 8, 8) / 16, y=y)


@dataclass(frozen=True, kw_only=True)
class Pair:
    kind: str
    drift: str
    gain: float
    """The true one, on the window that drifted."""

    clean: float
    """The true one on clean data."""

    over_traffic: float
    """The true one over the traffic to be expected, if all that is asked now has drifted."""

    error: float
    """The standard error of that, which is of as many digits as nobody has seen."""

    decision: PromotionDecision
    """Where all that is asked now has drifted."""

    half_clean: PromotionDecision
    """Where half of it is clean."""


@dataclass
class Digits:
    """Divided anew for each seed."""

    seed: int
    generator: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = np.random.default_rng(self.seed)
        whole = load_samples()
        order = self.generator.permutation(len(whole.y))
        size = 300 if len(order) < 2000 else 600
        self.reference, stream, self.clean, self.unseen = (
            whole.take(part) for part in np.split(order, np.array([0, 800, 1150]) + size)
        )
        salt = str(self.seed).encode()
        held = np.array([for_evaluation(salt + picture.tobytes()) for picture in stream.x])
        self.evaluated, self.learnt = stream.take(held), stream.take(~held)

    @cached_property
    def champion(self) -> MLPClassifier:
        return self.model(self.seed)

    def model(self, seed: int, *more: Samples) -> MLPClassifier:
        """Train a network on what was known and more."""
        reference = self.reference
        for part in more:
            reference = reference + part
        classifier = MLPClassifier((48,), alpha=1e-3, max_iter=40, learning_rate_init=5e-3, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return classifier.fit(reference.x.reshape(len(reference.y), -1), reference.y)

    def window(self, drift: str, champion: Any, budget: int, share: float) -> tuple[Samples, Samples]:
        """Return what is labelled of a window: to learn from, what the champion is unsure of; and to evaluate by."""
        evaluated = self.evaluated.apply_drift(drift, self.generator)
        drawn = self.generator.permutation(len(evaluated.y))[: round(budget * share)]
        learnt = self.learnt.apply_drift(drift, self.generator)
        sure = learnt.score(champion).max(axis=1)
        return learnt.take(np.argsort(sure)[: budget - len(drawn)]), evaluated.take(drawn)

    def pair(self, kind: str, drift: str, budget: int, share: float) -> Pair:
        """Train a champion and a challenger, and compare them at a budget of labels.

        The challenger learns ``nothing`` new, from 30 labelled points (``little``), from ``all``, or from those alone.
        """
        old = self.champion
        picks, evaluated = self.window(drift, old, budget, share)
        points = self.reference
        self.reference = points.take(slice(60 if kind == "alone" else None))
        new = self.model(self.seed + 1000, picks.take(slice({"nothing": 0, "little": 30}.get(kind))))
        self.reference = points
        true = {name: self.truth(of, old, new) for name, of in ((CURRENT, drift), (CLEAN, CLEAN))}
        slices = {CURRENT: evaluated, CLEAN: self.clean}
        now, half = (decide_promotion(old, new, slices, recent={CLEAN: share}) for share in (0.0, 0.5))
        return Pair(
            kind=kind,
            drift=drift,
            gain=true[CURRENT][0],
            clean=true[CLEAN][0],
            over_traffic=sum(share * true[name][0] for name, share in now.traffic.items()),
            error=math.hypot(*(share * true[name][1] for name, share in now.traffic.items())),
            decision=now,
            half_clean=half,
        )

    def truth(self, drift: str, old: Any, new: Any) -> tuple[float, float]:
        """Return by how much a model's accuracy is above another's on what nobody has learnt from or evaluated by, with
        the standard error of that: a digit that is drifted several times counts once."""
        gains = []
        for _ in range(4 if len(self.unseen.y) < 1000 else 1):
            seen = self.unseen.apply_drift(drift, self.generator)
            gains.append(right(new, seen).astype(float) - right(old, seen))
        of_digits = np.mean(gains, axis=0)
        return float(of_digits.mean()), float(of_digits.std() / np.sqrt(len(of_digits)))


def right(model: Any, samples: Samples) -> NDArray[np.bool_]:
    return np.asarray(model.predict(samples.x.reshape(len(samples.y), -1)) == samples.y)


def decide_promotion(
    champion: Any, challenger: Any, slices: Mapping[str, Samples], **options: Any
) -> PromotionDecision:
    """Decide as the planner does, from both models' answers to each slice."""
    slices_ = []
    for name, samples in slices.items():
        old, new = right(champion, samples), right(challenger, samples)
        counts = {"n": len(old), "champion_right": int(old.sum()), "challenger_right": int(new.sum())}
        slices_.append(Slice(name=name, **counts, gained=int((new & ~old).sum())))
    return decide(slices_, **options)
