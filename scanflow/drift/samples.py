"""Samples, as arrays (n, ...) or tables with named columns: file format and digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scanflow.arrays import is_missing
from scanflow.drift.table import Column
from scanflow.errors import InvalidError

Samples: TypeAlias = Any
"""An array (n, ...) of numbers, or a pandas DataFrame of n rows."""


def is_table(x: Samples) -> bool:
    return hasattr(x, "columns")


def take_rows(x: Samples, at: Any) -> Samples:
    """Return the samples at indices, or where a mask (n,) is true."""
    return x.iloc[np.asarray(at)].reset_index(drop=True) if is_table(x) else x[at]


def concatenate_samples(parts: Sequence[Samples]) -> Samples:
    if len(parts) == 1:
        return parts[0]
    if not is_table(parts[0]):
        return np.concatenate(parts)
    import pandas as pd

    return pd.concat(parts, ignore_index=True)[list(parts[0].columns)]


def pack_samples(name: str, x: Samples) -> dict[str, NDArray[Any]]:
    """Encode samples as arrays for an ``.npz`` file without pickles: one for each column of a table, text as JSON."""
    if not is_table(x):
        return {name: np.asarray(x)}
    columns = {f"{name}:{column}": x[column].to_numpy() for column in x.columns}
    return {key: _encode_json(values) if values.dtype.kind == "O" else values for key, values in columns.items()}


def unpack_samples(name: str, arrays: Mapping[str, NDArray[Any]]) -> Samples:
    """Return the samples that :func:`pack_samples` encoded.

    Raises:
        InvalidError: it is not among them.
    """
    if name in arrays:
        return arrays[name]
    columns = {key.removeprefix(f"{name}:"): values for key, values in arrays.items() if key.startswith(f"{name}:")}
    if not columns:
        raise InvalidError(
            f"The file has no array {name!r} and no columns of it: it has {', '.join(arrays) or 'none'}."
        )
    import pandas as pd

    return pd.DataFrame(
        {key: _decode_json(values) if values.dtype.kind == "U" else values for key, values in columns.items()}
    )


def compute_digests(x: Samples) -> list[str]:
    """Compute a digest of each sample, (n,): equal for equal values, whatever their dtype."""
    if is_table(x):
        parts = [_hash_column(Column.from_values(str(name), x[name].to_numpy())) for name in x.columns]
        table = np.concatenate(parts, axis=1)
    else:
        table = _view_bytes(np.asarray(x).reshape(len(x), -1))
    return [hashlib.sha256(row.tobytes()).hexdigest()[:32] for row in table]


def list_first_occurrences(digests: Sequence[str] | NDArray[np.str_]) -> NDArray[np.intp]:
    """Return the index of the first occurrence of each distinct sample, ascending."""
    return np.sort(np.unique(digests, return_index=True)[1])


def read_row(x: Samples, at: int) -> dict[str, Any] | None:
    """Return a table's row as JSON values by column; None for arrays."""
    if not is_table(x):
        return None
    return {str(name): _to_json_value(x[name].iloc[at]) for name in x.columns}


def _view_bytes(flat: NDArray[Any]) -> NDArray[np.uint8]:
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(flat, dtype=np.float32) + np.float32(0.0)  # -0.0 is 0.0
    narrow[np.isnan(narrow)] = np.nan
    return narrow.view(np.uint8).reshape(len(flat), -1)


def _hash_column(column: Column) -> NDArray[np.uint8]:
    if column.is_numeric:
        return _view_bytes(column.values.reshape(-1, 1))
    texts = [b"" if value is None else hashlib.sha256(str(value).encode()).digest()[:8] for value in column.values]
    return np.frombuffer(b"".join(text.ljust(8, b"\0") for text in texts), np.uint8).reshape(len(texts), 8)


def _encode_json(values: NDArray[Any]) -> NDArray[Any]:
    return np.array([json.dumps(_to_json_value(value)) for value in values], dtype=np.str_)


def _decode_json(values: NDArray[Any]) -> NDArray[Any]:
    return np.array([json.loads(value) for value in values.tolist()] + [None], dtype=object)[:-1]


def _to_json_value(value: Any) -> Any:
    if hasattr(value, "item"):
        value = value.item()
    if is_missing(value):
        return None
    return value if isinstance(value, bool | int | float | str) else str(value)
