"""Two tables: was the second drawn as the first was? Column by column, and of all columns together, at one error level.

Every statistic is worked out for the tables as they are and for ``permutations`` random divisions of their pooled rows,
all of them for the same divisions. Westfall and Young (1993): the share of divisions whose *smallest* p-value is as
small as a column's is that column's p-value, adjusted for having looked at all of them. It holds for any distribution,
any number of rows, and columns that depend on each other, where Bonferroni's and Holm's corrections lose power.

What columns cannot show by themselves is looked for in three more families: the means of all columns together
(Hotelling), their squares and products (which change with scale and with dependence), and maximum mean discrepancy
(Gretton et al., 2012), which sees any change. The smallest p-value of any family is adjusted once more in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from scanflow.drift.table import Column, DataTable, Shares, normal_scores, paired, shares
from scanflow.errors import InvalidError

Floats = NDArray[np.float64]

MOST_ROWS = 2000
"""So many rows of either table are compared; of more, as many at random. The discrepancy's time grows as its square."""

MOST_FEATURES = 64
"""Of more features, so many main directions are looked at together; each column is still looked at by itself."""

RARE = 5
"""Categories with fewer rows than this in both tables together are taken as one."""

LEAST_ROWS = 10

COLUMNS_SHARE = 0.5
"""The share of the error level that is for columns one by one; the tests of all together divide the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDrift:
    """What became of one column."""

    name: str
    test: str
    """``ks`` (numbers), ``chi2`` (categories and numbers with few values), ``missing`` where that changed most."""

    statistic: float
    p: float
    """Adjusted for all that was looked at; below the level the column has drifted."""

    effect: float
    """0 to 1: the largest difference between the distribution functions (``ks``), or by how much the shares of
    categories differ in all (total variation)."""

    reference: dict[str, float]
    current: dict[str, float]
    shares: Shares
    """Both distributions, to be drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointDrift:
    """What became of all columns together."""

    test: str
    """``means``, ``products`` or ``mmd``."""

    p: float
    """Adjusted for all that was looked at."""

    columns: tuple[str, ...]
    """The columns that it concerns most, where the test can say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What two tables differ in."""

    level: float
    p: float
    """How often tables drawn alike differ as much, by chance."""

    columns: tuple[ColumnDrift, ...]
    """Each column, the one that changed most first."""

    joint: tuple[JointDrift, ...]
    rows: tuple[int, int]
    least_effect: float = 0.0

    @property
    def drifted(self) -> bool:
        """Whether the second table was drawn otherwise; with a ``least_effect``, whether a column moved by that."""
        together = self.least_effect == 0 and any(one.p <= self.level for one in self.joint)
        return bool(self.drifted_columns) or together

    @property
    def drifted_columns(self) -> tuple[ColumnDrift, ...]:
        """The columns that have drifted by ``least_effect`` or more."""
        return tuple(one for one in self.columns if one.p <= self.level and one.effect >= self.least_effect)


