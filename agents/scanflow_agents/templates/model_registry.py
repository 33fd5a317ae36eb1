"""The model registry as planner, executor and checker use it: the version in use, and what became of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scanflow.agent.context import Context
from scanflow.agent.error_text import shortened
from scanflow.errors import NotFoundError
from scanflow.knowledge.records import ModelVersion
from scanflow_agents.templates.control_plane import tracker_of

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


@dataclass(frozen=True)
class RegisteredModel:
    """A model and the alias of its version in use."""

    name: str
    alias: str

    def version(self, context: Context, version: int | str) -> ModelVersion | None:
        """Return the version of that number or alias; None: there is none, or it was deleted."""
        try:
            return tracker_of(context).get_model(self.name, version)
        except NotFoundError:
            return None

    def champion(self, context: Context) -> ModelVersion | None:
        return self.version(context, self.alias)

    def tag(self, context: Context, version: int, tags: Mapping[str, str]) -> ModelVersion:
        return tracker_of(context).set_model_tags(self.name, version, tags)

    def name_champion(self, context: Context, version: int) -> None:
        tracker_of(context).set_model_alias(self.name, self.alias, version)


def address_of(model: str, version: int) -> str:
    return f"models:/{model}/{version}"


def rejected(tags: Mapping[str, str]) -> str | None:
    """Return why a version was rejected, if it was."""
    text = tags.get(PROMOTION, "")
    return text.removeprefix(_REJECTED) if text.startswith(_REJECTED) else None


def rejection(why: str) -> str:
    """Return the tag's value for a version that is not to be tried again."""
    return _REJECTED + shortened(" ".join(why.split()), 1000)
