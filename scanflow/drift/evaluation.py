"""Champion and challenger on the same labelled points, none of which either has learnt from."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.contract import Purpose
from scanflow.drift.promotion import for_evaluation
from scanflow.drift.samples import Samples
from scanflow.drift.slices import CURRENT, Slice, window_named
from scanflow.errors import InvalidError


class Predicts(Protocol):
    """A model."""

    def predict(self, x: Any, /) -> NDArray[Any]:
        """Return what it says of samples, (n,)."""
        ...


def are_for_evaluation(digests: Sequence[str], share: float) -> NDArray[np.bool_]:
    """Return which samples are for evaluation alone, by their digests, (n,)."""
    return np.array([for_evaluation(one.encode(), share=share) for one in digests], np.bool_)


def divide(
    digests: Sequence[str],
    purposes: Sequence[Purpose],
    *,
    share: float,
    trained: Collection[str],
    clean: Collection[str],
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return which labelled points a model may learn from, and which it is evaluated by.

    What is for evaluation in any window is so in all of them. What a model may have learnt from evaluates none.

    Args:
        digests: (n,): what each point is.
        purposes: (n,): what each was labelled for.
        share: The share of all points that are for evaluation.
        trained: The digests of what models learnt from at first.
        clean: Those of the clean points that they are evaluated by.
    """
    all_of = list(zip(digests, purposes, are_for_evaluation(digests, share), strict=True))
    evaluated = {*clean, *(one for one, purpose, is_held in all_of if is_held or purpose == "evaluate")}
    learnt = {*trained, *(one for one, purpose, is_held in all_of if purpose == "train" and not is_held)}
    train = [purpose == "train" and one not in evaluated for one, purpose, _ in all_of]
    evaluate = [purpose == "evaluate" and one not in learnt for one, purpose, _ in all_of]
    return np.flatnonzero(train), np.flatnonzero(evaluate)


def slices_by_window(windows: Sequence[str], known: Collection[str], newest: str) -> dict[str, NDArray[np.intp]]:
    """Return the points of each slice by its name: those of windows that the champion has not learnt from are current.

    If it has learnt from all of them, the newest window is.

    Args:
        windows: (n,): the window of each point.
        known: Windows that the champion has learnt from.
        newest: The window that came last.
    """
    current = {one for one in windows if one not in known} or {newest}
    found = {CURRENT: np.flatnonzero([one in current for one in windows])}
    for window in dict.fromkeys(windows):
        if window not in current:
            found[window_named(window)] = np.flatnonzero([one == window for one in windows])
    return found


def compared(
    name: str, x: Samples, y: NDArray[Any], *, champion: Predicts, challenger: Predicts, tolerance: float | None
) -> Slice:
    """Return how both answer the same points."""
    if len(y) == 0:
        return Slice(name=name, n=0, champion_right=0, challenger_right=0, gained=0)
    one, other = (right(model.predict(x), y, tolerance) for model in (champion, challenger))
    return Slice(
        name=name,
        n=len(y),
        champion_right=int(one.sum()),
        challenger_right=int(other.sum()),
        gained=int((other & ~one).sum()),
    )


def right(said: NDArray[Any], y: NDArray[Any], tolerance: float | None) -> NDArray[np.bool_]:
    """Return which answers are right, (n,): the same label, or a number within the tolerance."""
    if tolerance is not None:
        return np.asarray(np.abs(said.astype(np.float64) - y.astype(np.float64)) <= tolerance, np.bool_)
    if said.dtype.kind in "biuf" and y.dtype.kind in "biuf":
        return np.asarray(said == y, np.bool_)
    return np.asarray(said.astype(str) == y.astype(str), np.bool_)


def check_target(y: NDArray[Any], tolerance: float | None) -> None:
    """Refuse a continuous target of which nobody said when an answer is right.

    Raises:
        InvalidError: it is.
    """
    if tolerance is None and y.dtype.kind == "f" and not (y == np.round(y)).all():
        raise InvalidError(
            "The target is continuous, so that no answer is ever exactly right. Say how far off one may be: "
            "sf.drift.retraining(tolerance=...)"
        )


def labels_like(values: Sequence[Any], y: NDArray[Any], tolerance: float | None) -> tuple[NDArray[Any], list[int]]:
    """Return labels as those of the training data are, and which of them are none: ``"7"`` is 7 where 7 is a class."""
    if tolerance is not None:
        numbers = [_number(one) for one in values]
        return np.array(numbers), [at for at, one in enumerate(numbers) if not math.isfinite(one)]
    known: Mapping[str, Any] = {_plain(one): one for one in np.unique(y)}
    wrong = [at for at, one in enumerate(values) if _plain(one) not in known]
    first = y[0]
    return np.array([known.get(_plain(one), first) for one in values], dtype=y.dtype), wrong


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _plain(value: Any) -> str:
    text = str(value).strip()
    number = _number({"true": 1, "false": 0}.get(text.lower(), text))
    return repr(number) if math.isfinite(number) else text
