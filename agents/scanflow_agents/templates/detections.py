"""What detections found, one after the other, as the checker notes it: which drift goes on, and what the traffic is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from scanflow.agent.context import Context
from scanflow.agent.records import ActionState
from scanflow.drift.slices import CLEAN
from scanflow.knowledge.records import TrackedRun
from scanflow_agents.templates import bookmarks
from scanflow_agents.templates.control_plane import control_plane_of
from scanflow_agents.templates.model_registry import RegisteredModel

TIMES = 2
"""So many times what is picked of its first window people label of one drift at most, unless they say otherwise."""

MODEL_URI, MODEL_VERSION = "scanflow.model_uri", "model_version"

REGIME = "regime/"
"""What the metrics' names begin with that are a window's shares of what is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastDetection:
    """One detection."""

    run: str
    at: float
    """When it was noted, in seconds since the epoch."""

    drifted: bool
    """Whether it was an alarm."""

    counts: bool
    """Whether it is one of those that confirm others."""

    same: bool
    """Whether it was the drift of windows before it."""

    picked: int
    """So many samples people were asked for."""

    predictions: int
    """So many were looked at."""

    model_uri: str
    """The address of the model in use; empty: it was not told."""

    model_version: int | None
    """The version that it stood for."""

    regimes: Mapping[str, float]
    """Where it did not drift: the share of each slice that is known."""

    @property
    def continues(self) -> bool:
        """Whether it was drift that people are not asked about again."""
        return self.drifted and self.same and not self.picked

    @classmethod
    def of(cls, note: TrackedRun) -> PastDetection:
        found = note.metrics
        return cls(
            run=note.tags.get(bookmarks.OF_RUN, ""),
            at=bookmarks.time_of(note),
            drifted=bool(found.get("drifted")),
            counts=bool(found.get("counts")),
            same=bool(found.get("same")),
            picked=int(found.get("picked", 0)),
            predictions=int(found.get("predictions", 0)),
            model_uri=note.tags.get(MODEL_URI, ""),
            model_version=int(found[MODEL_VERSION]) if MODEL_VERSION in found else None,
            regimes={name.removeprefix(REGIME): share for name, share in found.items() if name.startswith(REGIME)},
        )


def newest_detections(context: Context) -> list[PastDetection]:
    """Return what was looked at, the newest first."""
    return [PastDetection.of(one) for one in bookmarks.noted(context, "checked") if bookmarks.OF_RUN in one.tags]


def version_in_use(context: Context, model_uri: str) -> int | None:
    """Return the version that an alias stands for now; None: it is no alias, or stands for none."""
    name, _, alias = model_uri.removeprefix("models:/").partition("@")
    champion = RegisteredModel(name, alias).champion(context) if alias else None
    return None if champion is None else champion.version


def open_windows(context: Context, past: Sequence[PastDetection]) -> list[PastDetection]:
    """Return the windows with drift that the model in use does not know, the newest first.

    Where detections do not tell of which version, they are those since a service was given another model.
    """
    if past and past[0].model_uri:
        version = version_in_use(context, past[0].model_uri)
        return [one for one in past if one.drifted and version in {None, one.model_version}]
    done: tuple[ActionState, ...] = ("succeeded",)
    changed = control_plane_of(context).actions(
        context.app, team=context.team, primitive="upgrade_workflow", states=done
    )
    since = max((one.ended or 0.0 for one in changed if one.intent.arguments.get("model")), default=0.0)
    return [one for one in past if one.drifted and one.at > since]


def recent_traffic(past: Sequence[PastDetection], windows: Collection[str]) -> dict[str, float]:
    """Return the share of each known slice in what was predicted since the first of some windows with drift, 0 to 1;
    what is left is drift.

    Args:
        past: The newest first.
        windows: The detections that found the drift.
    """
    since = max((at for at, one in enumerate(past) if one.run in windows), default=-1)
    some = past[: since + 1]
    whole = sum(one.predictions for one in some)
    found: dict[str, float] = {}
    for one in some:
        for name, share in {} if one.drifted or not whole else (one.regimes or {CLEAN: 1.0}).items():
            found[name] = found.get(name, 0.0) + share * one.predictions / whole
    return found


def most_labels(windows: Sequence[PastDetection], patience: int | None) -> int | None:
    """Return how many samples of one drift people label at most; ``windows`` are those it was found in, the newest
    first. None: nobody knows what was picked of them."""
    first = next((one.picked for one in reversed(windows) if one.picked), None)
    return patience if patience is not None or first is None else TIMES * first
