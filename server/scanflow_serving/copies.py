"""Values of their own for the components of a graph: what one keeps or changes in place, no other sees."""

from __future__ import annotations

import copy
from sys import getrefcount
from typing import Any, Final

import numpy as np

from scanflow_serving.inference_problems import ProblemError

_IMMUTABLE: Final = frozenset({type(None), bool, int, float, complex, str, bytes})


def _count_references(value: Any) -> int:
    return getrefcount(value)


_UNSHARED: Final = _count_references(np.empty(0))
"""The references to an array that only a function's parameter holds."""


def isolate(value: Any) -> Any:
    """Return a result that its component does not keep: itself if nothing else refers to it, else a deep copy.

    Call it on the call itself, ``isolate(call())``, so that no name of the caller refers to the result. What cannot be
    copied (a generator, an open file) is returned as it is.
    """
    if type(value) is np.ndarray and not value.dtype.hasobject:
        if getrefcount(value) == _UNSHARED and value.base is None and value.flags.forc and value.flags.writeable:
            return value
        return value.copy("K")
    if type(value) in _IMMUTABLE:
        return value
    try:
        return _copy(value)
    except Exception:  # noqa: BLE001 - copying runs the code of whatever class it is
        return value


def copy_input(value: Any, who: str) -> Any:
    """Return a deep copy of what several nodes take; ProblemError (500) says if that cannot be copied."""
    try:
        return _copy(value)
    except Exception as error:
        raise ProblemError(
            500,
            f"{who} is not the only one to take a value of type {type(value).__name__!r}, which cannot be copied for "
            f"each ({str(error)[:200]}). Let the node before return an array, a list or a dict of them.",
        ) from error


def _copy(value: Any) -> Any:
    kind = type(value)
    if kind is np.ndarray:
        return copy.deepcopy(value) if value.dtype.hasobject else value.copy("K")
    if kind in _IMMUTABLE:
        return value
    if kind is memoryview:  # a deep copy of one is refused
        return memoryview(bytearray(value.tobytes())).cast(value.format, value.shape)
    return copy.deepcopy(value)
