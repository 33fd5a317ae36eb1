"""Labelled points in the knowledge base: a JSON list in a file of a tracked run."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from scanflow.errors import InvalidError, NotFoundError
from scanflow.knowledge.knowledge_port import KnowledgeBase

LABELS_FILE = "labels.json"

OF_LABELS = "scanflow.labels"
"""The tag of a model version, or of a note on it, with the tracked run whose labels it was trained on."""


def read_json(tracker: KnowledgeBase, run_id: str, name: str) -> list[dict[str, Any]]:
    """Read a JSON list from a file of a tracked run."""
    with tempfile.TemporaryDirectory() as folder:
        file = tracker.fetch_run_artifacts(run_id, Path(folder) / "files", path=name) / Path(name).name
        if not file.is_file():
            raise NotFoundError(f"The tracked run {run_id!r} has no file {name!r}.")
        try:
            points = json.loads(file.read_bytes())
        except ValueError as error:
            raise InvalidError(f"The file {name!r} of the tracked run {run_id!r} is not JSON: {error}.") from error
    if not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
        raise InvalidError(f"The file {name!r} of the tracked run {run_id!r} does not hold a list of points.")
    return points
