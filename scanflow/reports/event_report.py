"""Builds the report of an application's agents from the server's events. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scanflow.agent.agent_records import Event
from scanflow.reports.loop_events import (
    collect_versions,
    count_answers,
    list_drifted_columns,
    request_counts,
    select_loop_events,
)
from scanflow.reports.outcome import collect_outcomes
from scanflow.reports.page import render_report


def list_compared_models(events: Sequence[Event]) -> list[str]:
    """Return the models with comparisons, the most recent first."""
    subjects = dict.fromkeys(event.subject for event in reversed(events) if event.type == "model.judged")
    return [subject.removeprefix("model/") for subject in subjects]


def report_page(app: str, events: Sequence[Event], labels: Sequence[Mapping[str, Any]] = (), **overrides: Any) -> str:
    """Build the report page. The version history is of the most recently compared model; others are named.

    ``overrides`` replace arguments of :func:`~scanflow.reports.page.render_report` that come from events and the label
    queue.
    """
    names = list_compared_models(events)
    others = f"The version history is of {names[0]}. Also compared: {', '.join(names[1:])}." if names[1:] else ""
    labelled = [label for label in labels if label.get("state") == "given"]
    detections = [event for event in reversed(events) if event.type == "drift.found"]
    labels_by_detection = (
        [label for label in labels if label.get("run") == event.data.get("run")] for event in detections
    )
    read: dict[str, Any] = {
        "asked": request_counts(events),
        "answers": count_answers(events, labelled),
        "columns": next(filter(None, map(list_drifted_columns, detections)), []),
        "picked": sorted(next(filter(None, labels_by_detection), []), key=lambda label: -(label.get("score") or 0.0)),
        "outcomes": collect_outcomes(events, labelled),
        "versions": collect_versions(events, model=names[0] if names else None),
    }
    return render_report(
        title=f"The loop of {app}", events=select_loop_events(events, app=app), lead=others, **read | overrides
    )
