"""Permutation tests of one column in two tables, vectorised over all divisions of their rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special, stats

from scanflow.arrays import EXACT_MAX
from scanflow.drift.column_text import format_numbers
from scanflow.drift.table import FEW_VALUES, Column, compute_normal_scores

Floats = NDArray[np.float64]

RARE = 5
"""Categories with fewer rows than this in both tables together are merged into one."""

MAX_CUTS = 256
"""Number of values at which distribution functions are compared, evenly drawn from the existing ones."""

RELATIVE_TOLERANCE = 1e-9
"""Numbers that differ by less than this share of the interquartile range are equal: their sums were rounded
differently."""


@dataclass(frozen=True, slots=True)
class Divisions:
    """Divisions of all rows into two tables: the given one, and random ones."""

    members: NDArray[np.float32]
    """(rows, 1 + permutations): 1 where a row counts as current. The first is the given division."""

    old: int
    new: int

    @classmethod
    def draw(cls, old: int, new: int, permutations: int, generator: np.random.Generator) -> Divisions:
        members = np.zeros((old + new, 1 + permutations), np.float32)
        members[old:] = 1
        members[:, 1:] = generator.permuted(members[:, 1:], axis=0)
        return cls(members, old, new)

    def compute_difference(self, values: NDArray[np.float32]) -> Floats:
        """Return (1 + permutations, features): new mean minus old mean of ``values``, (rows, features)."""
        new = (self.members.T @ values).astype(np.float64)
        whole = values.sum(axis=0, dtype=np.float64)
        apart: Floats = new / self.new - (whole - new) / self.old
        return apart

    @property
    def weight(self) -> float:
        """The factor that makes a squared difference of means of unit variance approximately chi-square distributed."""
        return self.old * self.new / (self.old + self.new)


@dataclass(slots=True)
class ColumnTest:
    """A test under all divisions; statistic and effect are those of the given division."""

    p: Floats
    """(1 + permutations,): unadjusted p-values."""

    statistic: float = 0.0
    effect: float = 0.0
    value: tuple[str, float, float] | None = None
    """The single value that the test is about, if any, and its share of the rows before and now."""


def run_ks_test(numbers: NDArray[Any], missing: NDArray[np.bool_], divisions: Divisions) -> ColumnTest:
    """Compute the Kolmogorov-Smirnov distance at ``MAX_CUTS`` values, with Stephens' approximation of its p-value."""
    rows = np.flatnonzero(~missing)
    order = rows[np.argsort(numbers[rows], kind="stable")]
    if len(order) == 0:
        return ColumnTest(np.ones(divisions.members.shape[1]))
    ascending = numbers[order]
    last = np.flatnonzero(np.append(ascending[1:] != ascending[:-1], True)) + 1
    if len(last) > MAX_CUTS:
        last = last[np.linspace(0, len(last) - 1, MAX_CUTS).round().astype(np.intp)]
    starts = np.concatenate([[0], last])
    between = sparse.csr_array(
        (np.ones(len(order), np.float32), order, starts), shape=(len(last), len(divisions.members))
    )
    new = np.cumsum(between @ divisions.members, axis=0)
    totals = new[-1]
    olds = np.maximum(len(order) - totals, 1)
    ranks = last.astype(np.float32)[:, None]
    distance = np.abs(new / np.maximum(totals, 1) - (ranks - new) / olds).max(axis=0).astype(np.float64)
    root = np.sqrt(totals * olds / len(order)).astype(np.float64)
    p = special.kolmogorov((root + 0.12 + 0.11 / np.maximum(root, 1e-9)) * distance)
    p[root == 0] = 1.0  # one of the tables has no number, which the share of missing values shows
    return ColumnTest(np.asarray(p, np.float64), float(distance[0]), float(distance[0]))


def run_lepage_test(numbers: NDArray[Any], missing: NDArray[np.bool_], divisions: Divisions) -> Floats:
    """Return the p-values of a test of location and scale (Lepage, 1971), with normal scores in place of Wilcoxon's and
    Ansari's ranks: it detects small shifts that the largest distance misses."""
    rows = np.flatnonzero(~missing)
    if len(rows) < 2:
        return np.ones(divisions.members.shape[1])
    scores = compute_normal_scores(numbers[rows])
    both = standardise(np.stack([scores, scores**2], axis=1))
    members = divisions.members[rows] if missing.any() else divisions.members
    totals = members.sum(axis=0, dtype=np.float64) if missing.any() else float(divisions.new)
    sums = (members.T @ both).astype(np.float64)
    variance = totals * (len(rows) - totals) / (len(rows) - 1)
    statistic = (sums**2).sum(axis=1) / np.maximum(variance, 1e-9)
    return np.asarray(special.chdtrc(2, statistic), np.float64)


