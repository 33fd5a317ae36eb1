"""The detectors by name, those of installed packages too (entry points in the group ``scanflow.detectors``).

Such an entry is a class whose keyword arguments are the detector's options, with :meth:`~.port.Detector.fit` and
:meth:`~.port.Detector.load`. One that needs randomness takes a ``generator``. What it fits is saved by
:func:`.storage.write` under the entry's name.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scanflow.drift.detectors import storage
from scanflow.drift.detectors.port import Detector, Fitted
from scanflow.errors import InvalidError
from scanflow.plugins import load_plugin, plugin_names


def names() -> tuple[str, ...]:
    return plugin_names("detectors")


def make(name: str, *, generator: np.random.Generator, options: Mapping[str, Any] | None = None) -> Detector:
    """Return the detector of that name; ``options`` are keyword arguments of its class."""
    cls = load_plugin("detectors", name)
    chosen = dict(options or {})
    if "generator" in inspect.signature(cls).parameters:
        chosen["generator"] = generator
    try:
        detector: Detector = cls(**chosen)
    except TypeError as error:
        raise InvalidError(f"The detector {name!r} cannot have these options ({error}). Leave them out.") from error
    return detector


def load(folder: Path) -> Fitted:
    kind = storage.kind_of(folder)
    detector: Detector = load_plugin("detectors", kind)
    try:
        return detector.load(folder)
    except KeyError as error:
        raise InvalidError(f"The detector saved in {folder} lacks {error}. Fit it again and save it.") from error
