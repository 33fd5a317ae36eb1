"""The cost of a drift: the accuracy of the version in use on drifted data, measured by labels or estimated.

It is compared with the version's own accuracy, from its tag ``accuracy`` or from the detection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from scanflow.agent.context import Context
from scanflow.app.model import Model, Number
from scanflow.drift.contract import TOLERANCE, is_right, read_purpose
from scanflow.drift.performance import Accuracy, measure_accuracy
from scanflow.errors import InvalidError
from scanflow.knowledge.knowledge_records import ModelVersion
from scanflow_agents.templates import bookmarks
from scanflow_agents.templates.template_client import read_outputs
from scanflow_agents.templates.template_options import Options

RetrainWhen = Literal["drift", "estimated_loss", "realised_loss"]


class LossOptions(Options):
    retrain_when: RetrainWhen = "drift"
    """The condition for retraining, once there are labels: any ``drift``; a ``realised_loss`` of accuracy, by the
    points labelled for evaluation; or an ``estimated_loss``, which the detection computes from the model's scores."""

    max_loss: Number = Field(default=0.02, ge=0, lt=1)
    """The loss of accuracy up to which nothing is retrained, 0 to 1; and a loss has to be significant at 95 %."""


class AccuracyLoss(Model):
    """The accuracy on drifted data, compared with the one that is expected."""

    accuracy: Accuracy | None
    """None: there are no labels yet of what the version in use predicted."""

    expected: float | None
    """None: without such labels, no detection has estimated it."""

    loss: float | None
    too_much: bool


def measure_live_accuracy(points: Sequence[Mapping[str, Any]], tolerance: float | None = None) -> Accuracy | None:
    """Return the accuracy on the labelled points for evaluation; None: there are none of which it is known.

    ``tolerance``: of a regression, how far off a right answer may be.
    """
    evaluated = [point for point in points if read_purpose(point) == "evaluate" and point.get("guess") is not None]
    answers = [is_right(point["guess"], point["label"], tolerance) for point in evaluated]
    rights = [answer for answer in answers if answer is not None]
    return measure_accuracy(sum(rights), len(rights)) if rights else None


def find_expected_accuracy(champion: ModelVersion) -> float | None:
    """Return the accuracy in a version's tags, if any."""
    return _find_number(champion, "accuracy")


def find_tolerance(champion: ModelVersion) -> float | None:
    """Return how far off a right answer may be, which a training of a regression leaves in a version's tags."""
    return _find_number(champion, TOLERANCE)


def _find_number(champion: ModelVersion, tag: str) -> float | None:
    try:
        return float(champion.tags[tag])
    except (KeyError, ValueError):
        return None


def compute_loss(
    context: Context, options: LossOptions, champion: ModelVersion, points: Sequence[Mapping[str, Any]]
) -> AccuracyLoss:
    """Compute the loss of accuracy on labelled points that no model was trained on, and whether it is too much.

    Raises:
        InvalidError: the expected or the estimated accuracy is missing.
    """
    if options.retrain_when == "realised_loss":
        now, before = measure_live_accuracy(points, find_tolerance(champion)), find_expected_accuracy(champion)
        if before is None:
            raise InvalidError(
                f"Version {champion.version} of {champion.name!r} has no tag 'accuracy', so its loss is unknown. Tag "
                "it with its accuracy, 0 to 1; or write retrain_when='drift'."
            )
    else:
        now, before = _read_estimate(context, points) if points else (None, None)
    if now is None or before is None:
        return AccuracyLoss(accuracy=None, expected=before, loss=None, too_much=False)
    loss = before - now.value
    too_much = loss > options.max_loss and now.high < before
    return AccuracyLoss(accuracy=now, expected=before, loss=loss, too_much=too_much)


def _read_estimate(context: Context, points: Sequence[Mapping[str, Any]]) -> tuple[Accuracy, float]:
    runs = {str(point.get("run")) for point in points}
    newest = bookmarks.find_newest_detection(context, runs)
    outputs = {} if newest is None else read_outputs(context, newest)
    names = ("estimated_accuracy", "estimated_low", "estimated_high", "expected_accuracy", "n_newdata")
    values = [outputs.get(name) for name in names]
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in values):
        raise InvalidError(
            f"The detection {newest} has no output {', '.join(map(repr, names[:4]))}, so no loss is estimated. See "
            "docs/own-data.md; or write retrain_when='drift', or 'realised_loss'."
        )
    value, low, high, before, n = (float(number) for number in values)  # type: ignore[arg-type]  # they are numbers
    return Accuracy(value=value, low=low, high=high, n=int(n)), before
