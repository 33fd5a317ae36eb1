"""Who labels what the agents picked: here the truth, which the traffic left; elsewhere people, by `scanflow labels`."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import archive

from scanflow.agent import Context
from scanflow_agents.templates.control_plane import tracker_of
from scanflow_agents.templates.prediction_data import arrays_of


def ground_truth(items: list[dict[str, Any]], context: Context) -> dict[str, int]:
    tracker = tracker_of(context)
    known = archive.truth(tracker, context.app, context.team)
    by_file: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for item in items:
        by_file[item["data"]["tracked"], item["data"]["file"]].append(item)
    labels: dict[str, int] = {}
    for (tracked, name), some in by_file.items():
        pictures = arrays_of(tracker, tracked, name=name)["x"]
        for item in some:
            label = known.get(archive.digest_of(pictures[item["data"]["at"]]))
            if label is not None:
                labels[item["id"]] = label
    return labels
