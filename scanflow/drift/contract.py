"""The outputs of detection and training runs, as agents read them: see docs/own-data.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, Self, TypeAlias, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from scanflow.drift.slices import CURRENT, Count, Slice
from scanflow.errors import InvalidError

__all__ = ["DetectionOutputs", "TrainingOutputs", "parse_detection_outputs", "parse_training_outputs"]

Purpose: TypeAlias = Literal["train", "evaluate"]
TOLERANCE = "tolerance"
"""The tag of a model version that says how far off a right answer of a regression may be."""

PURPOSES: tuple[Purpose, ...] = get_args(Purpose)

MAX_COLUMNS = 10
_PAGE = "The outputs that such a run must write: docs/own-data.md"
_EXPECTED = {"columns": "a list of objects with a 'name'", "regimes": "shares by name", "slices": "a list of objects"}


def _check_truth(value: Any) -> bool:
    if not isinstance(value, bool | int | float):
        raise InvalidError(f"The output 'drifted' is {value!r}. Write true or false, or 1 or 0. {_PAGE}")
    return bool(value)


def _check_columns(columns: Any) -> Any:
    if not isinstance(columns, list | tuple) or not all(
        isinstance(part, Mapping) and "name" in part for part in columns
    ):
        raise ValueError
    return columns[:MAX_COLUMNS]


Finite: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Text: TypeAlias = Annotated[
    str | None, BeforeValidator(lambda value: (value or None) if isinstance(value, str) else None)
]
_Ids: TypeAlias = Annotated[
    tuple[str, ...] | None, BeforeValidator(lambda ids: list(map(str, ids)) if isinstance(ids, list) else None)
]


class _Outputs(BaseModel):
    model_config = ConfigDict(frozen=True)

    @classmethod
    def parse(cls, outputs: Mapping[str, Any], who: str) -> Self:
        """Return the outputs of a run, of which those that are None were not written."""
        try:
            return cls(**{name: outputs[name] for name in cls.model_fields if outputs.get(name) is not None})
        except ValidationError as error:
            raise InvalidError(_explain(who, outputs, error.errors(include_url=False)[0])) from None


class DetectionOutputs(_Outputs):
    """The result of a detection on a window of new predictions."""

    drifted: Annotated[bool, BeforeValidator(_check_truth)]
    """Whether the data has drifted."""

    n_newdata: Count | None = None
    """The number of new predictions. None: unknown."""

    n_samples: Count | None = None
    """How many of the new predictions were compared: those that repeat a picture are left out. None: all."""

    n_anomalies: Count = 0
    """Outliers among these samples."""

    n_picked: Count = 0
    """Number of samples to be labelled, including those for evaluation."""

    n_evaluation: Count = 0
    """Number of samples to be labelled for the evaluation of models."""

    statistic: Finite | None = None
    """The statistic of the test. None: it has none."""

    threshold: Finite | None = None
    """The statistic above which data has drifted. None: it has none."""

    p_value: Finite | None = None
    """The p-value of the test. None: it has none."""

    columns: Annotated[tuple[Mapping[str, Any], ...], BeforeValidator(_check_columns)] = ()
    """The columns that drifted, worst first: ``name, test, statistic, p, effect, reference, current``."""

    model_uri: Annotated[str, BeforeValidator(str)] = ""
    """The address of the model in use: ``models:/NAME@ALIAS``. Empty: unknown."""

    model_version: Count | None = None
    """The version that the address referred to."""

    same_drift: Annotated[bool, BeforeValidator(bool)] = False
    """Whether it is the same drift as in earlier windows that no model has been trained on yet."""

    regimes: Mapping[str, Finite] = Field(default_factory=dict)
    """The composition of a window without drift: the share of each known slice, 0 to 1."""

    run_ids: _Ids = None
    """The tracked runs that were examined."""


class TrainingOutputs(_Outputs):
    """The result of a training: a challenger compared with the champion."""

    version: Count
    """The challenger's version in the registry."""

    champion_version: Count
    """The version that it was compared with."""

    labels: _Text = None
    """The tracked run with the labels that it was trained on. None: unknown."""

    champion_accuracy: Finite
    """The champion's accuracy on the points for evaluation, 0 to 1."""

    challenger_accuracy: Finite
    """The challenger's accuracy on the points for evaluation, 0 to 1."""

    slices: Annotated[tuple[Slice, ...], Field(min_length=1)]
    """The comparison on each slice of the data."""


def parse_detection_outputs(outputs: Mapping[str, Any]) -> DetectionOutputs:
    """Parse the outputs of a detection run; only ``drifted`` is required.

    Raises:
        InvalidError: it is missing, or an output has the wrong type.
    """
    if outputs.get("drifted") is None:
        raise InvalidError(
            f"No step wrote an output 'drifted'. Write sf.output('drifted', ...) in the detector's step. {_PAGE}"
        )
    return DetectionOutputs.parse(outputs, "The detection")


def parse_training_outputs(outputs: Mapping[str, Any]) -> TrainingOutputs | None:
    """Parse the outputs of a training run; None if it trained a first model, with nothing to compare.

    Raises:
        InvalidError: an output is missing, or has the wrong type.
    """
    who = "The training"
    if all(outputs.get(name) is None for name in ("slices", "champion_accuracy", "challenger_accuracy")):
        return None
    required = [name for name, field in TrainingOutputs.model_fields.items() if field.is_required()]
    if missing := [name for name in required if outputs.get(name) is None]:
        raise InvalidError(f"{who} wrote no output {', '.join(map(repr, missing))}. {_PAGE}")
    training = TrainingOutputs.parse(outputs, who)
    names = [part.name for part in training.slices]
    if names.count(CURRENT) != 1 or len(set(names)) != len(names):
        raise InvalidError(
            f"{who} wrote slices named {names}. Name one {CURRENT!r}, and the others differently. {_PAGE}"
        )
    return training


def _explain(who: str, outputs: Mapping[str, Any], detail: ErrorDetails) -> str:
    cause, (output, *inner) = detail.get("ctx", {}).get("error"), detail["loc"]
    if isinstance(cause, InvalidError):
        return str(cause)
    if output == "slices" and inner:
        needed = ", ".join(field.name for field in fields(Slice))
        part = outputs["slices"][inner[0]]
        return f"{who} wrote the slice {part!r:.200}, which needs {needed}, all but one counts. {_PAGE}"
    name = inner[-1] if inner and output != "columns" else output
    number = "a count" if detail["type"].startswith(("int", "greater")) else "a finite number"
    return f"{who} wrote {name!r} as {detail['input']!r:.60}, which is not {_EXPECTED.get(str(name), number)}. {_PAGE}"


def is_right(guess: Any, label: Any, tolerance: float | None = None) -> bool | None:
    """Return whether a prediction is right; None: it is an amount, of which no tolerance is known.

    ``tolerance``: a number is right that is off by no more. Labels of people may be text.
    """
    if tolerance is None:
        return None if isinstance(guess, float) and not guess.is_integer() else str(guess) == str(label)
    try:
        return abs(float(guess) - float(label)) <= tolerance
    except (TypeError, ValueError):
        return False


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
