"""The model registry as planner and executor use it: the version in use, and what became of the others."""

from __future__ import annotations

from collections.abc import Mapping

from scanflow.errors import NotFoundError
from scanflow.knowledge.port import KnowledgeBase
from scanflow.knowledge.records import ModelVersion

__all__ = ["ACTION", "BEFORE", "PROMOTION", "REFERENCE", "address_of", "champion_of", "rejected", "rejection"]

PROMOTION = "scanflow.promotion"
"""``promoted``, or ``rejected: why``: such a version is not tried again unless somebody asks for it."""

ACTION = "scanflow.action"
"""The action that led to it."""

BEFORE = "scanflow.before"
"""The version that was in use before."""

REFERENCE = "scanflow.reference"
"""What the version was trained on, for detectors to compare with: ``runs:/ID/labels.json``, or ``run/NAME``."""

_REJECTED = "rejected: "


def champion_of(tracker: KnowledgeBase, model: str, alias: str) -> ModelVersion | None:
    """Return the version in use, if one has the alias."""
    try:
        return tracker.get_model(model, alias)
    except NotFoundError:
        return None


def address_of(model: str, version: int) -> str:
    """Return ``models:/name/3``."""
    return f"models:/{model}/{version}"


def rejected(tags: Mapping[str, str]) -> str | None:
    """Return why a version was rejected, if it was."""
    text = tags.get(PROMOTION, "")
    return text.removeprefix(_REJECTED) if text.startswith(_REJECTED) else None


def rejection(why: str) -> str:
    """Return the tag's value for a version that is not to be tried again."""
    return _REJECTED + " ".join(why.split())[:1000]
