"""The kinds of a column's values, and their conversion where two files store them differently."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scanflow.arrays import is_missing
from scanflow.errors import InvalidError

Kind = Literal["number", "date-time", "duration", "text"]

_TRUTHS = {"true": 1.0, "false": 0.0}


def mark_missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values of a column are missing: (rows,)."""
    if values.dtype.kind in "fmM":
        missing: NDArray[np.bool_] = np.isnan(values) if values.dtype.kind == "f" else np.isnat(values)
        return missing
    return np.array([is_missing(value) for value in values], bool)


def infer_kind(values: NDArray[Any]) -> Kind:
    """Return the kind of a column's values; text for mixed kinds or no values."""
    kind_by_code: dict[str, Kind] = {"M": "date-time", "m": "duration", "U": "text", "S": "text"}
    if values.dtype.kind != "O":
        return kind_by_code.get(values.dtype.kind, "number")
    types = set(map(type, values)) - {type(None)}
    if float in types or any(kind.__name__ in {"NAType", "NaTType"} for kind in types):
        types = {type(value) for value in values if not is_missing(value)}
    kinds: set[Kind] = {_infer_type_kind(one) for one in types}
    return kinds.pop() if len(kinds) == 1 else "text"


def convert_to_same_kind(
    name: str, reference: NDArray[Any], current: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], str]:
    """Convert two columns to one kind, the reference's where possible; return both, and a note if one was converted.

    Text of a file without types (CSV) becomes date-times, durations or numbers where the other file has those and all
    of it can be read so. Numbers that are to be text are for the reader, who has their digits.

    Raises:
        InvalidError: one has numbers and the other date-times: which unit they are in is not known.
    """
    old, new = infer_kind(reference), infer_kind(current)
    if old == new or not len(reference) or not len(current):
        return reference, current, ""
    if "text" not in {old, new}:
        raise InvalidError(
            f"{name!r} has {old}s in the reference and {new}s now. Write the column with the same type in both files."
        )
    kind, of_text = (new, reference) if old == "text" else (old, current)
    if mark_missing(of_text).all():
        return reference, current, ""
    if mark_missing(current if old == "text" else reference).all():  # of no kind: an empty column of CSV
        return _empty(reference), _empty(current), ""
    read = _parse_texts(of_text, kind)
    if read is None:
        note = f"{name!r} is compared as text: not all of it can be read as {kind}s."
        return _write_texts(reference), _write_texts(current), note
    where = "reference" if old == "text" else "current"
    note = f"{name!r} is text in the {where} file, and was read as {kind}s."
    return (read, current, note) if old == "text" else (reference, read, note)


def _write_texts(values: NDArray[Any]) -> NDArray[Any]:
    """Return date-times and durations as text; others as they are."""
    if values.dtype.kind not in "mM":
        return values
    texts = np.array([*map(str, values), None], object)[:-1]
    texts[np.isnat(values)] = None
    return texts


def _empty(values: NDArray[Any]) -> NDArray[Any]:
    """Return a column of text; one without values as that of no text."""
    return np.full(len(values), None, object) if mark_missing(values).all() else values


def _infer_type_kind(one: type) -> Kind:
    if issubclass(one, dt.date):  # and date-times, which are dates
        return "date-time"
    if issubclass(one, dt.timedelta):
        return "duration"
    return "number" if issubclass(one, int | float | np.number | np.bool_ | decimal.Decimal) else "text"


def _parse_texts(texts: NDArray[Any], kind: Kind) -> NDArray[Any] | None:
    """Parse texts as values of a kind; None if one is not such a value."""
    import pandas as pd

    gone = np.array([is_missing(text) for text in texts], bool)
    try:
        if kind == "date-time":
            converted = pd.to_datetime(pd.Series(texts), utc=True, format="ISO8601").dt.tz_localize(None)
        elif kind == "duration":
            converted = pd.to_timedelta(pd.Series(texts))
        else:
            converted = pd.to_numeric(pd.Series([_TRUTHS.get(str(text).lower(), text) for text in texts]))
    except (ValueError, TypeError, OverflowError):
        return None
    values = np.asarray(converted)
    return None if (np.asarray(pd.isna(values)) & ~gone).any() else values
