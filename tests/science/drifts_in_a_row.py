"""A network on MNIST that meets three drifts of MNIST-C, one after the other: is each promotion real?

``python -m tests.science.drifts_in_a_row FOLDER 5`` prints the table of docs/science.md, of so many repetitions;
``FOLDER`` has ``mnist_10k.npz`` and ``mnist_c_2k.npz``. Each time the network learns on from what is in use, by 60 %
known pictures and 40 % labelled ones, as :func:`scanflow.drift.training` has it; what is evaluated by is never learnt.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.promotion import for_evaluation
from scanflow.drift.slices import CURRENT
from tests.science.retrained_models import CLEAN, Samples, decide_promotion
from tests.science.test_promotion_of_models import BUDGET, SHARE

KINDS = ("fog", "stripe", "translate")
KNOWN, SENT = 6000, 1200
NEW_SHARE = 0.4


@dataclass(frozen=True, kw_only=True)
class Promotion:
    """What followed a drift: the decision's words, and what is true, of pictures that nobody has learnt from."""

    drift: str
    verdict: str
    before: float
    after: float
    claimed: tuple[float, float]
    elsewhere: float
    """The least true gain on clean data and on earlier drifts."""


class Network:
    """A small convolutional network; ``fit`` goes on from what it was."""

    def __init__(self, seed: int) -> None:
        from tensorflow import keras

        keras.utils.set_random_seed(seed)
        layers = keras.layers
        self.model = keras.Sequential(
            [
                layers.Input((28, 28, 1)),
                layers.Conv2D(16, 5, strides=2, activation="relu"),
                layers.Conv2D(32, 3, strides=2, activation="relu"),
                layers.Flatten(),
                layers.Dense(64, activation="relu"),
                layers.Dense(10, activation="softmax"),
            ]
        )
        self.model.compile("adam", "sparse_categorical_crossentropy")

    def fit(self, samples: Samples, epochs: int) -> Network:
        self.model.fit(samples.x[..., None] / 255, samples.y, batch_size=64, epochs=epochs, verbose=0)
        return self

    def copy(self, seed: int) -> Network:
        network = Network(seed)
        network.model.set_weights(self.model.get_weights())
        return network

    def predict_proba(self, flat: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(self.model.predict(flat.reshape(-1, 28, 28, 1) / 255, batch_size=512, verbose=0))

    def predict(self, flat: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(self.predict_proba(flat).argmax(axis=1))


def in_a_row(folder: Path, seed: int) -> Iterator[Promotion]:
    """Have a network meet the drifts of ``KINDS``; while it waits, twice as many points of one are labelled."""
    generator = np.random.default_rng(seed)
    with np.load(folder / "mnist_10k.npz") as clean, np.load(folder / "mnist_c_2k.npz") as drifted:
        train = Samples(x=clean["x_train"], y=clean["y_train"].astype(np.int64))
        truth = clean["y_test"].astype(np.int64)
        kinds = {CLEAN: clean["x_test"]} | {kind: drifted[kind] for kind in KINDS}
    reference, others = (train.take(rows) for rows in np.split(generator.permutation(len(train.y)), [KNOWN]))
    sent, unseen = np.split(generator.permutation(len(truth)), [SENT])
    held = np.array([for_evaluation(str(seed).encode() + kinds[CLEAN][at].tobytes()) for at in sent])
    of = {kind: Samples(x=x, y=truth) for kind, x in kinds.items()}

    def true(kind: str, model: Network) -> float:
        some = of[kind].take(unseen)
        return float((model.predict(some.x) == some.y).mean())

    champion = Network(seed).fit(reference, 6)
    learnt: list[Samples] = []
    earlier: dict[str, Samples] = {}
    for number, kind in enumerate(KINDS):
        window = of[kind].take(sent)
        unsure = np.argsort(champion.predict_proba(window.x[~held]).max(axis=1))
        attempt = 0
        while True:
            attempt += 1
            picked = unsure[: round(attempt * BUDGET * (1 - SHARE))]
            now = window.take(held).take(slice(round(attempt * BUDGET * SHARE)))
            new = window.take(~held).take(picked)
            for part in learnt:
                new = new + part
            again = np.resize(generator.permutation(len(new.y)), round(KNOWN * NEW_SHARE / (1 - NEW_SHARE)))
            challenger = champion.copy(1000 * seed + 10 * number + attempt).fit(reference + new.take(again), 3)
            slices = decide_promotion(champion, challenger, {CURRENT: now, **earlier, CLEAN: others})
            if slices.verdict == "promote" or attempt == 2:
                break
        gains = [true(part, challenger) - true(part, champion) for part in (CLEAN, *earlier)]
        yield Promotion(
            drift=kind,
            verdict=slices.verdict,
            before=true(kind, champion),
            after=true(kind, challenger),
            claimed=(slices.low, slices.high),
            elsewhere=min(gains),
        )
        learnt.append(window.take(~held).take(picked))
        earlier[kind] = now
        champion = challenger if slices.verdict == "promote" else champion


def main(folder: Path, repetitions: int) -> None:
    print("| repetition | drift | verdict | true accuracy | claimed gain | worst true change elsewhere |")
    print("|---|---|---|---|---|---|", flush=True)
    for seed in range(repetitions):
        for step in in_a_row(folder, seed):
            low, high = step.claimed
            print(
                f"| {seed + 1} | {step.drift} | {step.verdict} | {100 * step.before:.1f} to {100 * step.after:.1f} % "
                f"| {100 * low:+.1f} to {100 * high:+.1f} | {100 * step.elsewhere:+.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
