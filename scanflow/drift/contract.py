"""The outputs of detection and training runs, as agents read them: see docs/own-data.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

from scanflow.drift.slices import CURRENT, Slice
from scanflow.errors import InvalidError

__all__ = ["DetectionOutputs", "TrainingOutputs", "parse_detection_outputs", "parse_training_outputs"]

Purpose: TypeAlias = Literal["train", "evaluate"]
PURPOSES: tuple[Purpose, ...] = ("train", "evaluate")

MAX_COLUMNS = 10
_PAGE = "The outputs that such a run must write: docs/own-data.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionOutputs:
    """The result of a detection on a window of new predictions."""

    drifted: bool
    n_newdata: int | None = None
    n_anomalies: int = 0
    n_picked: int = 0
    """Number of samples to be labelled, including those for evaluation."""

    n_evaluation: int = 0
    statistic: float | None = None
    threshold: float | None = None
    p_value: float | None = None
    columns: tuple[Mapping[str, Any], ...] = ()
    """The columns that drifted, worst first: ``name, test, statistic, p, effect, reference, current``."""

    model_uri: str = ""
    """The address of the model in use: ``models:/NAME@ALIAS``. Empty: unknown."""

    model_version: int | None = None
    """The version that the address referred to."""

    same_drift: bool = False
    """Whether it is the same drift as in earlier windows that no model has been trained on yet."""

    regimes: Mapping[str, float] = field(default_factory=dict)
    """The composition of a window without drift: the share of each known slice, 0 to 1."""

    run_ids: tuple[str, ...] | None = None
    """The tracked runs that were examined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutputs:
    """The result of a training: a challenger compared with the champion."""

    version: int
    champion_version: int
    labels: str | None
    champion_accuracy: float
    challenger_accuracy: float
    slices: tuple[Slice, ...]


def parse_detection_outputs(outputs: Mapping[str, Any]) -> DetectionOutputs:
    """Parse the outputs of a detection run; only ``drifted`` is required.

    Raises:
        InvalidError: it is missing, or an output has the wrong type.
    """
    who = "The detection"
    if outputs.get("drifted") is None:
        raise InvalidError(
            f"No step wrote an output 'drifted'. Write sf.output('drifted', ...) in the detector's step. {_PAGE}"
        )
    drifted = outputs["drifted"]
    if isinstance(drifted, str) or not isinstance(drifted, bool | int | float):
        raise InvalidError(f"The output 'drifted' is {drifted!r}. Write true or false, or 1 or 0. {_PAGE}")
    columns = outputs.get("columns") or ()
    if not _is_list(columns) or not all(isinstance(column, Mapping) and "name" in column for column in columns):
        raise InvalidError(f"{who} wrote 'columns' that are not a list of objects with a 'name'. {_PAGE}")
    runs, regimes = outputs.get("run_ids"), outputs.get("regimes") or {}
    if not isinstance(regimes, Mapping):
        raise InvalidError(f"{who} wrote 'regimes' that are not shares by name: {regimes!r:.100}. {_PAGE}")
    return DetectionOutputs(
        drifted=bool(drifted),
        n_newdata=_parse_count(outputs, "n_newdata", who, default=None),
        n_anomalies=_parse_count(outputs, "n_anomalies", who) or 0,
        n_picked=_parse_count(outputs, "n_picked", who) or 0,
        n_evaluation=_parse_count(outputs, "n_evaluation", who) or 0,
        statistic=_parse_number(outputs, "statistic", who),
        threshold=_parse_number(outputs, "threshold", who),
        p_value=_parse_number(outputs, "p_value", who),
        columns=tuple(columns)[:MAX_COLUMNS],
        model_uri=str(outputs.get("model_uri") or ""),
        model_version=_parse_count(outputs, "model_version", who, default=None),
        same_drift=bool(outputs.get("same_drift")),
        regimes={str(name): _parse_number(regimes, name, f"{who}, of 'regimes',") or 0.0 for name in regimes},
        run_ids=tuple(str(run_id) for run_id in runs) if isinstance(runs, list) else None,
    )


def parse_training_outputs(outputs: Mapping[str, Any]) -> TrainingOutputs | None:
    """Parse the outputs of a training run; None if it trained a first model, with nothing to compare.

    Raises:
        InvalidError: an output is missing, or has the wrong type.
    """
    who = "The training"
    if not {"slices", "champion_accuracy", "challenger_accuracy"} & {
        name for name, value in outputs.items() if value is not None
    }:
        return None
    required = [attribute.name for attribute in fields(TrainingOutputs) if attribute.name != "labels"]
    if missing := [name for name in required if outputs.get(name) is None]:
        raise InvalidError(f"{who} wrote no output {', '.join(map(repr, missing))}. {_PAGE}")
    slices = outputs["slices"]
    if not _is_list(slices) or not slices:
        raise InvalidError(f"{who} wrote 'slices' that are not a list of objects: {slices!r:.100}. {_PAGE}")
    labels = outputs.get("labels")
    training = TrainingOutputs(
        version=_parse_count(outputs, "version", who) or 0,
        champion_version=_parse_count(outputs, "champion_version", who) or 0,
        labels=labels if isinstance(labels, str) and labels else None,
        champion_accuracy=_parse_number(outputs, "champion_accuracy", who) or 0.0,
        challenger_accuracy=_parse_number(outputs, "challenger_accuracy", who) or 0.0,
        slices=tuple(_parse_slice(part, who) for part in slices),
    )
    names = [part.name for part in training.slices]
    if names.count(CURRENT) != 1 or len(set(names)) != len(names):
        raise InvalidError(
            f"{who} wrote slices named {names}. Name one {CURRENT!r}, and the others differently. {_PAGE}"
        )
    return training


def read_purpose(point: Mapping[str, Any]) -> Purpose:
    """Return the purpose of a selected or labelled point.

    Raises:
        InvalidError: neither training nor evaluation.
    """
    purpose = point.get("purpose") or "train"  # as a detection of one's own may leave it
    if purpose not in PURPOSES:
        raise InvalidError(
            f"The point {point.get('id')!r} has the purpose {purpose!r}. Write one of {', '.join(PURPOSES)}. {_PAGE}"
        )
    return "evaluate" if purpose == "evaluate" else "train"


def _parse_slice(part: Any, who: str) -> Slice:
    names = [attribute.name for attribute in fields(Slice)]
    if not isinstance(part, Mapping) or any(part.get(name) is None for name in names):
        raise InvalidError(f"{who} wrote the slice {part!r:.200}, which needs {', '.join(names)}. {_PAGE}")
    counts = {
        name: _parse_count(part, name, f"{who}, slice {part['name']!r},") or 0 for name in names if name != "name"
    }
    return Slice(name=str(part["name"]), **counts)


def _parse_count(outputs: Mapping[str, Any], name: str, who: str, *, default: int | None = 0) -> int | None:
    value = outputs.get(name)
    if value is None:
        return default
    if isinstance(value, str) and value.isdecimal():  # as MLflow has versions
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
        raise InvalidError(f"{who} wrote {name!r} as {value!r:.60}, which is not a count. {_PAGE}")
    return int(value)


def _parse_number(outputs: Mapping[str, Any], name: str, who: str) -> float | None:
    value = outputs.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidError(f"{who} wrote {name!r} as {value!r:.60}, which is not a finite number. {_PAGE}")
    return float(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
