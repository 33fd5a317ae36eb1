"""Which columns of two tables can be compared, and why others cannot. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.table import Column, DataTable
from scanflow.errors import InvalidError, NotFoundError, did_you_mean

NEARLY_UNIQUE = 0.9
"""The share of different values from which on a column of text says of each row what it is, and not how rows are."""

_LEAST_ROWS = 20
_ID = re.compile(r"(^|[_\s.-])(id|uuid|guid|index|key|row)$|[a-z]I[dD]$", re.IGNORECASE)


MISSING_ONLY = ": only whether it is missing"


def list_incomparable_columns(reference: DataTable, current: DataTable) -> dict[str, str]:
    """Return the columns that cannot be compared, each with the reason. Of those in which some values are missing, that
    is compared.

    Raises:
        InvalidError: none can.
    """
    left_out: dict[str, str] = {}
    for name, before in reference.columns.items():
        after = current.columns.get(name)
        if after is None or before.values.ndim > 1 or after.values.ndim > 1 or before.is_numeric != after.is_numeric:
            continue
        both = Column(np.concatenate([before.values, after.values]))
        if both.missing.all():
            left_out[name] = "empty in both"
        elif _is_nearly_unique(both):
            left_out[name] = "nearly unique text"
        elif _is_identifier(name, both):
            left_out[name] = "an identifier, another in each row"
        if name in left_out and both.missing.any() and not both.missing.all():
            left_out[name] += MISSING_ONLY
    if len(left_out) == len(reference.columns) and not any(why.endswith(MISSING_ONLY) for why in left_out.values()):
        raise InvalidError(f"No column can be compared: {format_left_out(left_out)}. Give a table with others.")
    return left_out


def format_left_out(left_out: Mapping[str, str]) -> str:
    return ", ".join(f"{name!r} ({why})" for name, why in left_out.items())


def keep_comparable(table: DataTable, left_out: Mapping[str, str]) -> DataTable:
    """Return a table without the columns that are left out; of those with missing values, whether each is there."""
    columns = {
        name: Column(mark_present(column.missing)) if name in left_out else column
        for name, column in table.columns.items()
        if left_out.get(name, MISSING_ONLY).endswith(MISSING_ONLY)
    }
    return DataTable(columns)


def leave_out(table: DataTable, names: Iterable[str]) -> DataTable:
    """Return a table without some of its columns.

    Raises:
        NotFoundError: it does not have one of them.
        InvalidError: it has no other.
    """
    dropped = set(names)
    if unknown := sorted(dropped - table.columns.keys()):
        raise NotFoundError(f"There is no column {unknown[0]!r} to leave out.{did_you_mean(unknown[0], table.columns)}")
    columns = {name: column for name, column in table.columns.items() if name not in dropped}
    if not columns:
        raise InvalidError("No column can be compared: all of them are left out. Leave fewer out.")
    return DataTable(columns)


def mark_present(missing: NDArray[np.bool_]) -> NDArray[np.object_]:
    """Return a column of text that says of each row whether it has a value: (rows,), None where that is missing."""
    present = np.full(len(missing), "present", object)
    present[missing] = None
    return present


def _is_nearly_unique(column: Column) -> bool:
    present = int((~column.missing).sum())
    return not column.is_numeric and present >= _LEAST_ROWS and len(column.levels[0]) > NEARLY_UNIQUE * present


def _is_identifier(name: str, column: Column) -> bool:
    """Return whether whole numbers are another in each row, and follow each other or are called an identifier."""
    if not column.is_numeric or column.missing.any() or len(column.values) < _LEAST_ROWS:
        return False
    if (column.values != np.floor(column.values)).any() or len(np.unique(column.values)) < len(column.values):
        return False
    return bool(_ID.search(name)) or float(np.ptp(column.values)) < 2 * len(column.values)
