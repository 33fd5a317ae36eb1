"""The class prior: does the model predict the classes as often as it did on the reference? (Lipton et al., 2018.)

Chi square on predicted classes, against random divisions of both: its level holds for few samples and rare classes. It
needs no labels and no features, and sees what changes predictions only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.detectors import detector_storage
from scanflow.drift.detectors.detector_port import MIN_REFERENCE, Samples, Scores, check_samples, check_share
from scanflow.drift.detectors.table_detector import FittedTable, TableDetector
from scanflow.errors import InvalidError


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedClassPrior:
    """The classes as a table of one column. A sample's value is how rare its class is."""

    classes: FittedTable

    def score(self, batch: Any, *, predicted: Samples | None = None) -> Scores:
        return self.classes.score(build_column("batch", batch, predicted, least=1))

    def save(self, folder: Path) -> None:
        detector_storage.write(folder, "prior", *self.classes.encode())

    @classmethod
    def load(cls, folder: Path) -> FittedClassPrior:
        return cls(classes=FittedTable.load(folder))


@dataclass(frozen=True, kw_only=True)
class ClassPrior:
    """Detects drift in the frequency of predicted classes. Samples without ``predicted`` are class numbers (n,)."""

    level: float = 0.01
    """The largest false alarm rate for batches without drift."""

    permutations: int = 999

    def fit(
        self, reference: Any, *, regimes: Samples | None = None, predicted: Samples | None = None
    ) -> FittedClassPrior:
        check_share(self, "level")
        classes = build_column("reference", reference, predicted, least=MIN_REFERENCE)
        table = TableDetector(level=self.level, permutations=self.permutations)
        return FittedClassPrior(classes=table.fit(classes, regimes=regimes))

    load = FittedClassPrior.load


def build_column(what: str, samples: Any, predicted: Samples | None, *, least: int) -> Mapping[str, NDArray[Any]]:
    array = check_samples(what, samples if predicted is None else np.asarray(predicted).argmax(axis=1), least=least)
    if array.ndim != 1:
        raise InvalidError(
            f"The {what} has the shape {array.shape}, but the class prior compares class numbers, (n,). Give the "
            "predicted classes, for example scores.argmax(axis=1)."
        )
    if (array != np.rint(array)).any():
        raise InvalidError(f"The {what} contains fractions, but classes are whole numbers. Give the predicted classes.")
    return {"class": array.astype(np.int64).astype(str)}