def compare(
    reference: DataTable,
    current: DataTable,
    *,
    level: float = 0.01,
    least_effect: float = 0.0,
    permutations: int = 999,
    seed: int = 0,
) -> Comparison:
    """Say whether ``current`` was drawn as ``reference`` was.

    Args:
        reference: Data without drift.
        current: What came since, with the same columns.
        level: How often tables drawn alike are said to differ: 0 to 0.1.
        least_effect: A column that differs by less has not drifted: 0 to 1. Above 0, columns count one by one alone.
        permutations: How many random divisions; ``1 / level`` times the number of families at least.
        seed: Of the divisions, and of the rows that are drawn from more than ``MOST_ROWS``. The same gives the same.

    Raises:
        InvalidError: other columns than the reference's, too few rows or permutations.
    """
    if not 0 < level <= 0.1:
        raise InvalidError(f"level={level} is not above 0 and at most 0.1. Give 0.01, say.")
    if permutations < 5 / level - 1:
        raise InvalidError(
            f"With {permutations} permutations no p-value is as small as level={level}. "
            f"Give permutations={round(5 / level)} or more."
        )
    if not 0 <= least_effect <= 1:
        raise InvalidError(f"least_effect={least_effect} is not between 0 and 1. Give 0.1, say.")
    for what, table in (("reference", reference), ("current", current)):
        if table.rows < LEAST_ROWS:
            raise InvalidError(f"The {what} table has {table.rows} rows, and at least {LEAST_ROWS} are needed.")
    generator = np.random.default_rng(seed)
    pairs = paired(reference.some(MOST_ROWS, generator), current.some(MOST_ROWS, generator))
    rows = (min(reference.rows, MOST_ROWS), min(current.rows, MOST_ROWS))
    divisions = Divisions.drawn(*rows, permutations, generator)
    looks = [_look(name, before.then(after), divisions) for name, (before, after) in pairs.items()]
    features, owners = _features(looks)
    families = _joint(features, divisions)
    # Of all columns: how often the smallest of as many independent p-values as their median shows is as small.
    smallest = np.min([look.p for look in looks], axis=0)
    many = np.log(0.5) / np.log1p(-min(float(np.median(smallest)), 0.5))
    among = 1 / COLUMNS_SHARE if families else 1.0
    least = np.min([among * _of_many(smallest, many), *(one.scaled(len(families)) for one in families)], axis=0)
    adjusted = _share_at_most(least)
    columns = [look.found(adjusted(among * float(_of_many(look.p[0], many))), rows[0]) for look in looks]
    joint = [
        JointDrift(
            test=one.test, p=adjusted(float(one.scaled(len(families))[0])), columns=_concerned(one, owners, looks)
        )
        for one in families
    ]
    return Comparison(
        level=level,
        p=adjusted(float(least[0])),
        columns=tuple(sorted(columns, key=lambda one: (one.p, -one.effect))),
        joint=tuple(joint),
        rows=(reference.rows, current.rows),
        least_effect=least_effect,
    )


@dataclass(frozen=True, slots=True)
class Divisions:
    """Divisions of all rows into two tables: the given one, and random ones."""

    members: NDArray[np.float32]
    """(rows, 1 + permutations): 1 where a row counts as current. The first is the given division."""

    old: int
    new: int

    @classmethod
    def drawn(cls, old: int, new: int, permutations: int, generator: np.random.Generator) -> Divisions:
        members = np.zeros((old + new, 1 + permutations), np.float32)
        members[old:] = 1
        members[:, 1:] = generator.permuted(members[:, 1:], axis=0)
        return cls(members, old, new)

    def difference(self, values: NDArray[np.float32]) -> Floats:
        """Return (1 + permutations, features): new mean less old mean of ``values``, (rows, features)."""
        new = (self.members.T @ values).astype(np.float64)
        whole = values.sum(axis=0, dtype=np.float64)
        apart: Floats = new / self.new - (whole - new) / self.old
        return apart

    @property
    def weight(self) -> float:
        """What a squared difference of means of unit variance is multiplied by to be about a chi square."""
        return self.old * self.new / (self.old + self.new)


@dataclass(slots=True)
class _Look:
    """One column under all divisions."""

    column: Column
    name: str
    test: str
    statistic: float
    effect: float
    p: Floats
    """(1 + permutations,): not adjusted."""

    codes: NDArray[np.intp] | None
    """(rows,): the category of each row, -1 for none; None where the column is of numbers."""

    def found(self, p: float, old: int) -> ColumnDrift:
        reference, current = self.column.summary(slice(0, old)), self.column.summary(slice(old, None))
        return ColumnDrift(
            name=self.name,
            test=self.test,
            statistic=self.statistic,
            p=float(p),
            effect=self.effect,
            reference=reference,
            current=current,
            shares=shares(Column(self.column.values[:old]), Column(self.column.values[old:])),
        )


def _look(name: str, column: Column, divisions: Divisions) -> _Look:
    codes = column.codes(rare=RARE)
    missing = column.missing
    if codes is None:
        test, statistic, effect, p = _ks(column.numbers, missing, divisions)
        p = np.minimum(1.0, 2 * np.minimum(p, _lepage(column.numbers, missing, divisions)))
    else:
        test, statistic, effect, p = _chi2(np.where(missing, -1, codes), divisions)
    if missing.any() and not missing.all():
        by_missing = _chi2(missing.astype(np.intp), divisions)
        if by_missing[3][0] < p[0]:
            test, statistic, effect = "missing", by_missing[1], by_missing[2]
        p = np.minimum(1.0, 2 * np.minimum(p, by_missing[3]))
    return _Look(column, name, test, float(statistic), float(effect), p, codes)


