"""Rows of requests: stacked for one call, and split again; and the trial whether that is what calls alone give."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scanflow_serving.copies import isolate

WRONG_ROW_COUNT: Final = "but a different number came out"
_RELATIVE: Final = 1e-3
_ABSOLUTE: Final = 1e-5
"""A stacked call may sum floating-point numbers in another order."""


def measure_rows(value: Any) -> tuple[int, object] | None:
    """Return the number of rows of a value, and the key that values stacked with it must share.

    None: it has no rows, and is called alone.
    """
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            return None
        return value.shape[0], (value.dtype, value.shape[1:])
    if (
        isinstance(value, dict)
        and value
        and all(isinstance(array, np.ndarray) and array.ndim for array in value.values())
    ):
        counts = {array.shape[0] for array in value.values()}
        if len(counts) == 1:
            return counts.pop(), tuple((name, array.dtype, array.shape[1:]) for name, array in value.items())
    return None


def check_rows(result: Any, count: int) -> None:
    """Raise ValueError unless a result has so many rows."""
    if isinstance(result, (dict, tuple)) and result:
        for rows in result.values() if isinstance(result, dict) else result:
            check_rows(rows, count)
    elif not hasattr(result, "__len__") or isinstance(result, (str, bytes, dict, tuple)) or _measure(result) != count:
        raise ValueError(f"{count} rows went in, {WRONG_ROW_COUNT}")


def split_rows(result: Any, counts: Sequence[int]) -> list[Any]:
    """Split a result's rows by request; each gets memory of its own."""
    if len(counts) == 1:
        return [result]
    check_rows(result, sum(counts))
    return [
        isolate(_take_part(result, end - count, end))
        for count, end in zip(counts, np.cumsum(counts).tolist(), strict=True)
    ]


def join_rows(results: Sequence[Any]) -> Any:
    """Concatenate values of one kind, or the results of the pieces of a request, by rows."""
    first = results[0]
    if len(results) == 1:
        return first
    if isinstance(first, dict):
        return {name: join_rows([result[name] for result in results]) for name in first}
    if isinstance(first, tuple):
        return tuple(join_rows(parts) for parts in zip(*results, strict=True))
    if isinstance(first, list):
        return [item for result in results for item in result]
    if any(isinstance(result, np.ma.MaskedArray) for result in results):
        return np.ma.concatenate(list(results))  # type: ignore[no-untyped-call]  # NumPy's has no types
    return np.concatenate([np.asarray(result) for result in results])


def find_other_row(value: Any) -> int | None:
    """Return the place of a row that differs from the first; None: all are equal."""
    arrays = list(value.values()) if isinstance(value, dict) else [value]
    differ = np.zeros(len(arrays[0]), dtype=bool)
    for array in arrays:
        if array.size:
            differ |= _compare_to_first(array.reshape(len(array), -1))
    differ[:1] = False  # NaN among objects differs from itself
    places = np.flatnonzero(differ)
    return int(places[0]) if places.size else None


async def are_rows_independent(call: Callable[[Any], Awaitable[tuple[Any, Any]]], value: Any, most: int) -> bool | None:
    """Try whether rows that are stacked are answered as each alone.

    Args:
        call: Calls the component with a value, and returns its result and its tags.
        value: At least one row; its first is stacked with one that differs, or with itself.
        most: The most rows of a call, which two are allowed to exceed.

    Returns:
        None: nothing can be said, since a call with one row failed.
    """
    other = find_other_row(value) or 0
    try:
        alone = {place: await call(take_rows(value, [place])) for place in dict.fromkeys((0, other))}
    except Exception:  # noqa: BLE001 - a component may raise anything; the requests themselves say what
        return None
    for order in [(0, other, 0)] if most > 2 else [(0, other), (other, 0)]:
        try:
            result, tags = await call(take_rows(value, order))
            expected = [alone[place][0] for place in order]
            parts = split_rows(result, [1] * len(order))
            same = are_alike(parts, expected) and are_alike(join_rows(expected), result)
        except Exception:  # noqa: BLE001 - whatever it is, these rows cannot be stacked
            return False
        if not same or any(not are_alike(alone[place][1], tags) for place in order):
            return False
    return True


def are_alike(result: Any, other: Any) -> bool:
    """Whether two results are equal, floating-point numbers to about three digits."""
    if type(result) is not type(other):
        return False
    if isinstance(result, dict):
        return list(result) == list(other) and all(are_alike(value, other[name]) for name, value in result.items())
    if isinstance(result, (list, tuple)):
        return len(result) == len(other) and all(map(are_alike, result, other))
    if isinstance(result, (float, complex, np.inexact)):
        return bool(np.isclose(result, other, _RELATIVE, _ABSOLUTE, equal_nan=True))
    if isinstance(result, np.ndarray):
        return _are_arrays_alike(result, other)
    if hasattr(result, "equals"):  # a table
        return bool(result.equals(other))
    return bool(result == other)


def _are_arrays_alike(array: NDArray[Any], other: NDArray[Any]) -> bool:
    if array.shape != other.shape or array.dtype.kind != other.dtype.kind:
        return False
    if array.dtype.kind in "fc":
        finite = np.abs(other[np.isfinite(other)])
        scale = _ABSOLUTE * float(finite.max()) if finite.size else 0.0
        return array.dtype == other.dtype and np.allclose(array, other, _RELATIVE, scale, equal_nan=True)
    if array.dtype.kind == "O":
        return are_alike(array.ravel().tolist(), other.ravel().tolist())
    return (array.dtype == other.dtype or array.dtype.kind in "SU") and np.array_equal(array, other)


def _compare_to_first(rows: NDArray[Any]) -> NDArray[np.bool_]:
    differ = np.asarray(rows != rows[:1], dtype=bool)
    if rows.dtype.kind in "fc":
        differ &= ~(np.isnan(rows) & np.isnan(rows[:1]))
    return np.asarray(differ.any(axis=1))


def _measure(rows: Any) -> int:
    return -1 if isinstance(rows, np.ndarray) and not rows.ndim else len(rows)


def _take_part(result: Any, begin: int, end: int) -> Any:
    if isinstance(result, dict):
        return {name: _take_part(rows, begin, end) for name, rows in result.items()}
    if isinstance(result, tuple):
        return tuple(_take_part(rows, begin, end) for rows in result)
    return result[begin:end]


def take_rows(value: Any, places: Sequence[int]) -> Any:
    if isinstance(value, dict):
        return {name: array[list(places)] for name, array in value.items()}
    return value[list(places)]
