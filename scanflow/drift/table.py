"""Tables: named columns of numbers or categories, in which values may be missing."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from scanflow.arrays import EXACT_MAX, is_missing
from scanflow.drift.column_text import format_numbers
from scanflow.errors import InvalidError
from scanflow.tables.columns import format_number

FEW_VALUES = 10
"""A column of numbers with at most this many different ones is compared by their shares."""

FLOAT32_MAX = float(np.finfo(np.float32).max)

MIN_ROWS = 10
"""Minimum number of rows of either table for a comparison."""

MAX_LEVELS = 10
"""Number of the most common categories of a column that count separately in joint tests."""


MAX_WIDE = 256
"""A column of arrays with more numbers per row (pictures) is compared along its main directions."""

DIRECTIONS = 32

FLOAT32_DIGITS = 8 * float(np.finfo(np.float32).eps)
"""Numbers stored as float32 that differ by less, relative to their size, are equal: they were rounded differently."""


@dataclass(frozen=True, eq=False)
class Column:
    """The values of one column: (rows,) of floats, NaN where missing, or of text, None where missing.

    One of pictures has (rows, numbers), none of them missing, until two tables are :func:`align`.
    """

    values: NDArray[Any]
    is_time: bool = False
    """Whether its numbers are date-times, in seconds since the epoch."""

    @classmethod
    def from_values(cls, name: str, values: Any) -> Column:
        """Read any data with one value per row: numbers, booleans, dates, text, categories.

        Raises:
            InvalidError: more than one value a row.
        """
        array = np.asarray(values)
        if array.ndim != 1:
            raise InvalidError(f"The column {name!r} has the shape {array.shape}. Give one value per row.")
        if array.dtype.kind in "biuf":
            return cls(_to_floats(array))
        if array.dtype.kind in "mM":
            return cls(_convert_to_seconds(array), is_time=array.dtype.kind == "M")
        if set(map(type, array)) <= {str, type(None)}:
            return cls(array.astype(object))
        missing = np.array([is_missing(value) for value in array], bool)
        present = [value for value, gone in zip(array, missing, strict=True) if not gone]
        if present and all(
            isinstance(value, int | float | np.number | np.bool_ | decimal.Decimal) for value in present
        ):
            is_large = any(isinstance(value, int | np.integer) and abs(int(value)) > EXACT_MAX for value in present)
            numbers = np.full(len(array), np.nan, np.longdouble if is_large else np.float64)
            numbers[~missing] = np.array(list(map(float, present)) if not is_large else present, numbers.dtype)
            return cls(numbers)
        if present and all(isinstance(value, dt.date) for value in present):
            numbers = np.full(len(array), np.nan)
            numbers[~missing] = [_to_epoch_seconds(value) for value in present]
            return cls(numbers, is_time=True)
        texts = np.full(len(array), None, object)
        texts[~missing] = [str(value) for value in present]
        return cls(texts)

    @property
    def is_numeric(self) -> bool:
        """Whether the values are numbers."""
        return self.values.dtype.kind == "f"

    @cached_property
    def missing(self) -> NDArray[np.bool_]:
        """(rows,): whether the value is missing."""
        mask: NDArray[np.bool_] = np.isnan(self.values) if self.is_numeric else self.values == np.array(None)
        return mask

    def concatenate(self, other: Column) -> Column:
        """Concatenate the rows of both; as text if only one is numeric, as float32 if either is and all fit."""
        if self.is_numeric != other.is_numeric:
            return Column(np.concatenate([self._as_text(), other._as_text()]))
        both = np.concatenate([self.values, other.values])
        if np.float32 in (self.values.dtype, other.values.dtype) and _fits_float32(both):
            both = _merge_near_values(both.astype(np.float32))
        return Column(both, is_time=self.is_time)

    def take(self, rows: slice | NDArray[Any]) -> Column:
        return Column(self.values[rows], is_time=self.is_time)

    def _as_text(self) -> NDArray[Any]:
        if not self.is_numeric:
            return self.values
        return np.array([None if np.isnan(number) else format_number(number) for number in self.values], object)

    @cached_property
    def levels(self) -> tuple[NDArray[Any], NDArray[np.intp], NDArray[np.intp]]:
        """The distinct values, ascending; the index of each row's value, -1 where missing; and their counts."""
        present = self.values[~self.missing]
        levels, index, counts = np.unique(
            present if self.is_numeric else present.astype(str), return_inverse=True, return_counts=True
        )
        codes = np.full(len(self.values), -1, np.intp)
        codes[~self.missing] = index
        return levels, codes, counts

    def compute_codes(self, *, rare: int) -> NDArray[np.intp] | None:
        """Return the category of each row, -1 if missing; None for numbers with many different values.

        Categories with fewer than ``rare`` rows are one.
        """
        levels, index, counts = self.levels
        if self.is_numeric and len(levels) > FEW_VALUES:
            return None
        common = counts >= rare
        renumbered = np.append(np.where(common, np.cumsum(common) - 1, int(common.sum())), -1)
        return renumbered[index]

    def compute_features(self, codes: NDArray[np.intp] | None) -> list[NDArray[np.float64]]:
        """Return the column's features for joint tests, one or more (rows,)."""
        missing = self.missing
        features: list[NDArray[np.float64]] = []
        if self.is_numeric:
            scores = np.zeros(len(self.values))
            scores[~missing] = compute_normal_scores(self.values[~missing])
            features.append(scores)
        elif codes is not None:
            counts = np.bincount(codes[codes >= 0])
            commonest = np.argsort(counts, kind="stable")[::-1][:MAX_LEVELS]
            dropped = commonest[1:] if len(counts) <= MAX_LEVELS else commonest  # the shares add up to 1
            features.extend((codes == level).astype(np.float64) for level in dropped)
        if missing.any():
            features.append(missing.astype(np.float64))
        return features

    def summarize(self, rows: slice) -> dict[str, float]:
        """Summarise some rows for display: mean and deviation, or the shares of the most common categories."""
        missing = self.missing[rows]
        statistics: dict[str, float] = {}
        if missing.all():
            pass
        elif self.is_numeric:
            present = self.values[rows][~missing].astype(np.float64)
            numbers = present[np.isfinite(present)]
            statistics = {"infinite": 1 - len(numbers) / len(present)} if len(numbers) < len(present) else {}
            if len(numbers):
                scale = max(float(np.abs(numbers).max()) / FLOAT32_MAX, 1.0)  # their squares may be too large
                statistics |= {
                    "mean": float((numbers / scale).mean()) * scale,
                    "sd": float((numbers / scale).std()) * scale,
                    "median": float(np.median(numbers)),
                }
        else:
            levels, codes, counts = self.levels
            own = np.bincount(codes[rows][~missing], minlength=len(levels)) / int((~missing).sum())
            commonest = np.argsort(counts, kind="stable")[::-1][:MAX_LEVELS]
            statistics = {str(levels[at]): float(own[at]) for at in commonest}
        if self.missing.any():
            statistics["missing"] = float(missing.mean())
        return statistics


