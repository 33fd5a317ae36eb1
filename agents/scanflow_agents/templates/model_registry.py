"""The model registry as planner and executor use it: the version in use, and what became of the others."""

from __future__ import annotations

from collections.abc import Mapping

from scanflow.agent.error_text import shortened
from scanflow.errors import NotFoundError
from scanflow.knowledge.port import KnowledgeBase
from scanflow.knowledge.records import ModelVersion

PROMOTION = "scanflow.promotion"
"""``promoted``, ``rejected: why`` or ``taken out of use``. The last two, and one that was promoted and is not the
champion any more, are not tried again unless a caller asks for them: ``asked for again``."""

PROMOTED = "promoted"
OUT_OF_USE = "taken out of use"
"""By another client than the executor, before it was promoted."""

AGAIN = "asked for again"
"""After what became of the action in the tag ``scanflow.action``."""

ACTION = "scanflow.action"
"""The action that led to it."""

BEFORE = "scanflow.before"
"""The version that was in use before."""

REFERENCE = "scanflow.reference"
"""What the version was trained on, for detectors to compare with: ``runs:/ID/labels.json``, or ``run/NAME``."""

_REJECTED = "rejected: "


def version_of(tracker: KnowledgeBase, model: str, version: int | str) -> ModelVersion | None:
    """Return the version of that number or alias; None: there is none, or it was deleted."""
    try:
        return tracker.get_model(model, version)
    except NotFoundError:
        return None


def champion_of(tracker: KnowledgeBase, model: str, alias: str) -> ModelVersion | None:
    """Return the version in use, if one has the alias."""
    return version_of(tracker, model, alias)


def address_of(model: str, version: int) -> str:
    """Return ``models:/name/3``."""
    return f"models:/{model}/{version}"


def rejected(tags: Mapping[str, str]) -> str | None:
    """Return why a version was rejected, if it was."""
    text = tags.get(PROMOTION, "")
    return text.removeprefix(_REJECTED) if text.startswith(_REJECTED) else None


def rejection(why: str) -> str:
    """Return the tag's value for a version that is not to be tried again."""
    return _REJECTED + shortened(" ".join(why.split()), 1000)
