"""Tables: columns with names, of numbers or categories, in which values may be missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from scanflow.errors import InvalidError

FEW_VALUES = 10
"""A column of numbers with at most so many different ones is compared by their shares."""

MOST_LEVELS = 10
"""The commonest categories of a column that count one by one when columns are looked at together."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """The values of one column: (rows,) of float64, NaN where missing, or of text, None where missing."""

    values: NDArray[Any]

    @classmethod
    def of(cls, name: str, values: Any) -> Column:
        """Read anything with one value a row: numbers, booleans, dates, text, categories.

        Raises:
            InvalidError: more than one value a row.
        """
        array = np.asarray(values)
        if array.ndim != 1:
            raise InvalidError(f"The column {name!r} has the shape {array.shape}. Give one value a row.")
        if array.dtype.kind in "biuf":
            numbers = array.astype(np.float64)
            return cls(np.where(np.isinf(numbers), np.sign(numbers) * np.finfo(np.float64).max, numbers))
        if array.dtype.kind in "mM":
            numbers = array.astype("int64").astype(np.float64)
            return cls(np.where(np.isnat(array), np.nan, numbers))
        missing = np.array([_is_missing(one) for one in array], bool)
        texts = np.array([None if gone else str(one) for one, gone in zip(array, missing, strict=True)], object)
        if not missing.all() and all(
            isinstance(one, int | float | np.number) and not isinstance(one, bool)
            for one, gone in zip(array, missing, strict=True)
            if not gone
        ):
            return cls(np.array([np.nan if gone else float(one) for one, gone in zip(array, missing, strict=True)]))
        return cls(texts)

    @property
    def is_numeric(self) -> bool:
        """Whether the values are numbers."""
        return self.values.dtype.kind == "f"

    @property
    def numbers(self) -> NDArray[np.float64]:
        """The values of a column of numbers."""
        return self.values

    @property
    def missing(self) -> NDArray[np.bool_]:
        """(rows,): where there is no value."""
        found: NDArray[np.bool_] = np.isnan(self.values) if self.is_numeric else self.values == np.array(None)
        return found

    def then(self, other: Column) -> Column:
        """Return the rows of both; text where only one is of numbers."""
        if self.is_numeric == other.is_numeric:
            return Column(np.concatenate([self.values, other.values]))
        return Column(np.concatenate([self._as_text(), other._as_text()]))

    def _as_text(self) -> NDArray[Any]:
        if not self.is_numeric:
            return self.values
        return np.array([None if np.isnan(one) else f"{one:g}" for one in self.values], object)

    def codes(self, *, rare: int) -> NDArray[np.intp] | None:
        """Return the category of each row, -1 where missing; None for numbers of which there are many different ones.

        Categories with fewer than ``rare`` rows are one.
        """
        present = ~self.missing
        kept = self.values[present]
        levels, index, counts = np.unique(
            kept if self.is_numeric else kept.astype(str), return_inverse=True, return_counts=True
        )
        if self.is_numeric and len(levels) > FEW_VALUES:
            return None
        common = counts >= rare
        renumbered = np.where(common, np.cumsum(common) - 1, int(common.sum()))
        codes = np.full(len(self.values), -1, np.intp)
        codes[present] = renumbered[index]
        return codes

    def features(self, codes: NDArray[np.intp] | None) -> list[NDArray[np.float64]]:
        """Return what the column is when it is looked at together with others, one or more (rows,)."""
        missing = self.missing
        features: list[NDArray[np.float64]] = []
        if self.is_numeric:
            scores = np.zeros(len(self.values))
            scores[~missing] = normal_scores(self.values[~missing])
            features.append(scores)
        elif codes is not None:
            levels, counts = np.unique(codes[codes >= 0], return_counts=True)
            commonest = levels[np.argsort(counts, kind="stable")[::-1][:MOST_LEVELS]]
            dropped = commonest[1:] if len(levels) <= MOST_LEVELS else commonest  # the shares add up to 1
            features.extend((codes == level).astype(np.float64) for level in dropped)
        if missing.any():
            features.append(missing.astype(np.float64))
        return features

    def summary(self, rows: slice) -> dict[str, float]:
        """Return what a person is shown of some rows: mean and deviation, or the shares of the commonest categories."""
        values, missing = self.values[rows], self.missing[rows]
        shown: dict[str, float] = {}
        kept = values[~missing]
        if self.is_numeric and len(kept):
            shown = {"mean": float(kept.mean()), "sd": float(kept.std()), "median": float(np.median(kept))}
        elif len(kept):
            levels, counts = np.unique(self.values[~self.missing].astype(str), return_counts=True)
            own = kept.astype(str)
            for level in levels[np.argsort(counts, kind="stable")[::-1][:MOST_LEVELS]]:
                shown[str(level)] = float((own == level).mean())
        if self.missing.any():
            shown["missing"] = float(missing.mean())
        return shown


@dataclass(frozen=True, slots=True, eq=False)
class DataTable:
    """Rows of named columns."""

    columns: Mapping[str, Column]

    @classmethod
    def of(cls, data: Any, *, names: Sequence[str] | None = None) -> DataTable:
        """Read a mapping of columns, a DataFrame, or an array (rows, ...) of numbers, whose columns are then numbered.

        Raises:
            InvalidError: columns of unlike lengths, no column, or names that do not fit.
        """
        if isinstance(data, DataTable):
            return data
        if isinstance(data, Mapping) or hasattr(data, "columns"):
            given = {str(name): data[name] for name in (data if isinstance(data, Mapping) else data.columns)}
        else:
            array = np.asarray(data)
            flat = array.reshape(len(array), -1) if array.ndim else array
            if flat.ndim != 2 or flat.shape[1] == 0:
                raise InvalidError(
                    f"A table cannot be made of an array of the shape {array.shape}. Give (rows, columns)."
                )
            if names is not None and len(names) != flat.shape[1]:
                raise InvalidError(f"There are {len(names)} names for {flat.shape[1]} columns. Give one each.")
            given = {str(name): flat[:, at] for at, name in enumerate(names or range(flat.shape[1]))}
        columns = {name: Column.of(name, values) for name, values in given.items()}
        lengths = {len(one.values) for one in columns.values()}
        if len(lengths) != 1:
            raise InvalidError(
                f"A table's columns have {sorted(lengths)} rows. Give each as many."
                if lengths
                else "A table has no column."
            )
        return cls(columns)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(next(iter(self.columns.values())).values)

    def some(self, most: int, generator: np.random.Generator) -> DataTable:
        """Return the table, or ``most`` of its rows drawn at random, in their order."""
        if self.rows <= most:
            return self
        chosen = np.sort(generator.choice(self.rows, most, replace=False))
        return DataTable({name: Column(one.values[chosen]) for name, one in self.columns.items()})


def normal_scores(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values as a normal distribution would have them, by their ranks: (n,)."""
    scores: NDArray[np.float64] = stats.norm.ppf((stats.rankdata(values) - 0.5) / max(len(values), 1))
    return scores


