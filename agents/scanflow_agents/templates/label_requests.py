"""How many samples of a drift people are asked to label: once for one drift, and for no more than it takes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from scanflow.agent.context import Context
from scanflow.drift.contract import DetectionOutputs, purpose_of
from scanflow_agents.templates import bookmarks
from scanflow_agents.templates.challengers import is_being_decided
from scanflow_agents.templates.control_plane import control_plane_of
from scanflow_agents.templates.detections import PastDetection, most_labels, open_windows

Point = TypeVar("Point", bound=Mapping[str, object])


@dataclass(frozen=True, kw_only=True)
class LabelRequests:
    """When people are asked for samples of a drift that was found before."""

    patience: int | None
    distinguishes: bool
    """Whether a detection says that a drift is another one."""

    training_workflow: str | None
    training_interval_s: float
    least: int
    """So many labels that no model has learnt from are learnt from."""

    seen: dict[str, frozenset[str]] = field(default_factory=dict)

    def windows(
        self, context: Context, detection: DetectionOutputs, past: Sequence[PastDetection]
    ) -> list[PastDetection]:
        """Return the windows before it that a window has the drift of."""
        return open_windows(context, past) if detection.same_drift or not self.distinguishes else []

    def busy(self, context: Context) -> bool:
        """Say whether a model learns from what was labelled, or is about to, or is decided on."""
        if self.training_workflow is None:
            return False
        patience_s = 60 + 2 * self.training_interval_s
        if bookmarks.at_work(context, self.training_workflow, "learnt", patience_s=patience_s) is not None:
            return True
        if is_being_decided(context):
            return True
        given = control_plane_of(context).labels(context.app, state="given", team=context.team)
        learnt = bookmarks.learnt_ids(context, self.seen) if given else set()
        return sum(purpose_of(one) == "train" and one["id"] not in learnt for one in given) >= self.least


def samples_to_request(
    picked: int, windows: Sequence[PastDetection], *, waiting: int, busy: bool, patience: int | None
) -> int:
    """Return of how many samples more people are asked for, of so many that were ``picked`` of a window.

    Args:
        picked: So many were picked.
        windows: Those before it with the same drift, the newest first; none: it is a new drift.
        waiting: So many samples wait for a label, of any drift: no more wait than one window has.
        busy: Whether a model is being made of what was labelled, or decided on.
        patience: So many samples of one drift people label. None: see :func:`most_labels`.
    """
    room = max(0, picked - waiting)
    most = most_labels(windows, patience)
    if not windows or most is None:
        return room if patience is None else min(room, patience)
    if waiting or busy:
        return 0
    return max(0, min(room, most - sum(one.picked for one in windows)))


def some_of(points: Sequence[Point], count: int) -> list[Point]:
    """Return so many picked points, of each purpose as large a part: the first ones to learn from, which are the most
    critical, and for evaluation any, so that they still stand for the whole window."""
    if count >= len(points):
        return list(points)
    drawn = [one for one in points if purpose_of(one) == "evaluate"]
    drawn.sort(key=lambda one: hashlib.sha256(str(one["id"]).encode()).digest())
    kept = drawn[: round(len(drawn) * count / len(points))]
    ids = {str(one["id"]) for one in kept}
    learnt = [one for one in points if purpose_of(one) == "train"][: count - len(kept)]
    ids |= {str(one["id"]) for one in learnt}
    return [one for one in points if str(one["id"]) in ids]
