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
    """Build the report page. Versions, accuracy and outcomes are of the most recently compared model; others are named.

    ``overrides`` replace arguments of :func:`~scanflow.reports.page.render_report` that come from events and the label
    queue.
    """
    names = list_compared_models(events)
    others = (
        f"Versions, accuracy and outcomes are of {names[0]}. Also compared: {', '.join(names[1:])}."
        if names[1:]
        else ""
    )
    own = [event for event in events if not names or _find_model(event) in {None, names[0]}]  # V2 of each is another
    labelled = [label for label in labels if label.get("state") == "given"]
    detections = [event for event in reversed(own) if event.type == "drift.found"]
    labels_by_detection = (
        [label for label in labels if label.get("run") == event.data.get("run")] for event in detections
    )
    read: dict[str, Any] = {
        "marked": select_loop_events(own, app=app),
        "asked": request_counts(events),
        "answers": count_answers(own, labelled),
        "columns": next(filter(None, map(list_drifted_columns, detections)), []),
        "picked": sorted(next(filter(None, labels_by_detection), []), key=lambda label: -(label.get("score") or 0.0)),
        "outcomes": collect_outcomes(own, labelled),
        "versions": collect_versions(own, model=names[0] if names else None),
    }
    return render_report(
        title=f"The loop of {app}", events=select_loop_events(events, app=app), lead=others, **read | overrides
    )


def _find_model(event: Event) -> str | None:
    """Return the model that an event is about; None: it is about none, or does not name it."""
    if event.subject.startswith("model/"):
        return event.subject.removeprefix("model/")
    return str(event.data["model"]) if event.type.startswith("drift.") and event.data.get("model") else None
