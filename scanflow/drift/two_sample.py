"""Two-sample tests: whether two tables come from the same distribution. By column and jointly, at one level.

Every statistic is worked out for the tables as they are and for ``permutations`` random divisions of their pooled rows,
all of them for the same divisions. Westfall and Young (1993): the share of divisions whose *smallest* p-value is as
small as a column's is that column's p-value, adjusted for having looked at all of them. It holds for any distribution,
any number of rows, and columns that depend on each other, where Bonferroni's and Holm's corrections lose power.

What columns cannot show by themselves is looked for in three more families: the means of all columns together
(Hotelling), their squares and products (which change with scale and with dependence), and maximum mean discrepancy
(Gretton et al., 2012), which sees any change. The smallest p-value of any family is adjusted once more in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from scanflow.drift.column_tests import (
    RARE,
    ColumnTest,
    Divisions,
    Floats,
    adjust_sidak,
    run_chi2_test,
    run_ks_test,
    run_lepage_test,
    run_rare_values_test,
    run_repeated_value_test,
    standardise,
)
from scanflow.drift.comparable import keep_comparable, list_incomparable_columns
from scanflow.drift.table import MIN_ROWS, Column, DataTable, Shares, align, compute_shares, project_on_main_directions
from scanflow.errors import InvalidError

MAX_ROWS = 2000
"""Maximum number of compared rows of either table; larger tables are sampled at random. The discrepancy's time grows
as its square."""

MAX_FEATURES = 64
"""Maximum number of features in joint tests; more are projected on this many main directions. Each column is still
tested separately."""

MIN_PERMUTATIONS = 999

MIN_P = 1e-12
"""The smallest p-value that is reported."""

_JOINT = ("means", "products", "mmd")

COLUMNS_SHARE = 0.5
"""The share of the error level for single columns; the joint tests divide the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDrift:
    """The test result of one column."""

    name: str
    test: str
    """``ks`` (numbers), ``chi2`` (categories and numbers with few values), ``value`` where the share of one value grew
    most, ``missing`` where that changed most; ``means`` or ``products`` where it changed together with others, not by
    itself."""

    statistic: float
    p: float
    """Adjusted for all tests; at or below the level the column has drifted."""

    effect: float
    """0 to 1: the largest difference between the distribution functions (``ks``), by how much the shares of categories
    differ overall (total variation), by how much a value's share grew, or half of the deviations that a mean or product
    moved by (1 at most)."""

    reference: dict[str, float]
    current: dict[str, float]
    shares: Shares
    """Both distributions, for plots."""

    is_time: bool = False
    """Whether its numbers are date-times, in seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointDrift:
    """The result of a joint test of all columns."""

    test: str
    """``means``, ``products`` or ``mmd``."""

    p: float
    """Adjusted for all tests."""

    concerns: tuple[ColumnDrift, ...] = field(default=(), repr=False)
    """The columns that it concerns most, if the test identifies them, because they changed together with others."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of these columns."""
        return tuple(column.name for column in self.concerns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of comparing two tables."""

    level: float
    p: float
    """Probability that two tables of one distribution differ as much by chance."""

    columns: tuple[ColumnDrift, ...]
    """All columns, the most changed first."""

    joint: tuple[JointDrift, ...]
    rows: tuple[int, int]
    statistic: float
    """The strength of the strongest sign of drift: minus the decimal logarithm of its p-value, unadjusted."""

    threshold: float
    """The statistic is above this where ``p`` is at most ``level``."""

    least_effect: float = 0.0
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Columns that were not compared, each with the reason."""

    compared_rows: tuple[int, int] = (0, 0)
    """How many rows the figures are of: all, or a sample."""

    @property
    def drifted(self) -> bool:
        """Whether the tables differ significantly; with a ``least_effect``, whether a column changed by that."""
        return self.p <= self.level if self.least_effect == 0 else bool(self.drifted_columns)

    @property
    def drifted_columns(self) -> tuple[ColumnDrift, ...]:
        """The columns that have drifted by ``least_effect`` or more."""
        return tuple(filter(self.has_drifted, self.columns))

    def has_drifted(self, column: ColumnDrift) -> bool:
        return column.p <= self.level and column.effect >= self.least_effect

    @property
    def named(self) -> tuple[ColumnDrift, ...]:
        """The columns that have drifted by themselves, then those that did together with others."""
        columns = {column.name: column for column in self.drifted_columns}
        for joint in self.joint if self.least_effect == 0 else ():
            if joint.p <= self.level:
                columns = {column.name: column for column in joint.concerns} | columns
        return tuple(sorted(columns.values(), key=lambda column: (column.test in _JOINT, column.p, -column.effect)))


def compare(
    reference: DataTable,
    current: DataTable,
    *,
    level: float = 0.01,
    least_effect: float = 0.0,
    permutations: int = MIN_PERMUTATIONS,
    seed: int = 0,
) -> Comparison:
    """Test whether ``current`` was drawn from the same distribution as ``reference``.

    Args:
        reference: Data without drift.
        current: What came since, with the same columns.
        level: How often tables drawn alike are said to differ: 0 to 0.1.
        least_effect: A column that differs by less has not drifted: 0 to 1. Above 0, columns count one by one alone.
        permutations: How many random divisions; ``1 / level`` times the number of families at least.
        seed: Of the divisions, and of the rows that are drawn from more than ``MAX_ROWS``. The same gives the same.

    Raises:
        InvalidError: other columns than the reference's, none that can be compared, too few rows or permutations.
    """
    check_options(level, permutations, least_effect)
    reference.check("reference", least=MIN_ROWS)
    current.check("batch")
    left_out = list_incomparable_columns(reference, current)
    rows = reference.rows, current.rows
    reference, current = (keep_comparable(table, left_out) for table in (reference, current))
    generator = np.random.default_rng(seed)
    before, after = align(reference.sample(MAX_ROWS, generator), current.sample(MAX_ROWS, generator))
    divisions = Divisions.draw(before.rows, after.rows, permutations, generator)
    column_tests = [
        _test_column(name, column.concatenate(after.columns[name]), divisions)
        for name, column in before.columns.items()
    ]
    features, owners = compute_joint_features([(test.column, test.codes) for test in column_tests])
    families = _compute_families(features, divisions)
    # Of all columns: how often the smallest of as many independent p-values as their median shows is as small.
    smallest = np.min([test.p for test in column_tests], axis=0)
    many = np.log(0.5) / np.log1p(-min(float(np.median(smallest)), 0.5))
    among = 1 / COLUMNS_SHARE if families else 1.0
    least = np.min(
        [among * adjust_sidak(smallest, many), *(family.compute_scaled_p(len(families)) for family in families)], axis=0
    )
    adjust = _build_adjustment(least)
    columns = [
        test.describe_drift(adjust(among * float(adjust_sidak(test.p[0], many))), before.rows) for test in column_tests
    ]
    by_owner = [columns[at] for at in owners]
    joint = [
        family.describe_drift(adjust(float(family.compute_scaled_p(len(families))[0])), by_owner) for family in families
    ]
    strict = np.sort(least)[math.floor(level * len(least))]
    return Comparison(
        level=level,
        p=adjust(float(least[0])),
        columns=tuple(sorted(columns, key=lambda column: (column.p, -column.effect))),
        joint=tuple(joint),
        rows=rows,
        compared_rows=(before.rows, after.rows),
        left_out=left_out,
        statistic=-math.log10(max(float(least[0]), MIN_P)),
        threshold=-math.log10(max(float(strict) * (1 - 1e-9), MIN_P)),
        least_effect=least_effect,
    )


def choose_permutations(level: float) -> int:
    """Return how many random divisions a level needs: 999 or more."""
    return max(MIN_PERMUTATIONS, math.ceil(5 / level)) if level > 0 else MIN_PERMUTATIONS


def check_options(level: float, permutations: int, least_effect: float) -> None:
    if not 0 < level <= 0.1:
        raise InvalidError(f"level={level} is not above 0 and at most 0.1. Give a value such as 0.01.")
    if permutations < 5 / level - 1:
        raise InvalidError(
            f"With {permutations} permutations no p-value can be as small as level={level}. "
            f"Give permutations={round(5 / level)} or more."
        )
    if not 0 <= least_effect <= 1:
        raise InvalidError(f"least_effect={least_effect} is not between 0 and 1. Give a value such as 0.1.")


@dataclass(slots=True)
class _ColumnTests:
    """The tests of one column under all divisions."""

    column: Column
    name: str
    test: str
    shown: ColumnTest
    p: Floats
    """(1 + permutations,): of all tests of the column, not adjusted for other columns."""

    codes: NDArray[np.intp] | None
    """(rows,): the category of each row, -1 for none; None if the column is numeric."""

    def describe_drift(self, p: float, old: int) -> ColumnDrift:
        before, now = self.column.summarize(slice(0, old)), self.column.summarize(slice(old, None))
        if self.shown.value is not None:
            value, *shares = self.shown.value
            before, now = ({value: share} for share in shares)
        return ColumnDrift(
            name=self.name,
            test=self.test,
            statistic=self.shown.statistic,
            p=p,
            effect=self.shown.effect,
            reference=before,
            current=now,
            shares=compute_shares(self.column, old),
            is_time=self.column.is_time,
        )


def _test_column(name: str, column: Column, divisions: Divisions) -> _ColumnTests:
    codes = column.compute_codes(rare=RARE)
    missing = column.missing
    if codes is None:
        test, shown = "ks", run_ks_test(column.values, missing, divisions)
        tests = [shown.p, run_lepage_test(column.values, missing, divisions)]
    else:
        test, shown = "chi2", run_chi2_test(codes, divisions)
        tests = [shown.p]
        if not column.is_numeric and (by_pairs := run_rare_values_test(column, divisions)) is not None:
            tests.append(by_pairs)
    least = np.min(tests, axis=0)
    if (by_value := run_repeated_value_test(column, divisions)) is not None:
        tests.append(by_value.p)
        if by_value.p[0] < least[0]:
            test, shown = "value", by_value
        least = np.minimum(least, by_value.p)
    p = np.minimum(1.0, len(tests) * least)
    if missing.any() and not missing.all():
        by_missing = run_chi2_test(missing.astype(np.intp), divisions)
        if by_missing.p[0] < p[0]:
            test, shown = "missing", by_missing
        p = np.minimum(1.0, 2 * np.minimum(p, by_missing.p))
    return _ColumnTests(column, name, test, shown, p, codes)


def compute_joint_features(
    columns: Sequence[tuple[Column, NDArray[np.intp] | None]],
) -> tuple[NDArray[np.float32], list[int]]:
    """Return (rows, features) with mean 0 and variance 1, and the column number of each feature.

    Numbers become normal scores, so that neither their scale nor a few wild values count; categories, one feature each.
    """
    features = [(values, at) for at, (column, codes) in enumerate(columns) for values in column.compute_features(codes)]
    features = [(values, at) for values, at in features if values.std() > 1e-9]
    if not features:
        return np.empty((0, 0), np.float32), []
    return standardise(np.stack([values for values, _ in features], axis=1)), [at for _, at in features]


@dataclass(slots=True)
class _Family:
    test: str
    statistic: Floats
    """(1 + permutations,): higher is further apart."""

    weight: float
    by_feature: Floats | None = None
    """(features,): the given division's statistic of each feature, if there is one."""

    def compute_scaled_p(self, families: int) -> Floats:
        """Return p-values, (1 + permutations,), divided by the family's share of the error level.

        They are those of a gamma distribution with the divisions' own mean, deviation and skewness. That need not be
        exact, for they only make families comparable; it is smooth, which ranks among the divisions are not.
        """
        spread = float(self.statistic.std())
        deviations = (self.statistic - self.statistic.mean()) / max(spread, 1e-300)
        p = stats.pearson3.sf(deviations, float((deviations**3).mean()))
        return np.asarray(p, np.float64) * families / (1 - COLUMNS_SHARE)

    def describe_drift(self, p: float, owners: Sequence[ColumnDrift]) -> JointDrift:
        """Return the family's result; ``owners``: the column of each feature."""
        concerns: dict[str, ColumnDrift] = {}
        if self.by_feature is not None:
            strongest = np.argsort(self.by_feature)[::-1]
            for at in strongest[self.by_feature[strongest] >= 0.5 * self.by_feature[strongest[0]]]:
                moved, owner = float(self.by_feature[at]), owners[at]
                effect = min(1.0, math.sqrt(moved / self.weight) / 2)
                concerns.setdefault(owner.name, replace(owner, test=self.test, statistic=moved, p=p, effect=effect))
        return JointDrift(test=self.test, p=p, concerns=tuple(concerns.values())[:5])


def _compute_families(features: NDArray[np.float32], divisions: Divisions) -> list[_Family]:
    if features.shape[1] < 2:
        return []
    few = features
    if features.shape[1] > MAX_FEATURES:
        few = standardise(project_on_main_directions(features, MAX_FEATURES - 1))
    white = whiten(few)
    weight = divisions.weight
    means = weight * (divisions.compute_difference(white) ** 2).sum(axis=1)
    moved = weight * divisions.compute_difference(features)[0] ** 2 if few is features else None
    first, second = np.triu_indices(few.shape[1])
    squares = weight * divisions.compute_difference(standardise(few[:, first] * few[:, second])) ** 2
    largest = None
    if few is features:
        largest = np.zeros(features.shape[1])
        np.maximum.at(largest, first, squares[0])
        np.maximum.at(largest, second, squares[0])
    # Few pairs that change much, or many that change a little: the larger share of either's own spread.
    together = np.maximum(_scale_robustly(squares.max(axis=1)), _scale_robustly(squares.sum(axis=1)))
    return [
        _Family("means", means, weight, moved),
        _Family("products", together, weight, largest),
        _Family("mmd", _compute_mmd(white, divisions), weight),
    ]


def _scale_robustly(statistic: Floats) -> Floats:
    """Return each value's distance from the median of random divisions, in robust deviations."""
    middle = np.median(statistic)
    upper = np.quantile(statistic, 0.99) - middle
    return (statistic - middle) / max(float(upper), 1e-12)


def whiten(features: NDArray[np.float32]) -> NDArray[np.float32]:
    values, vectors = np.linalg.eigh(np.cov(features.T.astype(np.float64)))
    significant = values > 1e-3 * values.max()
    white: NDArray[np.float32] = (features @ (vectors[:, significant] / np.sqrt(values[significant]))).astype(
        np.float32
    )
    return white


def _compute_mmd(features: NDArray[np.float32], divisions: Divisions) -> Floats:
    """Return the squared discrepancy of each division, up to a constant: with a Gaussian kernel as wide as the median
    distance."""
    squares = (features**2).sum(axis=1)
    apart = np.maximum(squares[:, None] + squares[None, :] - 2 * features @ features.T, 0)
    drawn = apart[:: max(1, len(apart) // 500), 1 :: max(1, len(apart) // 500)]
    kernel = np.exp(apart / (-2 * max(float(np.median(drawn)), 1e-12)))
    np.fill_diagonal(kernel, 0)
    toward = kernel @ divisions.members
    inside = (toward * divisions.members).sum(axis=0, dtype=np.float64)
    across = toward.sum(axis=0, dtype=np.float64) - inside
    outside = kernel.sum(dtype=np.float64) - inside - 2 * across
    new, old = divisions.new, divisions.old
    result: Floats = inside / (new * (new - 1)) + outside / (old * (old - 1)) - 2 * across / (new * old)
    return result


def _build_adjustment(least: Floats) -> Callable[[float], float]:
    """Return a function that maps a p-value to the share of divisions with one as small.

    Of a p-value below all of theirs, 1 / divisions is an upper bound; it goes down from there as the value itself does,
    which tells a sure sign from one that chance gives once in a thousand times.
    """
    ascending = np.sort(least[1:])

    def adjust(p: float) -> float:
        as_small = 1 + int(np.searchsorted(ascending, p * (1 + 1e-9), side="right"))
        further = p / ascending[0] if as_small == 1 and ascending[0] > 0 else 1.0
        return max(as_small / len(least) * float(further), MIN_P)

    return adjust