def run_chi2_test(codes: NDArray[np.intp], divisions: Divisions) -> ColumnTest:
    """Compute Pearson's chi-squared test of the table of categories, without missing ones (-1)."""
    present = codes >= 0
    levels, index = np.unique(codes[present], return_inverse=True)
    if len(levels) < 2:
        return ColumnTest(np.ones(divisions.members.shape[1]))
    ones = np.zeros((int(present.sum()), len(levels)), np.float32)
    ones[np.arange(len(index)), index] = 1
    new = (divisions.members[present].T @ ones).astype(np.float64)
    both = ones.sum(axis=0, dtype=np.float64)
    old = both - new
    news, olds = new.sum(axis=1, keepdims=True), old.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.nan_to_num(new / news - old / olds)
        statistic = (shares**2 * news * olds / both).sum(axis=1)
    p = np.asarray(special.chdtrc(len(levels) - 1, statistic), np.float64)
    return ColumnTest(p, float(statistic[0]), float(0.5 * np.abs(shares[0]).sum()))


def run_rare_values_test(column: Column, divisions: Divisions) -> Floats | None:
    """Return the p-values of a test of rare categories, which :func:`run_chi2_test` gets as one: whether more pairs of
    rows of one category are in one table than by chance. None: too few are there twice.

    The statistic of a division is the number of such pairs; its p-value is that of a normal distribution with the mean
    and deviation of all divisions, which only has to make them comparable.
    """
    _, codes, counts = column.levels
    rare = np.flatnonzero((counts > 1) & (counts < RARE))
    if len(rare) < RARE:
        return None
    new = np.asarray(_count_current(codes, rare, divisions), np.float64)
    old = counts[rare][:, None] - new
    pairs = (new * (new - 1) + old * (old - 1)).sum(axis=0) / 2
    return np.asarray(stats.norm.sf((pairs - pairs.mean()) / max(float(pairs.std()), 1e-9)), np.float64)


def run_repeated_value_test(column: Column, divisions: Divisions) -> ColumnTest | None:
    """Test whether the share of any single value has grown, by Fisher's exact test (one-sided).

    None: no value is repeated, or there are so few that all are compared at once. The commonest faults of data look
    so: a form's default, a sensor that hangs, a picture that is blank.
    """
    levels, codes, counts = _merge_near_levels(column)
    repeated = np.flatnonzero(counts >= RARE)
    if len(levels) <= FEW_VALUES or not len(repeated):
        return None
    new = np.rint(_count_current(codes, repeated, divisions)).astype(np.intp)
    p = np.empty(new.shape)
    for both in np.unique(counts[repeated]):
        as_many = stats.hypergeom.sf(np.arange(-1, both), len(codes), both, divisions.new)
        same = counts[repeated] == both
        p[same] = as_many[new[same]]
    at = int(p[:, 0].argmin())
    level, grown = levels[repeated[at]], int(new[at, 0])
    shares = (int(counts[repeated[at]]) - grown) / divisions.old, grown / divisions.new
    value = format_numbers([float(level)], is_time=column.is_time)[0] if column.is_numeric else str(level)
    adjusted = np.asarray(adjust_sidak(p.min(axis=0), len(repeated)), np.float64)
    return ColumnTest(adjusted, float(grown), max(0.0, shares[1] - shares[0]), (value, *shares))


def _count_current(codes: NDArray[np.intp], levels: NDArray[np.intp], divisions: Divisions) -> NDArray[np.float32]:
    """Return (levels, 1 + permutations): how many of the rows of each of these levels count as current."""
    place = np.full(int(codes.max()) + 2, -1)  # the last is of what is missing
    place[levels] = np.arange(len(levels))
    rows = np.flatnonzero(place[codes] >= 0)
    among = sparse.csr_array(
        (np.ones(len(rows), np.float32), (place[codes[rows]], rows)), shape=(len(levels), len(codes))
    )
    counted: NDArray[np.float32] = among @ divisions.members
    return counted


def _merge_near_levels(column: Column) -> tuple[NDArray[Any], NDArray[np.intp], NDArray[np.intp]]:
    """Return :attr:`Column.levels`, with nearly equal numbers merged."""
    if not column.is_numeric or column.values.dtype == np.longdouble or not np.isfinite(column.values).any():
        return column.levels
    numbers = column.values.astype(np.float64)
    with np.errstate(over="ignore"):
        unit = RELATIVE_TOLERANCE * float(np.subtract(*np.quantile(numbers[np.isfinite(numbers)], [0.75, 0.25])))
        if unit == 0 or not np.isfinite(unit):
            return column.levels
        rounded = np.round(numbers / unit) * unit + 0.0  # without it a zero may be -0
    return Column(np.where(np.abs(numbers) < EXACT_MAX * unit, rounded, numbers)).levels


def standardise(features: NDArray[Any]) -> NDArray[np.float32]:
    spread = features.std(axis=0)
    result: NDArray[np.float32] = (features - features.mean(axis=0)) / np.where(spread > 1e-6, spread, 1)
    return result.astype(np.float32)


def adjust_sidak(p: Any, many: float) -> Any:
    """Adjust the smallest of ``many`` independent p-values (Šidák): the probability that it is as small as ``p``."""
    return -np.expm1(many * np.log1p(-np.minimum(p, 1 - 1e-12)))
