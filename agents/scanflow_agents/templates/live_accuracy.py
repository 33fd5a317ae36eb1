"""What a drift costs: the accuracy of the version in use where data drifted, measured by late labels or estimated.

It is compared with the version's own accuracy, which its tag ``accuracy`` has, or the detection says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from pydantic import Field

from scanflow.agent.context import Context
from scanflow.app.model import Number
from scanflow.drift.contract import purpose_of
from scanflow.drift.performance import Accuracy, measured
from scanflow.errors import InvalidError
from scanflow.knowledge.records import ModelVersion
from scanflow_agents.templates import bookmarks
from scanflow_agents.templates.control_plane import outputs_of
from scanflow_agents.templates.options import Options

RetrainWhen = Literal["drift", "estimated_loss", "realised_loss"]


class LossOptions(Options):
    retrain_when: RetrainWhen = "drift"
    """What retrains, once there are labels: any ``drift``; a ``realised_loss`` of accuracy, by the points labelled for
    evaluation; or an ``estimated_loss``, which the detection works out from the model's scores, before any label."""

    max_loss: Number = Field(default=0.02, ge=0, lt=1)
    """So much accuracy may be lost without a retraining, 0 to 1; and a loss has to be more than chance, at 95 %."""


def realised(points: Sequence[Mapping[str, Any]]) -> Accuracy | None:
    """Return the share of right predictions among labelled points for evaluation; None: there are none."""
    evaluated = [one for one in points if purpose_of(one) == "evaluate" and one.get("guess") is not None]
    right = sum(str(one["guess"]) == str(one["label"]) for one in evaluated)
    return measured(right, len(evaluated)) if evaluated else None


def expected(champion: ModelVersion) -> float | None:
    """Return the accuracy that a version was registered with."""
    try:
        return float(champion.tags["accuracy"])
    except (KeyError, ValueError):
        return None


def loss_of(
    context: Context, options: LossOptions, champion: ModelVersion, points: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what a drift costs, by labelled points that no model has learnt from, and whether that is too much.

    Raises:
        InvalidError: nobody says what accuracy is expected, or is estimated.
    """
    if options.retrain_when == "realised_loss":
        now, before = realised(points), expected(champion)
        if before is None:
            raise InvalidError(
                f"Version {champion.version} of {champion.name!r} has no tag 'accuracy', so that no loss is known. Tag "
                "it with its accuracy, 0 to 1; or write retrain_when='drift'."
            )
    else:
        now, before = _estimated(context, points)
    if now is None:
        return {"accuracy": None, "expected": before, "loss": None, "too_much": False}
    loss = before - now.value
    too_much = loss > options.max_loss and now.high < before
    return {"accuracy": asdict(now), "expected": before, "loss": loss, "too_much": too_much}


def _estimated(context: Context, points: Sequence[Mapping[str, Any]]) -> tuple[Accuracy, float]:
    runs = {str(one.get("run")) for one in points}
    newest = bookmarks.newest_detection(context, runs)
    outputs = {} if newest is None else outputs_of(context, newest)
    names = ("estimated_accuracy", "estimated_low", "estimated_high", "expected_accuracy", "n_newdata")
    values = [outputs.get(name) for name in names]
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in values):
        raise InvalidError(
            f"The detection {newest} left no {', '.join(map(repr, names[:4]))}, so that no loss is estimated. See "
            "docs/own-data.md; or write retrain_when='drift', or 'realised_loss'."
        )
    value, low, high, before, n = (float(one) for one in values)  # type: ignore[arg-type]  # they are numbers
    return Accuracy(value=value, low=low, high=high, n=int(n)), before
