"""The registered models that a team may see, as MLflow had them when they were read last."""

from __future__ import annotations

from typing import Final

from scanflow.knowledge.knowledge_records import ModelVersion
from scanflow_server.background_reads import Reading
from scanflow_server.server_context import ServerContext
from scanflow_server.tuning_runs import open_tracker

_MAX_MODELS: Final = 500


def read_models(
    context: ServerContext, team: str | None, *, newest: int, is_opened: bool
) -> tuple[Reading, dict[str, list[ModelVersion]]]:
    """Return how the versions of each model of a team (None: of all) were read last, and these.

    Args:
        newest: The number of the newest event about models: if it is another than at that time, they are read again.
        is_opened: Whether somebody has just opened the page that shows them.
    """

    def read() -> tuple[int, dict[str, list[ModelVersion]]]:
        return newest, open_tracker(context).for_team(team).list_versions_by_model(_MAX_MODELS)

    reads, key = context.background_reads, ("models", team)
    reading = reads.get(key, read, is_opened=is_opened)
    if reading.value is not None and reading.value[0] != newest and not reading.is_loading:
        reads.forget(key)
        reading = reads.get(key, read)
    return reading, {} if reading.value is None else reading.value[1]
