"""Labels the samples that the agents selected: here with the true labels; elsewhere people do, by `scanflow labels`."""

from __future__ import annotations

from typing import Any

import archive

from scanflow.agent import Context
from scanflow.drift.prediction_data import samples_of
from scanflow_agents.templates.template_client import tracker_of


def ground_truth(items: list[dict[str, Any]], context: Context) -> dict[str, int]:
    tracker = tracker_of(context)
    known = archive.truth(tracker, context.app, context.team)
    pictures = samples_of(tracker, items)
    labels = {item["id"]: known.get(archive.digest_of(picture)) for item, picture in zip(items, pictures, strict=True)}
    return {id: label for id, label in labels.items() if label is not None}
