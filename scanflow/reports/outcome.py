"""The outcome of each drift: detected, labelled, trained on, promoted or not, and detected again or not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scanflow.agent.agent_records import Event
from scanflow.drift.promotion import format_decision
from scanflow.reports.loop_events import find_sample_count, format_verdict, list_drifted_columns


@dataclass(slots=True)
class DriftOutcome:
    """A drift and its outcome, until the next drift is found after a model was trained on this one."""

    at: float
    verdict: str = "No sample is labelled yet."
    steps: list[tuple[float, str, str, str]] = field(default_factory=list)
    """Time, step, details, and the run that it comes from."""

    columns: frozenset[str] = frozenset()
    promoted: str = ""
    looks: int = 0


def collect_outcomes(events: Iterable[Event], labels: Sequence[Mapping[str, Any]] = ()) -> list[DriftOutcome]:
    """Return the outcome of each drift; without the queue's labels, those in ``labels.given`` events are counted."""
    outcomes: list[DriftOutcome] = []
    for event in events:
        run = str(event.data.get("run") or "")
        if event.type == "drift.found":
            _add_detection(outcomes, event, run)
            if points := [label for label in labels if label.get("run") == run]:
                _add_labels(outcomes[-1], points, event.at)
        elif outcomes and not (event.type == "labels.given" and labels):
            _add_event(outcomes[-1], event, run)
    for outcome in outcomes:
        outcome.steps.sort(key=lambda step: step[0])
    return outcomes


def _add_event(last: DriftOutcome, event: Event, run: str) -> None:
    data, version = event.data, f"V{event.data.get('version')}"
    match event.type:
        case "labels.given":
            last.steps.append((event.at, "labelled", f"{data.get('count')} points, by {data.get('by')}", ""))
            last.verdict = "Its samples are labelled; no model was trained on them yet."
        case "drift.suspected":
            last.steps.append((event.at, "suspected again", f"{format_detection(event)}: {data.get('why')}", run))
        case "drift.continues":
            last.steps.append(
                (event.at, "continues", f"{format_detection(event)}; labels are not requested again", run)
            )
        case "drift.none":
            _add_no_drift(last, event, run)
        case "model.judged":
            _add_comparison(last, data, event.at, run)
        case "model.promoted":
            last.promoted = version
            last.steps.append((event.at, "promoted", f"{version} is the champion", ""))
            last.verdict = f"{version} was trained on it and promoted; no detection has checked the result yet."
        case "model.rejected":
            word = "reverted" if last.promoted == version else "rejected"
            last.promoted = ""
            last.steps.append((event.at, word, f"{version}: {data.get('why')}", ""))
            last.verdict = f"{version} was {word}: {data.get('why')}."
        case _:
            pass


def format_detection(event: Event) -> str:
    """Format a detection's figures: outliers, the test's p-value, and the columns that drifted most."""
    columns = list_drifted_columns(event)
    worst = ", ".join(
        f"{column['name']}{_format_figure(column.get('effect'), ' (effect {:.2f})')}" for column in columns[:3]
    )
    rest = f" and {len(columns) - 3} more" if len(columns) > 3 else ""
    outliers = _format_figure(event.data.get("anomalies"), "{:,}") + _format_figure(
        find_sample_count(event), " of {:,}"
    )
    parts = (
        f"{outliers} samples are outliers" if outliers else "",
        _format_figure(event.data.get("p_value"), "p {:.3g}"),
        f"columns: {worst}{rest}" if worst else "",
    )
    return "; ".join(filter(None, parts)) or "no figures were reported"


def format_comparison(data: Mapping[str, Any]) -> str:
    """Format the decision on a challenger in a sentence, with the figures that are known."""
    evidence = data.get("evidence")
    decision = format_decision(evidence) if isinstance(evidence, Mapping) else ""
    if decision:
        return decision
    old, new = (_format_figure(data.get(name), "{:.1%}") for name in ("champion_metric", "challenger_metric"))
    both = f"V{data.get('version')} {new}, the champion {old} on the same samples, number unknown"
    return f"{both}: {format_verdict(data)}"


def _add_detection(outcomes: list[DriftOutcome], event: Event, run: str) -> None:
    columns = frozenset(str(column["name"]) for column in list_drifted_columns(event))
    if outcomes and outcomes[-1].promoted:
        last = outcomes[-1]
        same = ", ".join(sorted(columns & last.columns))
        more = f", in {same} as before" if same else ", in other columns" if columns and last.columns else ""
        last.verdict = f"{last.promoted} was trained on it and promoted, but drift was found again{more}."
        last.steps.append((event.at, "found again", format_detection(event), run))
    if not outcomes or outcomes[-1].promoted:
        outcomes.append(DriftOutcome(event.at, columns=columns))
    outcomes[-1].steps.append((event.at, "found", format_detection(event), run))


def _add_no_drift(last: DriftOutcome, event: Event, run: str) -> None:
    last.looks += 1
    suffix = _format_figure(event.data.get("predictions"), " in {:,} predictions")
    last.steps = [step for step in last.steps if step[1] != "checked again"]
    times = f"{last.looks} times, the last time " if last.looks > 1 else ""
    last.steps.append((event.at, "checked again", f"{times}no drift{suffix}", run))
    how = f"{last.promoted} was trained on it and promoted, and" if last.promoted else "no model was promoted, and"
    last.verdict = f"The drift is gone: {how} no drift was found since{suffix}."


def _add_labels(last: DriftOutcome, labels: Sequence[Mapping[str, Any]], at: float) -> None:
    authors = ", ".join(sorted({str(label.get("by") or "somebody") for label in labels}))
    evaluation = sum(label.get("purpose") == "evaluate" for label in labels)
    labelled_at = max((float(label["given"]) for label in labels if label.get("given")), default=at)
    figures = f"{len(labels):,} points, {evaluation:,} of them for evaluation, by {authors}"
    last.steps.append((labelled_at, "labelled", figures, ""))
    last.verdict = "Its samples are labelled; no model was trained on them yet."


def _add_comparison(last: DriftOutcome, data: Mapping[str, Any], at: float, run: str) -> None:
    decision, evidence = format_comparison(data), data.get("evidence")
    verdict = evidence.get("verdict") if isinstance(evidence, Mapping) else None
    last.steps.append((at, "retrained", decision, run))
    version = f"V{data.get('version')}"
    if verdict == "wait" and isinstance(evidence, Mapping):
        last.verdict = f"{version} was trained on it and waits: {evidence.get('reason')}."
    elif verdict == "ask" and isinstance(evidence, Mapping):
        last.verdict = (
            f"{version} was trained on it and is better; it waits for a person's approval: {evidence.get('reason')}."
        )
    elif verdict == "promote" or (verdict is None and data.get("better")):
        last.verdict = f"{version} was trained on it and is better; it is not promoted yet."
    else:
        reason = evidence.get("reason") if isinstance(evidence, Mapping) else "it is not better"
        last.verdict = f"{version} was trained on it and was rejected: {reason}."


def _format_figure(value: Any, form: str) -> str:
    return form.format(value) if isinstance(value, int | float) else ""
