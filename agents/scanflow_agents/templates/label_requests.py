"""Decide how many labels to request for a drift: once for each drift, and no more than needed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from scanflow.agent.context import Context
from scanflow.drift.contract import DetectionOutputs, read_purpose
from scanflow_agents.templates import bookmarks
from scanflow_agents.templates.challengers import is_being_decided
from scanflow_agents.templates.detections import PastDetection, compute_most_labels, list_open_windows
from scanflow_agents.templates.template_client import list_labels

Point = TypeVar("Point", bound=Mapping[str, object])


@dataclass(frozen=True, kw_only=True)
class LabelRequests:
    """Decides when labels are requested for a drift that was found before."""

    patience: int | None
    distinguishes: bool
    """Whether detections distinguish a new drift from a known one."""

    training_workflow: str | None
    training_interval_s: float
    least: int
    """The number of new labels that starts a training."""

    seen: dict[str, frozenset[str]] = field(default_factory=dict)

    def list_windows(
        self, context: Context, detection: DetectionOutputs, past: Sequence[PastDetection]
    ) -> list[PastDetection]:
        """Return the earlier windows with the same drift as a detection."""
        return list_open_windows(context, past) if detection.same_drift or not self.distinguishes else []

    def is_busy(self, context: Context) -> bool:
        """Return whether a model is being trained on the labels, or is about to be, or awaits a decision."""
        if self.training_workflow is None:
            return False
        interval_s = self.training_interval_s
        if bookmarks.find_unfinished_run(context, self.training_workflow, "learnt", interval_s=interval_s) is not None:
            return True
        if is_being_decided(context):
            return True
        labels = list_labels(context, "given")
        learnt = bookmarks.read_learnt_ids(context, self.seen) if labels else set()
        return sum(read_purpose(label) == "train" and label["id"] not in learnt for label in labels) >= self.least


def count_labels_to_request(
    picked: int, windows: Sequence[PastDetection], *, waiting: int, busy: bool, patience: int | None
) -> int:
    """Return the number of labels to request for a window.

    Args:
        picked: The number of points selected from the window.
        windows: The earlier windows with the same drift, the newest first; none: it is a new drift.
        waiting: The number of samples that wait for a label, of any drift; no more wait than one window has.
        busy: Whether a model is being trained on the labels, or decided on.
        patience: The most samples of one drift to label. None: see :func:`compute_most_labels`.
    """
    room = max(0, picked - waiting)
    most = compute_most_labels(windows, patience)
    if not windows or most is None:
        return room if patience is None else min(room, patience)
    if waiting or busy:
        return 0
    return max(0, min(room, most - sum(window.picked for window in windows)))


def select_points(points: Sequence[Point], count: int) -> list[Point]:
    """Return ``count`` of the points, in proportion to their purposes: the first ones for training, which are the most
    critical, and random ones for evaluation, so that they represent the whole window."""
    if count >= len(points):
        return list(points)
    evaluation_points = [point for point in points if read_purpose(point) == "evaluate"]
    evaluation_points.sort(key=lambda point: hashlib.sha256(str(point["id"]).encode()).digest())
    selected = evaluation_points[: round(len(evaluation_points) * count / len(points))]
    ids = {str(point["id"]) for point in selected}
    learnt = [point for point in points if read_purpose(point) == "train"][: count - len(selected)]
    ids |= {str(point["id"]) for point in learnt}
    return [point for point in points if str(point["id"]) in ids]