@dataclass(frozen=True, slots=True, eq=False)
class DataTable:
    """Rows of named columns."""

    columns: Mapping[str, Column]

    @classmethod
    def from_data(cls, data: Any, *, names: Sequence[str] | None = None) -> DataTable:
        """Read a mapping of columns, a DataFrame, an array with named fields, or one of (rows, ...), whose columns are
        then numbered, unless they have ``names``.

        Raises:
            InvalidError: columns of unlike lengths, no column, or names that do not fit.
        """
        if isinstance(data, DataTable):
            return data
        if isinstance(data, Mapping) or hasattr(data, "columns"):
            fields = {str(name): data[name] for name in (data if isinstance(data, Mapping) else data.columns)}
        elif (array := np.asarray(data)).dtype.names is not None:
            fields = {name: array[name] for name in array.dtype.names}
        else:
            if array.ndim == 0 or (array.size == 0 and len(array) > 0):
                raise InvalidError(
                    f"A table cannot be created from an array of the shape {array.shape}. Give (rows, columns)."
                )
            fields = {"": array if array.ndim > 1 else array[:, None]}
            width = int(np.prod(fields[""].shape[1:]))
            if names is not None and len(names) != width:
                raise InvalidError(f"There are {len(names)} names for {width} columns. Give one name for each column.")
        columns: dict[str, Column] = {}
        for name, values in fields.items():
            part = np.asarray(values)
            if part.ndim < 2:
                columns[name] = Column.from_values(name, values)
                continue
            flat = part.reshape(len(part), -1) if len(part) else part.reshape(0, int(np.prod(part.shape[1:])))
            if flat.shape[1] > MAX_WIDE and flat.dtype.kind in "biuf":
                columns[name] = Column(flat)
                continue
            numbered = [f"{name}[{at}]" if name else str(at) for at in range(flat.shape[1])]
            chosen = list(names) if names is not None and not name else numbered
            columns.update({label: Column.from_values(label, flat[:, at]) for at, label in enumerate(chosen)})
        lengths = {len(column.values) for column in columns.values()}
        if len(lengths) != 1:
            raise InvalidError(
                f"A table's columns have {sorted(lengths)} rows. Give all columns the same number of rows."
                if lengths
                else "The table has no columns."
            )
        return cls(columns)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values())).values)

    def check(self, what: str, *, least: int = MIN_ROWS) -> None:
        if self.rows < least:
            raise InvalidError(
                f"The {what} has {self.rows} rows, but at least {least} are needed. "
                + ("Give more of the training data." if what == "reference" else "Wait for more data.")
            )

    def compute_order(self) -> NDArray[np.intp]:
        """Return a permutation of the rows that does not depend on their order."""
        weigh = np.random.default_rng(0)
        keys = [
            column.levels[1] if column.values.ndim == 1 else column.values @ weigh.normal(size=column.values.shape[1])
            for column in self.columns.values()
        ]
        return np.lexsort(keys)

    def sample(self, most: int, generator: np.random.Generator) -> DataTable:
        """Return the table, or ``most`` of its rows drawn at random, in their order."""
        if self.rows <= most:
            return self
        return self.take(np.sort(generator.choice(self.rows, most, replace=False)))

    def drop(self, names: Collection[str]) -> DataTable:
        """Return the table without some columns."""
        return DataTable({name: column for name, column in self.columns.items() if name not in names})

    def take(self, rows: NDArray[Any]) -> DataTable:
        return DataTable({name: column.take(rows) for name, column in self.columns.items()})


