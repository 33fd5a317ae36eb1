"""Truth values as people write them: true, yes, y, t and 1, and their opposites, in any case. Pure."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scanflow.arrays import is_missing

_TRUTHS: Final = {
    **dict.fromkeys(("true", "t", "yes", "y", "1", "1.0"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0", "0.0"), False),
}
_SAMPLE: Final = 100
WRITTEN: Final = "true or false (or yes and no, y and n, t and f, 1 and 0)"


def find_other_than_truths(values: NDArray[Any]) -> Any:
    """Return the first value of a column that is no truth value and not missing; None: there is none."""
    for part in (values[:_SAMPLE], values):  # most other columns are known by their first values
        for value in _list_different(part):
            if _read(value) is None and not is_missing(value):
                return value
    return None


def read_truths(values: NDArray[Any]) -> NDArray[Any] | None:
    """Return a column as truth values, True, False and None where one is missing; None: some value is none.

    Args:
        values: (rows,), of numbers, truth values or text.
    """
    if values.ndim != 1 or values.dtype.kind not in "biufO" or find_other_than_truths(values) is not None:
        return None
    truths = np.array([*map(_read, values), None], object)[:-1]
    return truths if any(truth is None for truth in truths) else truths.astype(bool)


def list_spellings(values: NDArray[Any]) -> set[str]:
    """Return how a column's values are written, in lower case."""
    return {str(value).strip().lower() for value in _list_different(values) if not is_missing(value)}


def _list_different(values: NDArray[Any]) -> list[Any]:
    return list(dict.fromkeys(values.tolist()))


def _read(value: Any) -> bool | None:
    return None if is_missing(value) else _TRUTHS.get(str(value).strip().lower())
