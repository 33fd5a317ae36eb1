"""Compares champion and challenger on the same labelled points, which neither was trained on."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.contract import Purpose
from scanflow.drift.promotion import for_evaluation
from scanflow.drift.samples import Samples
from scanflow.drift.slices import CURRENT, Slice, format_window_name
from scanflow.errors import InvalidError


class SupportsPredict(Protocol):
    """A model."""

    def predict(self, x: Any, /) -> NDArray[Any]:
        """Return the predictions for samples, (n,)."""
        ...


def are_for_evaluation(digests: Sequence[str], share: float) -> NDArray[np.bool_]:
    """Return a mask (n,) of the samples reserved for evaluation, by their digests."""
    return np.array([for_evaluation(digest.encode(), share=share) for digest in digests], np.bool_)


def split_points(
    digests: Sequence[str],
    purposes: Sequence[Purpose],
    *,
    share: float,
    trained: Collection[str],
    clean: Collection[str],
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Split labelled points into those for training and those for evaluation; return both as indices.

    A point for evaluation in any window is so in all of them. No point that a model may have learnt is for evaluation.

    Args:
        digests: (n,): what each point is.
        purposes: (n,): what each was labelled for.
        share: The share of all points that are for evaluation.
        trained: The digests of what models learnt from at first.
        clean: Those of the clean points that they are evaluated by.
    """
    points = list(zip(digests, purposes, are_for_evaluation(digests, share), strict=True))
    evaluated = {*clean, *(digest for digest, purpose, is_held in points if is_held or purpose == "evaluate")}
    learnt = {*trained, *(digest for digest, purpose, is_held in points if purpose == "train" and not is_held)}
    train = [purpose == "train" and digest not in evaluated for digest, purpose, _ in points]
    evaluate = [purpose == "evaluate" and digest not in learnt for digest, purpose, _ in points]
    return np.flatnonzero(train), np.flatnonzero(evaluate)


def split_by_window(windows: Sequence[str], learnt: Collection[str], newest: str) -> dict[str, NDArray[np.intp]]:
    """Return the indices of each slice's points by its name: windows that the champion was not trained on are current.

    If it has learnt all of them, the newest window is.

    Args:
        windows: (n,): the window of each point.
        learnt: Windows that the champion has learnt from.
        newest: The window that came last.
    """
    current = {window for window in windows if window not in learnt} or {newest}
    slices = {CURRENT: np.flatnonzero([window in current for window in windows])}
    for window in dict.fromkeys(windows):
        if window not in current:
            slices[format_window_name(window)] = np.flatnonzero([name == window for name in windows])
    return slices


def compare_models(
    name: str,
    x: Samples,
    y: NDArray[Any],
    *,
    champion: SupportsPredict,
    challenger: SupportsPredict,
    tolerance: float | None,
) -> Slice:
    """Evaluate both models on the same points."""
    if len(y) == 0:
        return Slice(name=name, n=0, champion_right=0, challenger_right=0, gained=0)
    champion_right, challenger_right = (
        compare_answers(model.predict(x), y, tolerance) for model in (champion, challenger)
    )
    return Slice(
        name=name,
        n=len(y),
        champion_right=int(champion_right.sum()),
        challenger_right=int(challenger_right.sum()),
        gained=int((challenger_right & ~champion_right).sum()),
    )


def compare_answers(predicted: NDArray[Any], y: NDArray[Any], tolerance: float | None) -> NDArray[np.bool_]:
    """Return a mask (n,) of the right answers: the same label, or a number within the tolerance."""
    if tolerance is not None:
        return np.asarray(np.abs(predicted.astype(np.float64) - y.astype(np.float64)) <= tolerance, np.bool_)
    if predicted.dtype.kind in "biuf" and y.dtype.kind in "biuf":
        return np.asarray(predicted == y, np.bool_)
    return np.asarray(predicted.astype(str) == y.astype(str), np.bool_)


def check_target(y: NDArray[Any], tolerance: float | None) -> None:
    """Reject a continuous target without a tolerance.

    Raises:
        InvalidError: it is.
    """
    if tolerance is None and y.dtype.kind == "f" and not (y == np.round(y)).all():
        raise InvalidError(
            "The target is continuous, so no answer is exactly right. Set the tolerance of a right answer: "
            "sf.drift.retraining(tolerance=...)"
        )


def convert_labels(values: Sequence[Any], y: NDArray[Any], tolerance: float | None) -> tuple[NDArray[Any], list[int]]:
    """Convert labels to the training data's type, and return the indices of invalid ones: ``"7"`` is class 7."""
    if tolerance is not None:
        numbers = [_parse_number(value) for value in values]
        return np.array(numbers), [at for at, number in enumerate(numbers) if not math.isfinite(number)]
    classes: Mapping[str, Any] = {_normalise_label(label): label for label in np.unique(y)}
    wrong = [at for at, value in enumerate(values) if _normalise_label(value) not in classes]
    first = y[0]
    return np.array([classes.get(_normalise_label(value), first) for value in values], dtype=y.dtype), wrong


def _parse_number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _normalise_label(value: Any) -> str:
    text = str(value).strip()
    number = _parse_number({"true": 1, "false": 0}.get(text.lower(), text))
    return repr(number) if math.isfinite(number) else text