def _ks(numbers: Floats, missing: NDArray[np.bool_], divisions: Divisions) -> tuple[str, float, float, Floats]:
    """Kolmogorov and Smirnov's distance, with Stephens' approximation of its p-value."""
    rows = np.flatnonzero(~missing)
    order = rows[np.argsort(numbers[rows], kind="stable")]
    if len(order) == 0:
        return "ks", 0.0, 0.0, np.ones(divisions.members.shape[1])
    new = np.cumsum(divisions.members[order], axis=0, dtype=np.float32)
    totals = new[-1]
    olds = np.maximum(len(order) - totals, 1)
    last = np.flatnonzero(np.append(np.diff(numbers[order]) != 0, True))
    ranks = (last + 1).astype(np.float32)[:, None]
    distance = np.abs(new[last] / np.maximum(totals, 1) - (ranks - new[last]) / olds).max(axis=0).astype(np.float64)
    root = np.sqrt(totals * olds / len(order)).astype(np.float64)
    p = stats.kstwobign.sf((root + 0.12 + 0.11 / np.maximum(root, 1e-9)) * distance)
    return "ks", float(distance[0]), float(distance[0]), np.asarray(p, np.float64)


def _lepage(numbers: Floats, missing: NDArray[np.bool_], divisions: Divisions) -> Floats:
    """Return the p-values of a test of place and spread (Lepage, 1971), with normal scores in place of Wilcoxon's and
    Ansari's ranks: it sees small shifts that the largest distance does not."""
    rows = np.flatnonzero(~missing)
    if len(rows) < 2:
        return np.ones(divisions.members.shape[1])
    scores = normal_scores(numbers[rows])
    both = np.stack([scores, scores**2], axis=1)
    both -= both.mean(axis=0)
    spread = both.std(axis=0, ddof=1)
    both /= np.where(spread > 1e-9, spread, 1)
    members = divisions.members[rows]
    totals = members.sum(axis=0, dtype=np.float64)
    sums = (members.T @ both.astype(np.float32)).astype(np.float64)
    variance = totals * (len(rows) - totals) / len(rows)
    statistic = (sums**2).sum(axis=1) / np.maximum(variance, 1e-9)
    return np.asarray(stats.chi2.sf(statistic, 2), np.float64)


def _chi2(codes: NDArray[np.intp], divisions: Divisions) -> tuple[str, float, float, Floats]:
    """Pearson's chi square of the table of categories, those that are missing (-1) left out."""
    kept = codes >= 0
    levels, index = np.unique(codes[kept], return_inverse=True)
    if len(levels) < 2:
        return "chi2", 0.0, 0.0, np.ones(divisions.members.shape[1])
    ones = np.zeros((int(kept.sum()), len(levels)), np.float32)
    ones[np.arange(len(index)), index] = 1
    new = (divisions.members[kept].T @ ones).astype(np.float64)
    all_ = ones.sum(axis=0, dtype=np.float64)
    old = all_ - new
    news, olds = new.sum(axis=1, keepdims=True), old.sum(axis=1, keepdims=True)
    expected = all_ * news / (news + olds)
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = ((new - expected) ** 2 / expected).sum(axis=1) + (
            (old - (all_ - expected)) ** 2 / (all_ - expected)
        ).sum(axis=1)
        effect = float(0.5 * np.abs(new[0] / news[0] - old[0] / olds[0]).sum())
    statistic = np.nan_to_num(statistic)
    p = np.asarray(stats.chi2.sf(statistic, len(levels) - 1), np.float64)
    return "chi2", float(statistic[0]), effect, p


def _features(looks: Sequence[_Look]) -> tuple[NDArray[np.float32], list[int]]:
    """Return (rows, features) with mean 0 and variance 1, and the column that each feature is of.

    Numbers become normal scores, so that neither their scale nor a few wild values count; categories, one feature each.
    """
    features, owners = [], []
    for at, look in enumerate(looks):
        for values in look.column.features(look.codes):
            spread = values.std()
            if spread > 1e-9:
                features.append((values - values.mean()) / spread)
                owners.append(at)
    return np.stack(features, axis=1).astype(np.float32) if features else np.empty((0, 0), np.float32), owners


