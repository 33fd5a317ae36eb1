"""The history of detections from the checker's notes: which drift continues, and the composition of the traffic."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scanflow.agent.agent_records import ActionState
from scanflow.agent.context import Context
from scanflow.drift.slices import CLEAN
from scanflow.knowledge.knowledge_records import TrackedRun
from scanflow_agents.templates import bookmarks
from scanflow_agents.templates.model_registry import RegisteredModel
from scanflow_agents.templates.template_client import list_actions

TIMES = 2
"""The default limit of labels for one drift, as a multiple of the points selected from its first window."""

MODEL_URI, MODEL_VERSION = "scanflow.model_uri", "model_version"

REGIME = "regime/"
"""The prefix of metrics with a window's shares of known slices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastDetection:
    """One detection."""

    run: str
    at: float
    """The time of its note, in seconds since the epoch."""

    drifted: bool
    """Whether it was an alarm."""

    counts: bool
    """Whether it confirms others."""

    same: bool
    """Whether it was the drift of earlier windows."""

    picked: int
    """The number of samples for which labels were requested."""

    predictions: int
    """The number of predictions checked."""

    model_uri: str
    """The address of the model in use; empty: unknown."""

    model_version: int | None
    """The version that the address referred to."""

    regimes: Mapping[str, float]
    """Without drift: the share of each known slice."""

    @property
    def continues(self) -> bool:
        """Whether it was drift for which labels were requested before."""
        return self.drifted and self.same and not self.picked

    @classmethod
    def from_note(cls, note: TrackedRun) -> PastDetection:
        metrics = note.metrics
        return cls(
            run=note.tags.get(bookmarks.RUN_FIELD, ""),
            at=bookmarks.get_end_time(note),
            drifted=bool(metrics.get("drifted")),
            counts=bool(metrics.get("counts")),
            same=bool(metrics.get("same")),
            picked=int(metrics.get("picked", 0)),
            predictions=int(metrics.get("predictions", 0)),
            model_uri=note.tags.get(MODEL_URI, ""),
            model_version=int(metrics[MODEL_VERSION]) if MODEL_VERSION in metrics else None,
            regimes={name.removeprefix(REGIME): share for name, share in metrics.items() if name.startswith(REGIME)},
        )


def list_detections(context: Context) -> list[PastDetection]:
    """Return the past detections, the newest first."""
    return [
        PastDetection.from_note(note)
        for note in bookmarks.list_notes(context, "checked")
        if bookmarks.RUN_FIELD in note.tags
    ]


def select_version_points(
    context: Context, points: Sequence[Mapping[str, Any]], version: int
) -> list[Mapping[str, Any]]:
    """Return the labelled points with a guess of this version of the model, or of one that is not known.

    People may label samples long after another version came into use.
    """
    versions = {detection.run: detection.model_version for detection in list_detections(context)} if points else {}
    return [point for point in points if versions.get(str(point.get("run"))) in {None, version}]


def find_version_in_use(context: Context, model_uri: str) -> int | None:
    """Return the version that an alias refers to; None: it is no alias, or refers to none."""
    name, _, alias = model_uri.removeprefix("models:/").partition("@")
    champion = RegisteredModel(name, alias).find_champion(context) if alias else None
    return None if champion is None else champion.version


def list_open_windows(context: Context, past: Sequence[PastDetection]) -> list[PastDetection]:
    """Return the windows with drift that the model in use was not trained on, the newest first.

    Where detections have no version, these are the windows since the last change of a service's model.
    """
    if past and past[0].model_uri:
        version = find_version_in_use(context, past[0].model_uri)
        return [detection for detection in past if detection.drifted and version in {None, detection.model_version}]
    done: tuple[ActionState, ...] = ("succeeded",)
    changed = list_actions(context, primitive="upgrade_workflow", states=done)
    since = max((action.ended or 0.0 for action in changed if action.intent.arguments.get("model")), default=0.0)
    return [detection for detection in past if detection.drifted and detection.at > since]


def compute_recent_traffic(past: Sequence[PastDetection], windows: Collection[str]) -> dict[str, float]:
    """Return the share of each known slice in the predictions since the first of some windows with drift, 0 to 1; the
    rest is drift.

    Args:
        past: The newest first.
        windows: The detections that found the drift.
    """
    since = max((at for at, detection in enumerate(past) if detection.run in windows), default=-1)
    recent = past[: since + 1]
    whole = sum(detection.predictions for detection in recent)
    shares: dict[str, float] = {}
    for detection in recent:
        for name, share in {} if detection.drifted or not whole else (detection.regimes or {CLEAN: 1.0}).items():
            shares[name] = shares.get(name, 0.0) + share * detection.predictions / whole
    return shares


def compute_most_labels(windows: Sequence[PastDetection], patience: int | None) -> int | None:
    """Return the most samples of one drift that people label; ``windows`` are those with the drift, the newest first.
    None: the number selected from them is unknown."""
    first = next((window.picked for window in reversed(windows) if window.picked), None)
    return patience if patience is not None or first is None else TIMES * first
