"""The model registry for planner, executor and checker: the version in use, and the tags of versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scanflow.agent.context import Context
from scanflow.errors import NotFoundError
from scanflow.knowledge.knowledge_records import ModelVersion
from scanflow_agents.templates.template_client import tracker_of


@dataclass(frozen=True)
class RegisteredModel:
    """A registered model and the alias of its version in use."""

    name: str
    alias: str

    def find_version(self, context: Context, version: int | str) -> ModelVersion | None:
        """Return the version with a number or alias; None: there is none, or it was deleted."""
        try:
            return tracker_of(context).get_model(self.name, version)
        except NotFoundError:
            return None

    def find_champion(self, context: Context) -> ModelVersion | None:
        return self.find_version(context, self.alias)

    def tag(self, context: Context, version: int, tags: Mapping[str, str]) -> ModelVersion:
        return tracker_of(context).set_model_tags(self.name, version, tags)

    def set_champion(self, context: Context, version: int) -> None:
        tracker_of(context).set_model_alias(self.name, self.alias, version)


def format_model_uri(model: str, version: int) -> str:
    return f"models:/{model}/{version}"
