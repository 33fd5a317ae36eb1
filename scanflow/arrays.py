"""Arrays that change no value in silence: gaps of masked arrays, numbers of other types, large whole numbers in lists.

NumPy is imported by the first call.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

EXACT_MAX = 2**53
"""Up to here a floating-point number of 64 bits holds every whole number; tables keep larger ones as long doubles,
exact up to 2**64 (on x86)."""


def is_missing(value: object) -> bool:
    """Whether a value stands for none: None, NaN, NaT, and pandas' NA."""
    if value is None or isinstance(value, (str, int, float)):  # nearly all, of tables of millions
        return value is None or (isinstance(value, float) and math.isnan(value))
    if type(value).__module__ != "numpy":
        return type(value).__name__ in {"NAType", "NaTType"}
    import numpy as np

    if isinstance(value, (np.datetime64, np.timedelta64)):
        return bool(np.isnat(value))
    return isinstance(value, np.floating) and math.isnan(value)


def fill_masked(value: Any) -> Any:
    """Return a masked array as a plain one, whose masked elements are missing: NaN, NaT or None; others as they are."""
    import numpy as np

    if not isinstance(value, np.ma.MaskedArray):
        return value
    mask = np.ma.getmaskarray(value)
    if not mask.any():
        return value.data
    if value.dtype.kind in "fcmM":
        plain = value.data.copy()
        plain[mask] = np.nan if value.dtype.kind in "fc" else "NaT"
        return plain
    objects = np.array(value.data, dtype=object)
    objects[mask] = None
    return objects


def fill_masked_parts(value: Any) -> Any:
    """Return an array, or a dictionary of arrays, without masks: see :func:`fill_masked`."""
    if isinstance(value, dict):
        return {name: fill_masked(part) for name, part in value.items()}
    return fill_masked(value)


def make_array(values: Any) -> NDArray[Any]:
    """Return values as an array of what they are: objects where NumPy would round whole numbers beyond 2**53, cut
    zeros off texts, or write numbers among texts as texts.

    Raises:
        ValueError: they are rows of different lengths.
    """
    import numpy as np

    array: NDArray[Any] = np.asarray(fill_masked(values))
    if hasattr(values, "dtype"):
        return array
    if array.dtype.kind in "US":
        objects = np.array(values, dtype=object)
        return objects if objects.shape == array.shape else array
    if has_large(array):
        objects = np.array(values, dtype=object)
        if not all(map(is_exact_float, objects.flat)):
            return objects
    return array


def read_column(column: Any) -> NDArray[Any]:
    """Return a column of pandas as an array: whole numbers beyond 2**53 as objects where some are missing, which
    pandas rounds."""

    array: NDArray[Any] = column.to_numpy()
    rounds = getattr(getattr(column, "dtype", None), "kind", "") in {"i", "u"}
    if rounds and has_large(array):
        array = column.to_numpy(dtype=object)
    return array


def has_large(numbers: Any) -> bool:
    """Whether an array, or a column of pandas, is of floating point and has a number so large that it may be a rounded
    whole one."""
    import numpy as np

    return numbers.dtype.kind == "f" and bool((np.abs(numbers, dtype=np.float64) >= EXACT_MAX).any())


def is_exact_float(number: Any) -> bool:
    """Whether a number is the same as one of floating point of 64 bits."""
    import numpy as np

    if not isinstance(number, (int, np.integer)):
        return True
    try:
        return int(float(number)) == int(number)
    except OverflowError:
        return False


def join_numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Return objects that are numbers, some of which may be missing, as numbers; all others as they are.

    Whole numbers, all of which one type of 64 bits holds, are integers; those that none holds stay objects.
    """
    import numpy as np

    missing = [is_missing(element) for element in array.flat]
    there = [element for element, gap in zip(array.flat, missing, strict=True) if not gap]
    kinds = (int, float, np.integer, np.floating)
    if not there or not all(isinstance(element, kinds) and not isinstance(element, bool) for element in there):
        return array
    if any(missing) or any(isinstance(element, (float, np.floating)) for element in there):
        numbers = [np.nan if gap else element for element, gap in zip(array.flat, missing, strict=True)]
        try:
            return np.array(numbers, dtype=np.float64).reshape(array.shape)
        except OverflowError:
            return array
    low, high = int(min(there)), int(max(there))
    for dtype in (np.int64, np.uint64):
        bounds = np.iinfo(dtype)
        if bounds.min <= low and high <= bounds.max:
            return array.astype(dtype)
    return array


def cast_exactly(array: NDArray[Any], dtype: Any) -> NDArray[Any] | None:
    """Return numbers as those of another type; None: some would be other numbers there.

    Numbers of floating point may lose digits, but do not become infinite. Those so large that they may have been
    rounded when they were read, as 9007199254740993.0 is, are no whole numbers.
    """
    import numpy as np

    target = np.dtype(dtype)
    if target.kind in "iu" and array.size and not _is_within(array, np.iinfo(target)):
        return None
    with np.errstate(all="ignore"):
        converted = array.astype(target)
    if target.kind == array.dtype.kind == "f":
        same = np.isfinite(converted) == np.isfinite(array)
    elif target.kind == "f" and array.dtype.kind in "iu":
        wide = converted.astype(np.float64)
        within = wide < float(int(np.iinfo(array.dtype).max) + 1)  # what is not within would wrap on the way back
        same = within & (np.where(within, wide, 0).astype(array.dtype) == array)
    else:
        same = converted.astype(array.dtype) == array
    return converted if bool(same.all()) else None


def _is_within(array: NDArray[Any], bounds: Any) -> bool:
    import numpy as np

    if array.dtype.kind == "f":
        return bool(np.isfinite(array).all()) and not has_large(array) and _fits(array, bounds)
    return _fits(array, bounds)


def _fits(array: NDArray[Any], bounds: Any) -> bool:
    return bool(bounds.min <= int(array.min()) and int(array.max()) <= bounds.max)