def paired(reference: DataTable, current: DataTable) -> dict[str, tuple[Column, Column]]:
    """Return each column of both tables, in the reference's order.

    Raises:
        InvalidError: one table has a column that the other has not.
    """
    lacking = [name for name in reference.columns if name not in current.columns]
    unknown = [name for name in current.columns if name not in reference.columns]
    if lacking or unknown:
        raise InvalidError(
            "The tables have different columns. "
            + (f"The current one lacks {', '.join(map(repr, lacking))}. " if lacking else "")
            + (f"The reference lacks {', '.join(map(repr, unknown))}. " if unknown else "")
            + "Give both the same."
        )
    return {name: (reference.columns[name], current.columns[name]) for name in reference.columns}


def _is_missing(value: Any) -> bool:
    return (
        value is None or (isinstance(value, float) and np.isnan(value)) or type(value).__name__ in {"NAType", "NaTType"}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The distribution of one column in two tables: the share of rows, of those with a value, in each bin."""

    bins: tuple[str, ...]
    reference: tuple[float, ...]
    current: tuple[float, ...]


def shares(reference: Column, current: Column, *, most: int = 20) -> Shares:
    """Return in which bins both columns' values lie: their common categories, or ranges that are equally wide.

    Ranges span what lies between the 0.5th and the 99.5th percentile of both; what is beyond is in the outermost.
    """
    both = reference.then(current)
    codes = both.codes(rare=1)
    present = ~both.missing
    if codes is None:
        edges = np.unique(both.values[present])
        if len(edges) > most:  # else each value is one
            low, high = np.quantile(both.values[present], [0.005, 0.995])
            edges = np.linspace(low, high if high > low else low + 1, most + 1)[:-1]
        last = len(edges) - 1
        codes = np.where(present, np.clip(np.searchsorted(edges, both.values, side="right") - 1, 0, last), -1)
        names = tuple(f"{edge:.3g}" for edge in edges)
    else:
        levels, counts = np.unique(
            both.values[present].astype(str if not both.is_numeric else float), return_counts=True
        )
        commonest = np.sort(np.argsort(counts, kind="stable")[::-1][:most])
        names = tuple(f"{levels[at]:g}" if both.is_numeric else str(levels[at]) for at in commonest)
        codes = np.searchsorted(commonest, np.where(codes < 0, -1, codes))
        codes[~present] = -1
    old = len(reference.values)

    def counted(own: NDArray[np.intp]) -> tuple[float, ...]:
        counts = np.bincount(own[(own >= 0) & (own < len(names))], minlength=len(names))
        return tuple(round(float(one), 4) for one in counts / max(int((own >= 0).sum()), 1))

    return Shares(bins=names, reference=counted(codes[:old]), current=counted(codes[old:]))
