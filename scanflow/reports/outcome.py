"""What became of each drift: found, labelled, learnt from, promoted or not, and whether it was seen again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scanflow.agent.records import Event
from scanflow.drift.promotion import sentence
from scanflow.reports.loop_events import drifted_columns, verdict_text


@dataclass(slots=True)
class DriftOutcome:
    """A drift and what followed on it, until another was found after a model had learnt from this one."""

    at: float
    verdict: str = "Nothing was labelled yet."
    steps: list[tuple[float, str, str, str]] = field(default_factory=list)
    """When, what followed, with which figures, and the run that it was found out in."""

    columns: frozenset[str] = frozenset()
    promoted: str = ""
    looks: int = 0


def outcomes_of(events: Iterable[Event], labels: Sequence[Mapping[str, Any]] = ()) -> list[DriftOutcome]:
    """Return what became of each drift; without the queue's given labels, what labellers told of is counted."""
    found: list[DriftOutcome] = []
    for event in events:
        run = str(event.data.get("run") or "")
        if event.type == "drift.found":
            _found(found, event, run)
            if mine := [one for one in labels if one.get("run") == run]:
                _labelled(found[-1], mine, event.at)
        elif found and not (event.type == "labels.given" and labels):
            _followed(found[-1], event, run)
    for one in found:
        one.steps.sort(key=lambda step: step[0])
    return found


def _followed(last: DriftOutcome, event: Event, run: str) -> None:
    data, version = event.data, f"V{event.data.get('version')}"
    match event.type:
        case "labels.given":
            last.steps.append((event.at, "labelled", f"{data.get('count')} points, by {data.get('by')}", ""))
            last.verdict = "It was labelled; no model has learnt from it yet."
        case "drift.suspected":
            last.steps.append((event.at, "suspected again", f"{detection_text(event)}: {data.get('why')}", run))
        case "drift.continues":
            last.steps.append((event.at, "goes on", f"{detection_text(event)}; nobody is asked again", run))
        case "drift.none":
            _gone(last, event, run)
        case "model.judged":
            _judged(last, data, event.at, run)
        case "model.promoted":
            last.promoted = version
            last.steps.append((event.at, "promoted", f"{version} is the champion", ""))
            last.verdict = f"{version} learnt from it and was promoted; no look has confirmed yet what became of it."
        case "model.rejected":
            last.promoted = ""
            last.steps.append((event.at, "taken back", f"{version}: {data.get('why')}", ""))
            last.verdict = f"{version} was taken back: {data.get('why')}."
        case _:
            pass


def detection_text(event: Event) -> str:
    """Return a detection's figures: outliers, the test's p-value, and the columns that drifted most."""
    columns = drifted_columns(event)
    worst = ", ".join(f"{one['name']}{_figure(one.get('effect'), ' (effect {:.2f})')}" for one in columns[:3])
    rest = f" and {len(columns) - 3} more" if len(columns) > 3 else ""
    outliers = _figure(event.data.get("anomalies"), "{:,}") + _figure(event.data.get("predictions"), " of {:,}")
    parts = (
        f"{outliers} predictions are outliers" if outliers else "",
        _figure(event.data.get("p_value"), "p {:.3g}"),
        f"columns: {worst}{rest}" if worst else "",
    )
    return "; ".join(filter(None, parts)) or "no figures were told"


def judged(data: Mapping[str, Any]) -> str:
    """Return what was decided of a challenger: in a sentence, with figures, as far as they were told."""
    evidence = data.get("evidence")
    said = sentence(evidence) if isinstance(evidence, Mapping) else ""
    if said:
        return said
    old, new = (_figure(data.get(name), "{:.1%}") for name in ("champion_metric", "challenger_metric"))
    both = f"V{data.get('version')} {new}, the champion {old} on the same samples, how many was not told"
    return f"{both}: {verdict_text(data)}"


def _found(found: list[DriftOutcome], event: Event, run: str) -> None:
    columns = frozenset(str(one["name"]) for one in drifted_columns(event))
    if found and found[-1].promoted:
        last = found[-1]
        same = ", ".join(sorted(columns & last.columns))
        more = f", in {same} as before" if same else ", in other columns" if columns and last.columns else ""
        last.verdict = f"{last.promoted} learnt from it and was promoted, and drift was found again{more}."
        last.steps.append((event.at, "found again", detection_text(event), run))
    if not found or found[-1].promoted:
        found.append(DriftOutcome(event.at, columns=columns))
    found[-1].steps.append((event.at, "found", detection_text(event), run))


def _gone(last: DriftOutcome, event: Event, run: str) -> None:
    last.looks += 1
    of = _figure(event.data.get("predictions"), " in {:,} predictions")
    last.steps = [one for one in last.steps if one[1] != "checked again"]
    times = f"{last.looks} times, the last time " if last.looks > 1 else ""
    last.steps.append((event.at, "checked again", f"{times}no drift{of}", run))
    how = f"{last.promoted} learnt from it, was promoted, and" if last.promoted else "no model was promoted, and"
    last.verdict = f"It is gone: {how} no drift was found since{of}."


def _labelled(last: DriftOutcome, labels: Sequence[Mapping[str, Any]], at: float) -> None:
    by = ", ".join(sorted({str(one.get("by") or "somebody") for one in labels}))
    evaluation = sum(one.get("purpose") == "evaluate" for one in labels)
    given = max((float(one["given"]) for one in labels if one.get("given")), default=at)
    figures = f"{len(labels):,} points, {evaluation:,} of them for evaluation, by {by}"
    last.steps.append((given, "labelled", figures, ""))
    last.verdict = "It was labelled; no model has learnt from it yet."


def _judged(last: DriftOutcome, data: Mapping[str, Any], at: float, run: str) -> None:
    said, evidence = judged(data), data.get("evidence")
    verdict = evidence.get("verdict") if isinstance(evidence, Mapping) else None
    last.steps.append((at, "retrained", said, run))
    version = f"V{data.get('version')}"
    if verdict == "wait" and isinstance(evidence, Mapping):
        last.verdict = f"{version} learnt from it and waits: {evidence.get('reason')}."
    elif verdict == "ask" and isinstance(evidence, Mapping):
        last.verdict = f"{version} learnt from it and is better, and a person decides: {evidence.get('reason')}."
    elif verdict == "promote" or (verdict is None and data.get("better")):
        last.verdict = f"{version} learnt from it and is better; it was not promoted yet."
    else:
        reason = evidence.get("reason") if isinstance(evidence, Mapping) else "it is not better"
        last.verdict = f"{version} learnt from it and was rejected: {reason}."


def _figure(value: Any, form: str) -> str:
    return form.format(value) if isinstance(value, int | float) else ""
