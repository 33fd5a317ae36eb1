"""A convolutional deep autoencoder (thesis 5.5.2): drift is a change of its reconstruction error.

Pictures that are blurred, shrunk or thinned are drawn better than those of the reference, so errors are compared either
way, together with the network's code and, where a model is served, with its scores: as a table, at one error level.
The only module here that needs Keras, which is imported when a network is made or read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.detectors.detector_port import Floats, Samples, Scores, check_samples, check_share
from scanflow.drift.detectors.detector_storage import read, write
from scanflow.drift.detectors.table_detector import FittedTable, TableDetector
from scanflow.drift.samples import is_table
from scanflow.errors import InvalidError, MissingExtraError, NotFoundError
from scanflow.installation import explain_install

NETWORK = "autoencoder.keras"
FEATURES = "features"
MIN_PICTURES = 100
SEEDS = 2**31
CODE = "code"
BATCH_SIZE = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedAutoencoder:
    """A trained autoencoder and the form of its pictures."""

    network: Any
    shape: tuple[int, ...]
    low: float
    high: float
    """Pictures are scaled so that the reference is from 0 to 1."""

    def build_table(self, pictures: Floats, predicted: Samples | None) -> Mapping[str, NDArray[Any]]:
        """Return the columns to compare: the mean squared error, the code, and the model's scores."""
        inputs = self.as_input(pictures)
        middle = next(at for at, layer in enumerate(self.network.layers) if layer.name == CODE)
        encoder = keras().Sequential(self.network.layers[: middle + 1])
        decoder = keras().Sequential(self.network.layers[middle + 1 :])
        code = encoder.predict(inputs, batch_size=BATCH_SIZE, verbose=0)
        decoded = np.asarray(decoder.predict(code, batch_size=BATCH_SIZE, verbose=0))
        columns = {"error": ((decoded - inputs) ** 2).reshape(len(inputs), -1).mean(axis=1), "code": np.asarray(code)}
        return columns if predicted is None else columns | {"predicted": np.asarray(predicted)}

    def as_input(self, pictures: Floats) -> NDArray[np.float32]:
        """Convert pictures to the network's input: (n, height, width, channels), mostly from 0 to 1, with sides that
        are multiples of 4."""
        scaled = ((pictures - self.low) / (self.high - self.low)).astype(np.float32)
        whole = scaled[..., None] if len(self.shape) == 2 else scaled
        more = [(0, 0), *((0, -side % 4) for side in whole.shape[1:3]), (0, 0)]
        return np.pad(whole, more, mode="edge")


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedAutoencoder:
    """A trained autoencoder, and its outputs for pictures of the reference that it was not trained on."""

    pictures: TrainedAutoencoder
    held_out: FittedTable

    def score(self, batch: Samples, *, predicted: Samples | None = None) -> Scores:
        has_predicted = any(name.startswith("predicted") for name in self.held_out.reference.columns)
        if has_predicted != (predicted is not None):
            raise InvalidError(
                "The model's scores must be given for both the reference and the batch, or for neither. Pass "
                "predicted= to both fit and score, or to neither."
            )
        return self.held_out.score(
            self.pictures.build_table(check_samples("batch", batch, shape=self.pictures.shape), predicted)
        )

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.pictures.network.save(folder / NETWORK)
        self.held_out.save(folder / FEATURES)
        options = {"shape": list(self.pictures.shape), "low": self.pictures.low, "high": self.pictures.high}
        write(folder, "autoencoder", options, {})

    @classmethod
    def load(cls, folder: Path) -> FittedAutoencoder:
        options, _ = read(folder)
        if not (folder / NETWORK).is_file():
            raise NotFoundError(f"{folder} has no {NETWORK}. Fit the detector again and save it.")
        network = keras().models.load_model(folder / NETWORK, compile=False)
        pictures = TrainedAutoencoder(
            network=network, shape=tuple(options["shape"]), low=options["low"], high=options["high"]
        )
        return cls(pictures=pictures, held_out=FittedTable.load(folder / FEATURES))


