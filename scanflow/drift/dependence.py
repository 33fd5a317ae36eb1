"""Rows that depend on those before them, as measurements in order of time do, and what they count for.

A test of independent rows takes such a table for more than it says. Of a series with the autocorrelations r1, r2, ...,
n rows say as much about a mean as n / tau independent ones, with the integrated autocorrelation time
tau = 1 + 2 (r1 + r2 + ...), summed up to the first window of five tau (Sokal, Monte Carlo Methods in Statistical
Mechanics, 1997, section 3). Rows ``THINNING * tau`` apart are nearly independent, and the tests hold for them.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from scanflow.drift.column_tests import Floats
from scanflow.drift.table import Column, DataTable, compute_normal_scores
from scanflow.errors import InvalidError

THINNING = 2.0
"""How many autocorrelation times are between two rows that are compared: 0.02 is left of an autocorrelation of 0.9."""

MAX_ROWS = 1 << 15
"""Rows that are looked at, from the first on."""

_WINDOW = 5.0
_SIGNIFICANT = 4.5
"""Standard errors of the first autocorrelation, above which rows depend: chance is below one in a thousand columns."""


@dataclass(frozen=True, slots=True)
class Dependence:
    """How far rows depend on those before them."""

    column: str
    """The column of which that is most."""

    time: float
    """Its integrated autocorrelation time, in rows."""

    rows: int
    """Rows of the smaller table."""

    @property
    def effective_rows(self) -> int:
        """As many independent rows say the same about a mean."""
        return max(1, round(self.rows / self.time))

    @property
    def stride(self) -> int:
        """The distance between rows that are nearly independent."""
        return math.ceil(THINNING * self.time)


def find_dependence(reference: DataTable, current: DataTable, without: Collection[str] = ()) -> Dependence | None:
    """Return the dependence of two tables' rows; None: there is none that shows. Date-times do not count, nor columns
    that are not compared (``without``)."""
    found = [
        Dependence(name, compute_autocorrelation_time(correlations), min(reference.rows, current.rows))
        for name, column in reference.columns.items()
        if name not in without and name in current.columns and not column.is_time
        if (correlations := _correlate_both(column, current.columns[name])) is not None
    ]
    return max(found, key=lambda dependence: dependence.time, default=None)


def compute_autocorrelation_time(correlations: Floats) -> float:
    """Return the integrated autocorrelation time of autocorrelations at the lags 0, 1, ..., in steps: 1 or more."""
    times = 2 * np.cumsum(correlations) - 1
    window = np.flatnonzero(np.arange(len(times)) >= _WINDOW * times)
    return max(1.0, float(times[window[0] if len(window) else -1]))


def compute_autocorrelations(series: Floats) -> Floats:
    """Return the autocorrelations of a series of mean 0 at the lags 0, 1, ..., half of its length."""
    spectrum = np.abs(np.fft.rfft(series, 2 * len(series))) ** 2
    products = np.fft.irfft(spectrum)[: max(2, len(series) // 2)]
    correlations: Floats = products / max(float(products[0]), 1e-300)
    return correlations


def thin(
    reference: DataTable, current: DataTable, without: Collection[str] = ()
) -> tuple[DataTable, DataTable, Dependence | None]:
    """Return both tables with rows so far apart that they are nearly independent, and the dependence of all of them.

    Raises:
        InvalidError: too few rows would be left.
    """
    dependence = find_dependence(reference, current, without)
    if dependence is None:
        return reference, current, None
    before, after = (table.take(np.arange(0, table.rows, dependence.stride)) for table in (reference, current))
    try:
        before.check("reference")
        after.check("current table")
    except InvalidError as error:
        raise InvalidError(
            f"Rows depend on those before them ({dependence.column}), and one in {dependence.stride} would be "
            f"compared. {error}"
        ) from None
    return before, after, dependence


def _correlate_both(before: Column, after: Column) -> Floats | None:
    """Return the autocorrelations of a column in both tables; None: its rows do not depend on others."""
    series = [scores for column in (before, after) if (scores := _compute_scores(column)) is not None]
    if not series:
        return None
    found, weights = [compute_autocorrelations(scores) for scores in series], [len(scores) for scores in series]
    if max(each[1] * math.sqrt(weight) for each, weight in zip(found, weights, strict=True)) <= _SIGNIFICANT:
        return None
    length = min(map(len, found))
    both: Floats = np.average([each[:length] for each in found], axis=0, weights=weights)
    return both


def _compute_scores(column: Column) -> Floats | None:
    """Return a series of a column, (rows,), of mean 0: normal scores of numbers, whether it is the commonest category;
    None: it has one value."""
    if column.values.ndim > 1:
        return None
    short = column.take(slice(0, MAX_ROWS))
    levels, codes, counts = short.levels
    if len(levels) < 2:
        return None
    scores = np.zeros(len(codes))
    if short.is_numeric:
        scores[codes >= 0] = compute_normal_scores(short.values[codes >= 0].astype(np.float64))
    else:
        scores[codes == int(np.argmax(counts))] = 1.0
    scores -= scores.mean()
    return scores
