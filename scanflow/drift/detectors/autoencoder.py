"""A convolutional deep autoencoder (thesis 5.5.2): what it cannot draw again is unlike all that it has learnt from.

The only module here that needs Keras, which is imported when a network is made or read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.detectors.port import Floats, Samples, Scores
from scanflow.drift.detectors.samples import checked
from scanflow.drift.detectors.statistics import check_share, exceedances_allowed, exceedances_at_least
from scanflow.drift.detectors.storage import read, write
from scanflow.errors import InvalidError, MissingExtraError, NotFoundError

NETWORK = "autoencoder.keras"
OPTIONS = ("low", "high", "level", "quantile", "alarm_above")
LEAST_PICTURES = 100
SEEDS = 2**31
AT_ONCE = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedAutoencoder:
    """A trained autoencoder. A sample's value is its mean squared error, the statistic is the share of outliers."""

    network: Any
    shape: tuple[int, ...]
    low: float
    high: float
    """Pictures are scaled so that the reference is from 0 to 1."""

    level: float
    quantile: float
    alarm_above: float
    errors: Floats
    """(held,): errors on pictures of the reference that were not trained on, ascending."""

    @property
    def rank(self) -> int:
        """How many of the held-out errors are at or above the threshold for outliers."""
        return max(1, math.floor((1 - self.quantile) * len(self.errors)))

    def score(self, batch: Samples) -> Scores:
        values = self.errors_of(checked("batch", batch, shape=self.shape))
        usual = float(self.errors[-self.rank])
        above, new, held = int((values > usual).sum()), len(values), len(self.errors)
        return Scores(
            values=values,
            outlier_threshold=usual,
            statistic=above / new,
            threshold=max(self.alarm_above, exceedances_allowed(self.level, new, held, self.rank) / new),
            p_value=exceedances_at_least(above, new, held, self.rank),
        )

    def errors_of(self, pictures: Floats) -> Floats:
        given = self.as_input(pictures)
        drawn = np.asarray(self.network.predict(given, batch_size=AT_ONCE, verbose=0))
        errors: Floats = ((drawn - given) ** 2).reshape(len(given), -1).mean(axis=1).astype(np.float64)
        return errors

    def as_input(self, pictures: Floats) -> NDArray[np.float32]:
        """Return pictures as the network takes them: (n, height, width, channels), mostly from 0 to 1."""
        scaled = ((pictures - self.low) / (self.high - self.low)).astype(np.float32)
        return scaled[..., None] if len(self.shape) == 2 else scaled

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.network.save(folder / NETWORK)
        options = {name: getattr(self, name) for name in OPTIONS}
        write(folder, "autoencoder", options, {"shape": np.array(self.shape), "errors": self.errors})

    @classmethod
    def load(cls, folder: Path) -> FittedAutoencoder:
        options, arrays = read(folder)
        if not (folder / NETWORK).is_file():
            raise NotFoundError(f"{folder} has no {NETWORK}. Fit the detector again and save it.")
        network = keras().models.load_model(folder / NETWORK, compile=False)
        shape = tuple(int(side) for side in arrays["shape"])
        given = {name: options[name] for name in OPTIONS}
        return cls(network=network, shape=shape, errors=arrays["errors"], **given)


@dataclass(frozen=True, kw_only=True)
class Autoencoder:
    """Looks for pictures that the network, trained on the reference, reconstructs badly.

    Samples are pictures (n, height, width) or (n, height, width, channels), whose sides are multiples of 4. A held-out
    fifth of the reference says which errors are usual.
    """

    generator: np.random.Generator = field(repr=False, compare=False)
    """Where the weights, the order of training and the held-out pictures are drawn from."""

    level: float = 0.01
    """How often a batch without drift raises an alarm, at most."""

    quantile: float = 0.95
    """A picture is an outlier when its error is above this quantile of the held-out errors."""

    alarm_above: float = 0.0
    """The batch has drifted when the share of outliers is above this too: what is certain may still be too little."""

    epochs: int = 12
    code: int = 16
    """How many numbers a picture is squeezed into."""

    batch_size: int = 64

    def fit(self, reference: Samples) -> FittedAutoencoder:
        check_share(self, "level", "quantile")
        for name in ("epochs", "code", "batch_size"):
            if getattr(self, name) < 1:
                raise InvalidError(f"{name}={getattr(self, name)} is too few. Give 1 or more.")
        pictures = checked("reference", reference, least=LEAST_PICTURES)
        shape = pictures.shape[1:]
        if len(shape) not in (2, 3) or any(side < 8 or side % 4 for side in shape[:2]):
            raise InvalidError(
                f"The reference's samples have the shape {shape}; the autoencoder takes pictures (height, width) or "
                "(height, width, channels) with sides that are multiples of 4, from 8 on. Pad them, or use 'ks'."
            )
        low, high = float(pictures.min()), float(pictures.max())
        if low == high:
            raise InvalidError(f"All of the reference is {low:g}: there is nothing to learn. Give real pictures.")
        order = self.generator.permutation(len(pictures))
        held = order[: max(20, len(order) // 5)]
        network = build((*shape, 1) if len(shape) == 2 else shape, self.code, int(self.generator.integers(SEEDS)))
        untold = FittedAutoencoder(
            network=network,
            shape=shape,
            low=low,
            high=high,
            level=self.level,
            quantile=self.quantile,
            alarm_above=self.alarm_above,
            errors=np.empty(0),
        )
        train(network, untold.as_input(pictures[order[len(held) :]]), self.epochs, self.batch_size, self.generator)
        return replace(untold, errors=np.sort(untold.errors_of(pictures[held])))

    load = FittedAutoencoder.load


def keras() -> Any:
    try:
        from tensorflow import keras as installed
    except ImportError as error:
        raise MissingExtraError(
            "The autoencoder needs the tensorflow extra. Install it: pip install 'scanflow[tensorflow]'"
        ) from error
    return installed


def build(shape: tuple[int, ...], code: int, seed: int) -> Any:
    """Return an untrained autoencoder for pictures of that shape, (height, width, channels)."""
    layers = keras().layers
    height, width, channels = shape
    seeds = iter(range(seed, seed + 100))

    def weights() -> Any:
        return keras().initializers.GlorotUniform(seed=next(seeds))

    def convolution(kind: Any, filters: int, activation: str = "relu") -> Any:
        return kind(filters, 3, strides=2, padding="same", activation=activation, kernel_initializer=weights())

    network = keras().Sequential(
        [
            layers.Input(shape),
            convolution(layers.Conv2D, 16),
            convolution(layers.Conv2D, 32),
            layers.Flatten(),
            layers.Dense(code, kernel_initializer=weights()),
            layers.Dense(height // 4 * (width // 4) * 32, activation="relu", kernel_initializer=weights()),
            layers.Reshape((height // 4, width // 4, 32)),
            convolution(layers.Conv2DTranspose, 16),
            convolution(layers.Conv2DTranspose, channels, "sigmoid"),
        ],
        name="autoencoder",
    )
    network.compile(optimizer=keras().optimizers.Adam(2e-3), loss="mse")
    return network


def train(network: Any, given: NDArray[np.float32], epochs: int, size: int, generator: np.random.Generator) -> None:
    """Train in orders that the generator gives, not the seed of the whole process."""
    for _ in range(epochs):
        shuffled = given[generator.permutation(len(given))]
        network.fit(shuffled, shuffled, batch_size=size, epochs=1, shuffle=False, verbose=0)
