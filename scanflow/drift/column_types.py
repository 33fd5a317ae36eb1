"""What values a column holds, and how those of one file become those of another: a table may be in two formats."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.table import is_missing
from scanflow.errors import InvalidError

Kind = Literal["number", "date-time", "duration", "text"]

_TRUTHS = {"true": 1.0, "false": 0.0}


def kind_of(values: NDArray[Any]) -> Kind:
    """Return what a column's values are; text, where they are of several kinds or there are none."""
    known: dict[str, Kind] = {"M": "date-time", "m": "duration", "U": "text", "S": "text"}
    if values.dtype.kind != "O":
        return known.get(values.dtype.kind, "number")
    found: set[Kind] = {_kind_of_one(one) for one in values if not is_missing(one)}
    return found.pop() if len(found) == 1 else "text"


def alike(name: str, reference: NDArray[Any], current: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], str]:
    """Return two columns as values of one kind, the reference's where that can be, and a sentence if one was changed.

    Text of a file without types (CSV) becomes date-times, durations or numbers where the other file has those and all
    of it can be read so. Numbers that are to be text are for the reader, who has their digits.

    Raises:
        InvalidError: one has numbers and the other date-times: which unit they are in is not known.
    """
    old, new = kind_of(reference), kind_of(current)
    if old == new or not len(reference) or not len(current):
        return reference, current, ""
    if "text" not in {old, new}:
        raise InvalidError(
            f"{name!r} has {old}s in the reference and {new}s now. Write both files with the same type of it."
        )
    kind, of_text = (new, reference) if old == "text" else (old, current)
    if all(map(is_missing, of_text)):
        return reference, current, ""
    read = _read(of_text, kind)
    if read is None:
        return reference, current, f"{name!r} is compared as text: not all of it can be read as {kind}s."
    where = "reference" if old == "text" else "current"
    note = f"{name!r} is text in the {where} file, and was read as {kind}s."
    return (read, current, note) if old == "text" else (reference, read, note)


def _kind_of_one(value: Any) -> Kind:
    if isinstance(value, dt.date):  # and date-times, which are dates
        return "date-time"
    if isinstance(value, dt.timedelta):
        return "duration"
    return "number" if isinstance(value, int | float | np.number | np.bool_ | decimal.Decimal) else "text"


def _read(texts: NDArray[Any], kind: Kind) -> NDArray[Any] | None:
    """Return texts as values of a kind; None: some are none."""
    import pandas as pd

    gone = np.array([is_missing(one) for one in texts], bool)
    try:
        if kind == "date-time":
            made = pd.to_datetime(pd.Series(texts), utc=True, format="ISO8601").dt.tz_localize(None)
        elif kind == "duration":
            made = pd.to_timedelta(pd.Series(texts))
        else:
            made = pd.to_numeric(pd.Series([_TRUTHS.get(str(one).lower(), one) for one in texts]))
    except (ValueError, TypeError, OverflowError):
        return None
    found = np.asarray(made)
    return None if (np.asarray(pd.isna(found)) & ~gone).any() else found