@dataclass(slots=True)
class _Family:
    test: str
    statistic: Floats
    """(1 + permutations,): higher is further apart."""

    by_feature: Floats | None = None

    def scaled(self, families: int) -> Floats:
        """Return p-values, (1 + permutations,), divided by the family's share of the error level.

        They are those of a gamma distribution with the divisions' own mean, deviation and skewness. That need not be
        exact, for they only make families comparable; it is smooth, which ranks among the divisions are not.
        """
        spread = float(self.statistic.std())
        deviations = (self.statistic - self.statistic.mean()) / max(spread, 1e-300)
        p = stats.pearson3.sf(deviations, float((deviations**3).mean()))
        return np.asarray(p, np.float64) * families / (1 - COLUMNS_SHARE)


def _joint(features: NDArray[np.float32], divisions: Divisions) -> list[_Family]:
    if features.shape[1] < 2:
        return []
    few = features if features.shape[1] <= MOST_FEATURES else _main_directions(features)
    white = _whitened(few)
    weight = divisions.weight
    means = weight * (divisions.difference(white) ** 2).sum(axis=1)
    first, second = np.triu_indices(few.shape[1])
    products = few[:, first] * few[:, second]
    spread = products.std(axis=0)
    products = (products - products.mean(axis=0)) / np.where(spread > 1e-6, spread, 1)
    squares = weight * divisions.difference(products) ** 2
    largest = squares[0] if few is features else None
    by_feature = None
    if largest is not None:
        by_feature = np.zeros(features.shape[1])
        np.maximum.at(by_feature, first, largest)
        np.maximum.at(by_feature, second, largest)
    # Few pairs that change much, or many that change a little: the larger share of either's own spread.
    most, whole = squares.max(axis=1), squares.sum(axis=1)
    together = np.maximum(_score(most), _score(whole))
    mmd = _discrepancy(white, divisions)
    return [_Family("means", means), _Family("products", together, by_feature), _Family("mmd", mmd)]


def _score(statistic: Floats) -> Floats:
    """Return how many robust deviations each value is above what random divisions give."""
    middle = np.median(statistic)
    upper = np.quantile(statistic, 0.99) - middle
    return (statistic - middle) / max(float(upper), 1e-12)


def _main_directions(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return (rows, MOST_FEATURES): along the main directions, and the length of what these leave out."""
    values, vectors = np.linalg.eigh(features.T @ features / len(features))
    axes = vectors[:, np.argsort(values)[::-1][: MOST_FEATURES - 1]]
    along = features @ axes
    left = np.linalg.norm(features - along @ axes.T, axis=1)
    both = np.column_stack([along, left])
    spread = both.std(axis=0)
    whitened: NDArray[np.float32] = ((both - both.mean(axis=0)) / np.where(spread > 1e-6, spread, 1)).astype(np.float32)
    return whitened


def _whitened(features: NDArray[np.float32]) -> NDArray[np.float32]:
    values, vectors = np.linalg.eigh(np.cov(features.T.astype(np.float64)))
    kept = values > 1e-3 * values.max()
    whitened: NDArray[np.float32] = (features @ (vectors[:, kept] / np.sqrt(values[kept]))).astype(np.float32)
    return whitened


def _discrepancy(features: NDArray[np.float32], divisions: Divisions) -> Floats:
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


def _of_many(p: Any, many: float) -> Any:
    """Return how often the smallest of ``many`` independent p-values is as small as ``p``."""
    return -np.expm1(many * np.log1p(-np.minimum(p, 1 - 1e-12)))


def _share_at_most(values: Floats) -> Callable[[float], float]:
    """Return a function that says which share of the divisions has a value as small as one."""
    ascending = np.sort(values)
    return lambda value: float(np.searchsorted(ascending, value * (1 + 1e-9), side="right") / len(ascending))


def _concerned(family: _Family, owners: Sequence[int], looks: Sequence[_Look]) -> tuple[str, ...]:
    if family.by_feature is None:
        return ()
    strongest = np.argsort(family.by_feature)[::-1]
    above = [owners[at] for at in strongest if family.by_feature[at] >= 0.5 * family.by_feature[strongest[0]]]
    return tuple(dict.fromkeys(looks[at].name for at in above))[:5]
