"""The detectors by name, including those of installed packages (entry points in the group ``scanflow.detectors``).

Such an entry is a class whose keyword arguments are the detector's options, with :meth:`~.port.Detector.fit` and
:meth:`~.port.Detector.load`. One that needs randomness takes a ``generator``. What it fits is saved by
:func:`.storage.write` under the entry's name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scanflow.drift.detectors import detector_storage
from scanflow.drift.detectors.detector_port import Detector, FittedDetector, Scores
from scanflow.drift.samples import is_table
from scanflow.errors import InvalidError
from scanflow.plugins import list_plugins, load_plugin

__all__ = ["choose_detector", "fit", "list_detectors", "load", "make", "score"]


def list_detectors() -> tuple[str, ...]:
    """Return the names of the installed detectors, sorted."""
    return list_plugins("detectors")


def make(name: str, *, generator: np.random.Generator, options: Mapping[str, Any] | None = None) -> Detector:
    """Return the detector of that name; ``options`` are keyword arguments of its class."""
    cls = load_plugin("detectors", name)
    chosen = dict(options or {})
    if "generator" in inspect.signature(cls).parameters:
        chosen["generator"] = generator
    try:
        detector: Detector = cls(**chosen)
    except TypeError as error:
        raise InvalidError(f"The detector {name!r} does not accept these options ({error}). Remove them.") from error
    return detector


def fit(detector: Detector, reference: Any, **beside: Any) -> FittedDetector:
    """Fit a detector; ``regimes`` and ``predicted`` are passed only if the detector accepts them."""
    return detector.fit(reference, **_filter_arguments(detector.fit, beside))


def score(fitted: FittedDetector, batch: Any, **beside: Any) -> Scores:
    """Score a batch; ``predicted`` is passed only if the detector accepts it."""
    return fitted.score(batch, **_filter_arguments(fitted.score, beside))


def _filter_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    takes = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in takes and value is not None}


def choose_detector(reference: Any) -> str:
    """Return the name of the detector for this kind of data: ``autoencoder`` for pictures, (n, height, width) or
    (n, height, width, channels) with both sides at least 8; ``table`` for all other data."""
    shape = () if isinstance(reference, Mapping) or is_table(reference) else np.shape(reference)
    return "autoencoder" if len(shape) in (3, 4) and min(shape[1:3]) >= 8 else "table"


@dataclass(frozen=True, kw_only=True)
class Default:
    """The default detector for the given reference: :func:`choose_detector`."""

    generator: np.random.Generator = field(repr=False, compare=False)
    level: float = 0.01

    def fit(self, reference: Any, *, regimes: Any = None, predicted: Any = None) -> FittedDetector:
        detector = make(choose_detector(reference), generator=self.generator, options={"level": self.level})
        return fit(detector, reference, regimes=regimes, predicted=predicted)

    @staticmethod
    def load(folder: Path) -> FittedDetector:
        return load(folder)


def load(folder: Path) -> FittedDetector:
    """Return the fitted detector that was saved in a folder, of whichever kind it is."""
    detector: Detector = load_plugin("detectors", detector_storage.read_options(folder)["kind"])
    try:
        return detector.load(folder)
    except KeyError as error:
        raise InvalidError(f"The detector saved in {folder} lacks {error}. Fit it again and save it.") from error
