"""What an application's agents did, from the server's events to the page. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scanflow.agent.records import Event
from scanflow.reports.loop_events import answers_of, drifted_columns, loop_events, request_counts, versions_of
from scanflow.reports.outcome import outcomes_of
from scanflow.reports.page import loop_report


def judged_models(told: Sequence[Event]) -> list[str]:
    """Return the models that were judged, the last one first."""
    subjects = dict.fromkeys(event.subject for event in reversed(told) if event.type == "model.judged")
    return [one.removeprefix("model/") for one in subjects]


def report_page(app: str, told: Sequence[Event], labels: Sequence[Mapping[str, Any]] = (), **known: Any) -> str:
    """Return the page. The version history is of the model that was judged last; where there are others, it says so.

    ``known`` are arguments of :func:`loop_report`, in place of what events and the label queue tell.
    """
    names = judged_models(told)
    others = f"The version history is of {names[0]}. Also judged: {', '.join(names[1:])}." if names[1:] else ""
    given = [one for one in labels if one.get("state") == "given"]
    found = [event for event in reversed(told) if event.type == "drift.found"]
    of_runs = ([one for one in labels if one.get("run") == event.data.get("run")] for event in found)
    read: dict[str, Any] = {
        "asked": request_counts(told),
        "answers": answers_of(told, given),
        "columns": next(filter(None, map(drifted_columns, found)), []),
        "picked": sorted(next(filter(None, of_runs), []), key=lambda one: -(one.get("score") or 0.0)),
        "outcomes": outcomes_of(told, given),
        "versions": versions_of(told, model=names[0] if names else None),
    }
    return loop_report(title=f"The loop of {app}", events=loop_events(told, app=app), lead=others, **read | known)
