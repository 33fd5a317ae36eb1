"""This tutorial's data in the tracker: pictures to send, and their true labels."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from scanflow.drift.prediction_data import arrays_of
from scanflow.errors import NotFoundError
from scanflow.knowledge import KnowledgeBase

__all__ = ["TRUTH", "digest_of", "keep_truth", "pictures", "truth"]

TRUTH = "truth"


def pictures(tracker: KnowledgeBase, app: str, team: str) -> dict[str, Any]:
    """Return the arrays that the newest training saved: see ``in_use`` in ``steps/digits.py``."""
    found = tracker.search_runs(app, team, "tags.`scanflow.kind` = 'dataset'", limit=1)
    if not found:
        raise NotFoundError(f"No training run of {app}/{team} exists yet. Train first: scanflow run app.py")
    return arrays_of(tracker, found[0].run_id)


def keep_truth(tracker: KnowledgeBase, app: str, team: str, x: Any, y: Any) -> None:
    """Save the labels (n,) of pictures (n, 28, 28) before they are sent."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "truth.npz"
        np.savez(file, digest=np.array([digest_of(one) for one in x]), y=np.asarray(y))
        tracker.log_run(app, team, name=TRUTH, tags={"scanflow.kind": TRUTH}, artifacts=file)


def truth(tracker: KnowledgeBase, app: str, team: str) -> dict[str, int]:
    known: dict[str, int] = {}
    for run in tracker.search_runs(app, team, f"tags.`scanflow.kind` = '{TRUTH}'"):
        kept = arrays_of(tracker, run.run_id)
        known |= dict(zip(kept["digest"].tolist(), kept["y"].tolist(), strict=True))
    return known


def digest_of(picture: Any) -> str:
    """Return a key that identifies a picture, independent of its number type."""
    return hashlib.sha256(np.asarray(picture).astype(np.uint8).tobytes()).hexdigest()[:32]