def compute_normal_scores(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the normal scores of values, by their ranks: (n,)."""
    scores: NDArray[np.float64] = stats.norm.ppf((stats.rankdata(values) - 0.5) / max(len(values), 1))
    return scores


def align(reference: DataTable, current: DataTable) -> tuple[DataTable, DataTable]:
    """Align both tables to the reference's columns and order; project pictures on the main directions of both.

    Raises:
        InvalidError: one table has a column that the other has not, or pictures of another shape.
    """
    lacking = [name for name in reference.columns if name not in current.columns]
    unknown = [name for name in current.columns if name not in reference.columns]
    if lacking or unknown:
        raise InvalidError(
            "The tables have different columns. "
            + (f"The current one lacks {', '.join(map(repr, lacking))}. " if lacking else "")
            + (f"The reference lacks {', '.join(map(repr, unknown))}. " if unknown else "")
            + "Give both the same columns."
        )
    old: dict[str, Column] = {}
    new: dict[str, Column] = {}
    for name, before in reference.columns.items():
        after = current.columns[name]
        if before.values.ndim == 1 == after.values.ndim:
            old[name], new[name] = before, after
            continue
        if before.values.shape[1:] != after.values.shape[1:]:
            raise InvalidError(
                f"{name!r} has rows of the shape {before.values.shape[1:]} in the reference and "
                f"{after.values.shape[1:]} now. Compare data of one shape."
            )
        along = project_on_main_directions(np.concatenate([before.values, after.values]), DIRECTIONS)
        for at, values in enumerate(along.T):
            direction = f"{name}[{at}]" if name else str(at)
            single = values.astype(np.float32)  # so that equal pictures are equal along them, whatever rounding did
            old[direction], new[direction] = Column(single[: reference.rows]), Column(single[reference.rows :])
    return DataTable(old), DataTable(new)


def project_on_main_directions(rows: NDArray[Any], most: int) -> NDArray[np.float64]:
    """Project rows (n, d) on their ``most`` directions of greatest variance; the last column is the residual's norm:
    (n, most + 1). By a randomised decomposition (Halko, Martinsson and Tropp, 2011), in time linear in d."""
    flat = rows.astype(np.float64)
    if not np.isfinite(flat).all():
        raise InvalidError("Some pictures have NaN or infinite values. Drop or repair them first.")
    largest = float(np.abs(flat).max(initial=0.0))
    centred = (flat - flat.mean(axis=0)) / max(largest, 1e-300)
    most = min(most, *centred.shape)
    spanned = np.random.default_rng(0).normal(size=(centred.shape[1], min(most + 8, *centred.shape)))
    for _ in range(4):
        spanned, _ = np.linalg.qr(centred.T @ (centred @ spanned))
    _, _, turned = np.linalg.svd(centred @ spanned, full_matrices=False)
    axes = spanned @ turned[:most].T
    along = centred @ axes
    off = np.linalg.norm(centred - along @ axes.T, axis=1)
    projections = np.column_stack([along, off])
    return np.where(
        np.abs(projections) > FLOAT32_DIGITS * np.sqrt(centred.shape[1]), projections, 0.0
    )  # else it is rounding


def _convert_to_seconds(times: NDArray[Any]) -> NDArray[np.float64]:
    """Return date-times or durations, of whichever unit, in seconds: (n,), NaN where missing."""
    whole = times.astype(f"{'datetime64' if times.dtype.kind == 'M' else 'timedelta64'}[us]")
    return np.where(np.isnat(times), np.nan, whole.astype("int64").astype(np.float64) / 1e6)


def _to_epoch_seconds(day: dt.date) -> float:
    """Return a date or date-time in seconds since the epoch; without a zone it is in UTC."""
    if not isinstance(day, dt.datetime):
        day = dt.datetime.combine(day, dt.time())
    return (day if day.tzinfo is not None else day.replace(tzinfo=dt.UTC)).timestamp()


def _to_floats(array: NDArray[Any]) -> NDArray[Any]:
    """Return numbers as floats in which each of them is exact."""
    if array.dtype.kind in "iu" and len(array) and (array.max() > EXACT_MAX or array.min() < -EXACT_MAX):
        return array.astype(np.longdouble)
    is_kept = array.dtype == np.float32 or array.dtype == np.longdouble
    return array if is_kept else array.astype(np.float64)


def _fits_float32(numbers: NDArray[Any]) -> bool:
    return not (np.isfinite(numbers) & (np.abs(numbers) > FLOAT32_MAX)).any()


def _merge_near_values(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Merge values that differ by no more than rounding."""
    order = np.argsort(values, kind="stable")  # NaN comes last
    ascending = values[order].astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinity less infinity
        apart = ~(np.diff(ascending) <= FLOAT32_DIGITS * np.abs(ascending[1:])) | np.isinf(ascending[1:])
    group = np.concatenate([[0], np.cumsum(apart)]) if len(values) else np.empty(0, np.intp)
    merged = np.empty_like(values)
    merged[order] = values[order][np.searchsorted(group, group)]
    return merged


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The distribution of one column in two tables: the share of rows, of those with a value, in each bin."""

    bins: tuple[str, ...]
    reference: tuple[float, ...]
    current: tuple[float, ...]


def compute_column_shares(reference: Column, current: Column, *, most: int = 20) -> Shares:
    return compute_shares(reference.concatenate(current), len(reference.values), most=most)


def compute_shares(both: Column, old: int, *, most: int = 20) -> Shares:
    """Compute the histogram of a column whose first ``old`` rows are the reference's: by its common categories, or by
    ranges of equal width.

    Ranges span what lies between the 0.5th and the 99.5th percentile of both; what is beyond is in the outermost.
    """
    levels, codes, counts = both.levels
    if both.is_numeric and len(levels) > FEW_VALUES:
        edges = levels
        if len(edges) > most:  # else each value is one
            low, high = np.quantile(both.values[np.isfinite(both.values)], [0.005, 0.995])
            edges = np.linspace(low, high if high > low else low + 1, most + 1)[:-1]
        within = np.clip(np.searchsorted(edges, both.values, side="right") - 1, 0, len(edges) - 1)
        codes = np.where(both.missing, -1, within)
        names = format_numbers(edges.tolist(), is_time=both.is_time, digits=3)
    else:
        commonest = np.sort(np.argsort(counts, kind="stable")[::-1][:most])
        shown = levels[commonest]
        names = format_numbers(shown.tolist(), is_time=both.is_time) if both.is_numeric else tuple(map(str, shown))
        place = np.full(len(levels) + 1, -1)
        place[commonest] = np.arange(len(commonest))
        codes = place[codes]

    def count_shares(part_codes: NDArray[np.intp]) -> tuple[float, ...]:
        counts = np.bincount(part_codes[(part_codes >= 0) & (part_codes < len(names))], minlength=len(names))
        return tuple(round(float(share), 4) for share in counts / max(int((part_codes >= 0).sum()), 1))

    return Shares(bins=names, reference=count_shares(codes[:old]), current=count_shares(codes[old:]))
