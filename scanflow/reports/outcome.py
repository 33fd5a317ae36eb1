"""What became of each drift: found, labelled, learnt from, promoted or not, and whether it was seen again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scanflow.agent.records import Event
from scanflow.drift.promotion import sentence
from scanflow.reports.loop_events import drifted_columns


@dataclass(frozen=True, slots=True)
class DriftStep:
    """Something that followed on a drift, with its figures and the run that it was found out in."""

    at: float
    what: str
    figures: str
    run: str = ""


@dataclass(slots=True)
class DriftOutcome:
    """A drift and what followed on it, until another was found after a model had learnt from this one."""

    at: float
    verdict: str = "Nothing was labelled yet."
    steps: list[DriftStep] = field(default_factory=list)
    columns: frozenset[str] = frozenset()
    promoted: str = ""
    looks: int = 0


def outcomes_of(events: Iterable[Event], labels: Sequence[Mapping[str, Any]] = ()) -> list[DriftOutcome]:
    """Return what became of each drift.

    Args:
        events: in the order told.
        labels: what was given of the label queue; without it, what labellers told of is counted.
    """
    found: list[DriftOutcome] = []
    for event in events:
        data, run = event.data, str(event.data.get("run") or "")
        if event.type == "drift.found":
            _found(found, event, run)
            if mine := [one for one in labels if one.get("run") == run]:
                _labelled(found[-1], mine, event.at)
        elif not found:
            continue
        elif event.type == "labels.given" and not labels:
            _add(found[-1], event.at, "labelled", f"{_number(data.get('count')):,} by {data.get('by')}")
            found[-1].verdict = "It was labelled; no model has learnt from it yet."
        elif event.type == "drift.none":
            _gone(found[-1], event, run)
        elif event.type == "model.judged":
            _judged(found[-1], data, event.at, run)
        elif event.type == "model.promoted":
            found[-1].promoted = f"V{data.get('version')}"
            _add(found[-1], event.at, "promoted", f"{found[-1].promoted} is the champion")
            found[-1].verdict = f"{found[-1].promoted} learnt from it and was promoted; data was not checked since."
        elif event.type == "model.rejected":
            found[-1].promoted = ""
            _add(found[-1], event.at, "taken back", f"V{data.get('version')}: {data.get('why')}")
            found[-1].verdict = f"V{data.get('version')} was taken back: {data.get('why')}."
    for one in found:
        one.steps.sort(key=lambda step: step.at)
    return found


def detection_text(event: Event) -> str:
    """Return a detection's figures: outliers, the test's p-value, and the columns that drifted most."""
    data = event.data
    looked, outliers, p = data.get("predictions"), data.get("anomalies"), data.get("p_value")
    parts = [] if outliers is None else [f"{_number(outliers):,}{_of(looked)} predictions are outliers"]
    parts += [f"p {p:.3g}"] if isinstance(p, int | float) else []
    columns = drifted_columns(event)
    worst = ", ".join(f"{one['name']}{_effect(one)}" for one in columns[:3])
    rest = f" and {len(columns) - 3} more" if len(columns) > 3 else ""
    parts += [f"columns: {worst}{rest}"] if worst else []
    return "; ".join(parts) or "no figures were told"


def judged(data: Mapping[str, Any]) -> str:
    """Return what was decided of a challenger: in a sentence, with figures, as far as they were told."""
    evidence = data.get("evidence")
    said = sentence(evidence) if isinstance(evidence, Mapping) else ""
    if said:
        return said
    old, new = (_share(data.get(name)) for name in ("champion_metric", "challenger_metric"))
    verdict = "better" if data.get("better") else "not better"
    return f"V{data.get('version')} {new}, the champion {old} on the same samples, how many was not told: {verdict}"


def _found(found: list[DriftOutcome], event: Event, run: str) -> None:
    columns = frozenset(str(one["name"]) for one in drifted_columns(event))
    if found and found[-1].promoted:
        last = found[-1]
        same = ", ".join(sorted(columns & last.columns))
        more = f", in {same} as before" if same else ", in other columns" if columns and last.columns else ""
        last.verdict = f"{last.promoted} learnt from it and was promoted, and drift was found again{more}."
        _add(last, event.at, "found again", detection_text(event), run)
    if not found or found[-1].promoted:
        found.append(DriftOutcome(event.at, columns=columns))
    _add(found[-1], event.at, "found", detection_text(event), run)


def _gone(last: DriftOutcome, event: Event, run: str) -> None:
    last.looks += 1
    looked = event.data.get("predictions")
    of = f" in {looked:,} predictions" if isinstance(looked, int) else ""
    last.steps = [one for one in last.steps if one.what != "checked again"]
    times = f"{last.looks} times, the last time " if last.looks > 1 else ""
    _add(last, event.at, "checked again", f"{times}no drift{of}", run)
    how = f"{last.promoted} learnt from it, was promoted, and" if last.promoted else "no model was promoted, and"
    last.verdict = f"It is gone: {how} no drift was found since{of}."


def _labelled(last: DriftOutcome, labels: Sequence[Mapping[str, Any]], at: float) -> None:
    by = ", ".join(sorted({str(one.get("by") or "somebody") for one in labels}))
    evaluation = sum(one.get("purpose") == "evaluate" for one in labels)
    given = max((float(one["given"]) for one in labels if one.get("given")), default=at)
    _add(last, given, "labelled", f"{len(labels):,} points, {evaluation:,} of them for evaluation, by {by}")
    last.verdict = "It was labelled; no model has learnt from it yet."


def _judged(last: DriftOutcome, data: Mapping[str, Any], at: float, run: str) -> None:
    said, evidence = judged(data), data.get("evidence")
    verdict = evidence.get("verdict") if isinstance(evidence, Mapping) else None
    _add(last, at, "retrained", said, run)
    version = f"V{data.get('version')}"
    if verdict == "wait" and isinstance(evidence, Mapping):
        last.verdict = f"{version} learnt from it and waits: {evidence.get('reason')}."
    elif verdict == "promote" or (verdict is None and data.get("better")):
        last.verdict = f"{version} learnt from it and is better; it was not promoted yet."
    else:
        reason = evidence.get("reason") if isinstance(evidence, Mapping) else "it is not better"
        last.verdict = f"{version} learnt from it and was rejected: {reason}."


def _add(last: DriftOutcome, at: float, what: str, figures: str, run: str = "") -> None:
    last.steps.append(DriftStep(at, what, figures, run))


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _of(looked: Any) -> str:
    return f" of {looked:,}" if isinstance(looked, int) else ""


def _effect(column: Mapping[str, Any]) -> str:
    effect = column.get("effect")
    return f" (effect {effect:.2f})" if isinstance(effect, int | float) else ""


def _share(value: Any) -> str:
    return f"{value:.1%}" if isinstance(value, int | float) else "?"
