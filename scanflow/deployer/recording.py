"""Logs recorded predictions to the knowledge base: a service's recorder calls it for each file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from scanflow.knowledge import KnowledgeBase, open_knowledge


def log_predictions(
    *,
    home: str,
    tracker_uri: str | None,
    app: str,
    team: str,
    service: str,
    file: Path,
    metrics: Mapping[str, float],
    tags: Mapping[str, str],
) -> str:
    """Log a file of predictions as a run of the application's environment, and return the run's id.

    Raises:
        UnavailableError: the tracker does not answer.
    """
    own = {"scanflow.kind": "predictions", "scanflow.service": service}
    run = _open_knowledge(home, tracker_uri).log_run(
        app, team, name=f"predictions-{service}", metrics=metrics, tags={**tags, **own}, artifacts=file
    )
    return str(run.run_id)


@cache
def _open_knowledge(home: str, tracker_uri: str | None) -> KnowledgeBase:
    return open_knowledge(Path(home), tracker_uri, served=True)
