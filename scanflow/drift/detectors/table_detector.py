"""The comparison of tables as a detector: named columns of numbers, text or categories, with missing values.

The default for tables. Pictures are compared along the main directions of reference and batch together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.comparable import keep_comparable
from scanflow.drift.detectors import detector_storage
from scanflow.drift.detectors.detector_port import MIN_REFERENCE, Floats, Samples, Scores, check_share
from scanflow.drift.regimes import draw_mixture
from scanflow.drift.table import Column, DataTable, align, compute_normal_scores
from scanflow.drift.two_sample import check_options, compare
from scanflow.errors import InvalidError

MAX_DEVIATION = 7.0
"""The strangeness of a value is limited to this many deviations."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedTable:
    """A table with its regimes. A row's value is its distance from the reference's rows, in approximate deviations; the
    statistic is minus the decimal logarithm of the smallest p-value, before it is adjusted for multiple tests.
    """

    reference: DataTable
    regimes: NDArray[np.intp]
    """(rows,): the regime of each row."""

    options: Mapping[str, Any]

    def score(self, batch: Any) -> Scores:
        current = DataTable.from_data(batch, names=self.options["columns"])
        current.check("batch")
        order = current.compute_order()  # what is found does not depend on the order that rows came in
        current = current.take(order)
        chosen = draw_mixture(self.reference, self.regimes, current, np.random.default_rng(0))
        reference = self.reference.take(chosen)
        comparison = compare(
            reference, current, **{name: self.options[name] for name in ("level", "least_effect", "permutations")}
        )
        own, new = compute_strangeness(*(keep_comparable(table, comparison.left_out) for table in (reference, current)))
        values = np.empty(len(new))
        values[order] = new
        return Scores(
            values=values,
            outlier_threshold=float(np.quantile(own, 1 - self.options["outlier_share"], method="higher")),
            statistic=comparison.statistic,
            threshold=comparison.threshold if comparison.drifted else max(comparison.statistic, comparison.threshold),
            p_value=comparison.p,
            columns=comparison.named,
            regimes=tuple((np.bincount(self.regimes[chosen], minlength=self.regimes.max() + 1) / len(chosen)).tolist()),
        )

    def save(self, folder: Path) -> None:
        detector_storage.write(folder, "table", *self.encode())

    def encode(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Encode the detector for a file: options, and arrays."""
        names = list(self.reference.columns)
        arrays: dict[str, NDArray[Any]] = {"regimes": self.regimes}
        for at, column in enumerate(self.reference.columns.values()):
            text = column.values.dtype.kind == "O"
            arrays[f"column{at}"] = np.where(column.missing, "", column.values).astype(str) if text else column.values
            if text:
                arrays[f"missing{at}"] = column.missing
        return {"names": names, **self.options}, arrays

    @classmethod
    def from_parts(cls, options: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> FittedTable:
        columns: dict[str, Column] = {}
        for at, name in enumerate(options["names"]):
            values = arrays[f"column{at}"]
            if f"missing{at}" in arrays:
                values = values.astype(object)
                values[arrays[f"missing{at}"]] = None
            columns[name] = Column(values)
        options = {name: options[name] for name in TableDetector.__dataclass_fields__}
        return cls(reference=DataTable(columns), regimes=arrays["regimes"], options=options)

    @classmethod
    def load(cls, folder: Path) -> FittedTable:
        return cls.from_parts(*detector_storage.read(folder))


@dataclass(frozen=True, kw_only=True)
class TableDetector:
    """Tests each column and all columns together for drift, at one error level: :mod:`scanflow.drift.two_sample`.

    Samples are a DataFrame, a mapping of columns, an array with named fields, or one of (n, ...).
    """

    level: float = 0.01
    """The false alarm rate for batches without drift: 0 to 0.1."""

    least_effect: float = 0.0
    """A column that differs by less has not drifted: 0 to 1. If above 0, only single columns raise an alarm."""

    permutations: int = 999
    columns: Sequence[str] | None = None
    """Names for the columns of arrays without names, for example those of the model's signature."""

    outlier_share: float = 0.01
    """The share of the reference itself that counts as outliers."""

    def fit(self, reference: Any, *, regimes: Samples | None = None) -> FittedTable:
        check_share(self, "outlier_share")
        check_options(self.level, self.permutations, self.least_effect)
        table = DataTable.from_data(reference, names=self.columns)
        table.check("reference", least=MIN_REFERENCE)
        options = {name: getattr(self, name) for name in self.__dataclass_fields__}
        kinds = np.zeros(table.rows, np.intp) if regimes is None else np.asarray(regimes).astype(np.intp)
        if len(kinds) != table.rows:
            raise InvalidError(f"There are {len(kinds)} regimes for {table.rows} rows. Give one regime for each row.")
        return FittedTable(reference=table, regimes=kinds, options=options)

    load = FittedTable.load


def compute_strangeness(reference: DataTable, current: DataTable) -> tuple[Floats, Floats]:
    """Compute each row's distance from the reference, (m,) and (n,): the fourth root of the mean fourth power of its
    values, as deviations of columns that the reference's covariance made independent. One very strange value counts."""
    before, after = align(reference, current)
    pairs = [_compute_deviations(column, after.columns[name]) for name, column in before.columns.items()]
    both = np.concatenate([np.column_stack([pair[side] for pair in pairs]) for side in (0, 1)])
    own = both[: reference.rows]
    spread = own.std(axis=0)
    both = (both - own.mean(axis=0)) / np.where(spread > 1e-6, spread, 1)
    variances, axes = np.linalg.eigh(np.atleast_2d(np.cov(both[: reference.rows].T)))
    turned = both @ (axes / np.sqrt(np.maximum(variances, 0) + 0.05)) @ axes.T
    lengths = (np.clip(turned, -1e3, 1e3) ** 4).mean(axis=1) ** 0.25
    return lengths[: reference.rows], lengths[reference.rows :]


def _compute_deviations(before: Column, after: Column) -> tuple[Floats, Floats]:
    """Return (m, k) and (n, k): each value's approximate number of deviations from the reference's centre."""
    both, old = before.concatenate(after), len(before.values)
    features = [_compute_surprise(both.missing.astype(np.intp), old)] if both.missing.any() else []
    if both.is_numeric:
        values, reference = both.values.astype(np.float64), both.values[:old][~both.missing[:old]].astype(np.float64)
        scores = np.zeros(len(values))
        if len(reference):
            ascending, first = np.unique(reference, return_index=True)
            scores = np.interp(values, ascending, compute_normal_scores(reference)[first])
            low, high = np.quantile(reference, [0.16, 0.84])
            scale = (high - low) / 2 or reference.std() or np.finfo(float).tiny
            beyond = np.maximum(values - ascending[-1], 0) + np.minimum(values - ascending[0], 0)
            with np.errstate(over="ignore"):
                scores += np.clip(np.nan_to_num(beyond) / scale, -MAX_DEVIATION, MAX_DEVIATION)
        features.append(np.where(both.missing, 0.0, scores))
    else:
        features.append(_compute_surprise(both.levels[1], old))
    stacked = np.stack(features, axis=1)
    return stacked[:old], stacked[old:]


def _compute_surprise(codes: NDArray[np.intp], old: int) -> Floats:
    """Compute the rarity of each row's category among the first ``old``, in deviations: 0 for the most common."""
    levels, index = np.unique(codes, return_inverse=True)
    counts = np.bincount(index[:old], minlength=len(levels))
    rarer = np.array([counts[counts <= count].sum() for count in counts]) + 0.5
    surprises: Floats = np.array([NormalDist().inv_cdf(1 - share / 2) for share in np.minimum(rarer / (old + 1), 1)])
    return surprises[index]