@dataclass(frozen=True, kw_only=True)
class Autoencoder:
    """Detects a change in how the network, trained on the reference, reconstructs pictures.

    Samples are pictures (n, height, width) or (n, height, width, channels). The network learns from one part of the
    reference; batches are compared with the other.
    """

    generator: np.random.Generator = field(repr=False, compare=False)
    """The generator for the weights, the order of training and the held-out pictures."""

    level: float = 0.01
    """The false alarm rate for batches without drift."""

    held_share: float = 0.4
    """The share of the reference that is held out for the comparison."""

    outlier_share: float = 0.05
    """The share of held-out pictures that counts as outliers."""

    epochs: int = 12
    code: int = 16
    """The length of a picture's code."""

    batch_size: int = 64

    def fit(
        self, reference: Samples, *, regimes: Samples | None = None, predicted: Samples | None = None
    ) -> FittedAutoencoder:
        check_share(self, "held_share")
        for name in ("epochs", "code", "batch_size"):
            if getattr(self, name) < 1:
                raise InvalidError(f"{name}={getattr(self, name)} is too small. Give 1 or more.")
        table = TableDetector(level=self.level, outlier_share=self.outlier_share)
        if isinstance(reference, Mapping) or np.ndim(reference) not in (3, 4) or min(np.shape(reference)[1:3]) < 8:
            raise InvalidError(
                "The autoencoder takes pictures (n, height, width) or (n, height, width, channels) with sides of at "
                f"least 8, but the reference is {_describe_form(reference)}. Use the detector 'table'."
            )
        pictures = check_samples("reference", reference, least=MIN_PICTURES)
        low, high = float(pictures.min()), float(pictures.max())
        if low == high:
            raise InvalidError(
                f"All values of the reference are {low:g}: there is nothing to learn. Give real pictures."
            )
        order = self.generator.permutation(len(pictures))
        held_out, training = np.split(order, [round(self.held_share * len(order))])
        sides = [side + -side % 4 for side in pictures.shape[1:3]]
        channels = pictures.shape[3] if pictures.ndim == 4 else 1
        network = build((*sides, channels), self.code, int(self.generator.integers(SEEDS)))
        fitted = TrainedAutoencoder(network=network, shape=pictures.shape[1:], low=low, high=high)
        train(network, fitted.as_input(pictures[training]), self.epochs, self.batch_size, self.generator)
        held_out_table = fitted.build_table(
            pictures[held_out], None if predicted is None else np.asarray(predicted)[held_out]
        )
        return FittedAutoencoder(
            pictures=fitted,
            held_out=table.fit(held_out_table, regimes=None if regimes is None else np.asarray(regimes)[held_out]),
        )

    load = FittedAutoencoder.load


def _describe_form(reference: Any) -> str:
    if isinstance(reference, Mapping) or is_table(reference):
        return "a table"
    return f"an array of the shape {np.shape(reference)}"


def keras() -> Any:
    try:
        from tensorflow import keras as installed
    except ImportError as error:
        raise MissingExtraError(
            f"The autoencoder needs the tensorflow extra. {explain_install('tensorflow')}"
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
            layers.Dense(code, kernel_initializer=weights(), name=CODE),
            layers.Dense(height // 4 * (width // 4) * 32, activation="relu", kernel_initializer=weights()),
            layers.Reshape((height // 4, width // 4, 32)),
            convolution(layers.Conv2DTranspose, 16),
            convolution(layers.Conv2DTranspose, channels, "sigmoid"),
        ],
        name="autoencoder",
    )
    network.compile(optimizer=keras().optimizers.Adam(2e-3), loss="mse")
    return network


def train(network: Any, inputs: NDArray[np.float32], epochs: int, size: int, generator: np.random.Generator) -> None:
    """Train with sample orders drawn from the generator, not from the process' global seed."""
    for _ in range(epochs):
        shuffled = inputs[generator.permutation(len(inputs))]
        network.fit(shuffled, shuffled, batch_size=size, epochs=1, shuffle=False, verbose=0)
