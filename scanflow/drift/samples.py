"""Samples, arrays (n, ...) or tables with named columns: kept in files, and each told from all others by a digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.table import Column, is_missing
from scanflow.errors import InvalidError

Samples: TypeAlias = Any
"""An array (n, ...) of numbers, or a pandas DataFrame of n rows."""


def is_table(x: Samples) -> bool:
    return hasattr(x, "columns")


def rows(x: Samples, at: Any) -> Samples:
    """Return some samples, by their numbers or a mask (n,)."""
    return x.iloc[np.asarray(at)].reset_index(drop=True) if is_table(x) else x[at]


def joined(parts: Sequence[Samples]) -> Samples:
    if len(parts) == 1:
        return parts[0]
    if not is_table(parts[0]):
        return np.concatenate(parts)
    import pandas as pd

    return pd.concat(parts, ignore_index=True)[list(parts[0].columns)]


def packed(name: str, x: Samples) -> dict[str, NDArray[Any]]:
    """Return arrays that an ``.npz`` file holds without pickles: a table has one for each column, text as JSON."""
    if not is_table(x):
        return {name: np.asarray(x)}
    columns = {f"{name}:{column}": x[column].to_numpy() for column in x.columns}
    return {key: _as_text(values) if values.dtype.kind == "O" else values for key, values in columns.items()}


def unpacked(name: str, arrays: Mapping[str, NDArray[Any]]) -> Samples:
    """Return what :func:`packed` made arrays of.

    Raises:
        InvalidError: it is not among them.
    """
    if name in arrays:
        return arrays[name]
    columns = {key.removeprefix(f"{name}:"): values for key, values in arrays.items() if key.startswith(f"{name}:")}
    if not columns:
        raise InvalidError(
            f"The file has no array {name!r} and no columns of one: it has {', '.join(arrays) or 'none'}."
        )
    import pandas as pd

    return pd.DataFrame({key: _from_text(one) if one.dtype.kind == "U" else one for key, one in columns.items()})


def digests(x: Samples) -> list[str]:
    """Return a digest of each sample, (n,): alike for the same values, whatever type of number they came as."""
    if is_table(x):
        parts = [_column_bytes(Column.of(str(name), x[name].to_numpy())) for name in x.columns]
        table = np.concatenate(parts, axis=1)
    else:
        table = _bytes_of(np.asarray(x).reshape(len(x), -1))
    return [hashlib.sha256(row.tobytes()).hexdigest()[:32] for row in table]


def firsts(digests: Sequence[str] | NDArray[np.str_]) -> NDArray[np.intp]:
    """Return where each different sample comes first, ascending."""
    return np.sort(np.unique(digests, return_index=True)[1])


def row_values(x: Samples, at: int) -> dict[str, Any] | None:
    """Return a table's row as JSON holds it, by column; None: it is no table."""
    if not is_table(x):
        return None
    return {str(name): _plain(x[name].iloc[at]) for name in x.columns}


def _bytes_of(flat: NDArray[Any]) -> NDArray[np.uint8]:
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(flat, dtype=np.float32) + np.float32(0.0)  # -0.0 is 0.0
    narrow[np.isnan(narrow)] = np.nan
    return narrow.view(np.uint8).reshape(len(flat), -1)


def _column_bytes(column: Column) -> NDArray[np.uint8]:
    if column.is_numeric:
        return _bytes_of(column.values.reshape(-1, 1))
    texts = [b"" if value is None else hashlib.sha256(str(value).encode()).digest()[:8] for value in column.values]
    return np.frombuffer(b"".join(one.ljust(8, b"\0") for one in texts), np.uint8).reshape(len(texts), 8)


def _as_text(values: NDArray[Any]) -> NDArray[Any]:
    return np.array([json.dumps(_plain(value)) for value in values], dtype=np.str_)


def _from_text(values: NDArray[Any]) -> NDArray[Any]:
    return np.array([json.loads(value) for value in values.tolist()] + [None], dtype=object)[:-1]


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        value = value.item()
    if is_missing(value):
        return None
    return value if isinstance(value, bool | int | float | str) else str(value)
