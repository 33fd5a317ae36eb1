"""Recorded predictions on their way into the knowledge base, so that agents can count and check them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from scanflow.knowledge import open_knowledge
from scanflow.knowledge.records import TrackedRun

__all__ = ["KIND", "log_predictions"]

KIND = "predictions"
"""The tag ``scanflow.kind`` of a run that holds predictions, and of nothing else."""


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
) -> TrackedRun:
    """Keep one file of predictions as a run of the application's environment, and return it once it is safe there.

    Args:
        home: The home folder, which holds the embedded tracker.
        tracker_uri: Another tracker; None: the embedded one.
        app: The application's name.
        team: Its team.
        service: Which of its services made them.
        file: Arrays ``input:<name>``, ``output:<name>``, ``time`` and ``revision``, in NumPy's format ``.npz``.
        metrics: ``predictions``: how many; ``first`` and ``last``: when, in seconds since the epoch.
        tags: Further tags, such as the revisions that answered.

    Raises:
        UnavailableError: the tracker does not take it now.
    """
    told = {**tags, "scanflow.kind": KIND, "scanflow.service": service}
    knowledge = open_knowledge(Path(home), tracker_uri)
    return knowledge.log_run(app, team, name=f"{service} {file.stem}", metrics=metrics, tags=told, artifacts=file)
