"""Drift within each category of a column, which other rows may mask; all tested at one error level."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scanflow.drift.table import FEW_VALUES, MIN_ROWS, DataTable
from scanflow.drift.two_sample import Comparison, choose_permutations, compare
from scanflow.errors import InvalidError

MAX_SEGMENTS = 20
_MISSING = -1
"""The code of a missing category."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One category."""

    name: str
    rows: tuple[int, int]
    comparison: Comparison | None
    """None: one of the tables has too few rows of it."""


def compare_by(
    reference: DataTable, current: DataTable, by: str, *, level: float = 0.01, least_effect: float = 0.0
) -> tuple[Comparison, list[Segment]]:
    """Compare two tables as a whole and within each category of a column, the commonest first, and where it is missing.

    Raises:
        InvalidError: there is no such column, or it has too many values.
    """
    if by not in reference.columns or by not in current.columns:
        raise InvalidError(f"There is no column {by!r} to group by. There are {', '.join(reference.columns)}.")
    both = reference.columns[by].concatenate(current.columns[by])
    levels, codes, counts = both.levels
    if both.is_numeric and len(levels) > FEW_VALUES:
        raise InvalidError(f"{by!r} has {len(levels)} different numbers. Give a column of categories.")
    rest = [table.drop([by]) for table in (reference, current)]
    parts: list[tuple[str, DataTable, DataTable]] = []
    commonest = np.argsort(counts, kind="stable")[::-1][:MAX_SEGMENTS]
    for at in [*commonest, *([_MISSING] if both.missing.any() else [])]:
        old, new = np.flatnonzero(codes[: reference.rows] == at), np.flatnonzero(codes[reference.rows :] == at)
        name = "(missing)" if at == _MISSING else f"{levels[at]:g}" if both.is_numeric else str(levels[at])
        parts.append((name, rest[0].take(old), rest[1].take(new)))
    enough = [min(old.rows, new.rows) >= MIN_ROWS for _, old, new in parts]
    shared = level / (1 + sum(enough))
    options = {"level": shared, "least_effect": least_effect, "permutations": choose_permutations(shared)}
    whole = compare(reference, current, **options)  # type: ignore[arg-type]  # level and least_effect are floats
    return whole, [
        Segment(name=name, rows=(old.rows, new.rows), comparison=compare(old, new, **options) if fits else None)  # type: ignore[arg-type]
        for (name, old, new), fits in zip(parts, enough, strict=True)
    ]
