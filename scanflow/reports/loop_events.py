"""Converts the server's events into events of the loop's report, and collects the model's versions. Pure.

The built-in agents publish their findings: ``predictions.counted``, ``drift.found``, ``drift.suspected``,
``drift.continues``, ``drift.none``, ``drift.unknown``, ``model.judged``, ``model.promoted`` and ``model.rejected``. The
arbiter publishes ``intent`` and ``action.*``, and the server ``labels.given``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from scanflow.agent.agent_records import Event
from scanflow.drift.column_text import format_mean
from scanflow.drift.contract import is_right
from scanflow.drift.performance import measure_accuracy
from scanflow.drift.slices import CURRENT
from scanflow.errors import InvalidError
from scanflow.reports.report_data import Kind, LoopEvent, ModelUse, RequestCounts, ScoredAnswers, Version

MEASURED_EVENT = "service.measured"
ACCURACY_EVENT = "accuracy.measured"
LABELS = "labels"
"""The agent's name in events of labels: people or a labeller."""


def select_loop_events(events: Iterable[Event], *, app: str | None = None) -> list[LoopEvent]:
    """Return the events that belong to the report, in order; ``app``: of one application."""
    loop_items = (parse_loop_event(event) for event in _drop_repeated(events) if app is None or event.app == app)
    return [event for event in loop_items if event is not None]


def parse_loop_event(event: Event) -> LoopEvent | None:
    """Convert an event for the report; None if it is not part of it."""
    formatter = _FORMATTERS.get(event.type)
    if formatter is None or not isinstance(_read_agent(event), str):
        return None
    try:
        return formatter(event)
    except (KeyError, TypeError, ValueError):  # somebody else's event of that name: anybody may tell the server
        return None


def collect_versions(events: Iterable[Event], *, model: str | None = None) -> list[Version]:
    """Return the versions that were compared, with the accuracy (0 to 1) of each in its first comparison.

    Only versions compared side by side on the same samples can be compared; a champion's figure is that of its first
    comparison. Who is the champion, :func:`collect_champions` says.

    Args:
        events: in order of time.
        model: of one model.
    """
    own_events = [event for event in _drop_repeated(events) if model is None or event.subject == f"model/{model}"]
    found_versions: dict[int, Version] = {}
    for event in own_events:
        if event.type == "model.judged":
            champion, challenger = (_as_number(event.data.get(name)) for name in ("champion", "version"))
            for version in (
                _build_version(event, champion, "champion_metric"),
                _build_version(event, challenger, "challenger_metric"),
            ):
                if version is not None:
                    found_versions.setdefault(version.version, version)
    uses = _build_uses(collect_champions(own_events))
    return [
        version.model_copy(update={"uses": tuple(uses.get(version.version, ()))})
        for _, version in sorted(found_versions.items())
    ]


def collect_champions(events: Iterable[Event]) -> list[tuple[float, int | None]]:
    """Return when each version of one model became the champion, as far as events show; None: no champion.

    The last event decides: a comparison, which names it (a person may have moved the alias), a promotion, or a
    champion's rejection, after which the one before it is back. A comparison names the champion of when its run began:
    what was promoted or rejected meanwhile is newer.
    """
    changes: list[tuple[float, int | None]] = []
    before: dict[int, int] = {}
    champion: int | None = None
    for event in events:
        number, now, at = _as_number(event.data.get("version")), champion, event.at
        if event.type == "model.judged":
            against, at = _as_number(event.data.get("champion")), get_begin(event)
            if against is not None and (not changes or at >= changes[-1][0]):
                now = against
        elif event.type == "model.promoted" and number is not None:
            now, last = number, _as_number(event.data.get("before"))
            if last is not None and last != number:
                before[number] = last
                changes += [(at, last)] if champion is None else []
        elif event.type == "model.rejected" and champion is not None and number == champion:
            now = before.get(champion)
        if now != champion:
            champion = now
            changes.append((at, champion))
    return changes


def request_counts(events: Iterable[Event]) -> list[RequestCounts]:
    """Return the request counts of a service's versions in ``service.measured`` events."""
    counts = []
    for event in events:
        if event.type == MEASURED_EVENT:
            with suppress(ValidationError):  # somebody else's event of that name
                counts.append(RequestCounts.model_validate({**event.data, "at": event.at}))
    return counts


def get_begin(event: Event) -> float:
    """Return when the run of a ``model.judged`` event began; of an earlier version's event, when it was reported."""
    began = event.data.get("began")
    return float(began) if isinstance(began, int | float) else event.at


def count_answers(events: Sequence[Event], labels: Iterable[Mapping[str, Any]]) -> list[ScoredAnswers]:
    """Count the right predictions in each drifted window, by the labelled points drawn for evaluation.

    Those were drawn at random from the window; what was picked to learn from is what the model is least sure of.
    """
    rights: dict[str, list[bool]] = {}
    tolerance = _find_tolerance(events)
    for point in labels:
        guess, label = point.get("guess"), point.get("label")
        if point.get("purpose") == "evaluate" and label is not None and guess not in (None, -1):
            answer = is_right(guess, label, tolerance)
            if answer is not None:
                rights.setdefault(str(point.get("run")), []).append(answer)
    windows: dict[str, Event] = {}
    champions = [(at, f"V{number}") for at, number in collect_champions(events) if number is not None]
    asked = ""
    for event in events:
        if event.type == "drift.found" and event.data.get("run") in rights:
            windows.setdefault(str(event.data["run"]), event)
        asked = asked or (str(event.data.get("version")) if event.type == MEASURED_EVENT else "")
    answers = []
    for run, event in windows.items():
        if (number := _as_number(event.data.get("version"))) is not None:
            version = f"V{number}"
        else:  # an event that was reported before it named the version
            served = [version for since, version in champions if since <= event.at][-1:] or [
                version
                for _, version in champions[:1]  # it may have been the champion before
            ]
            version = served[0] if served else asked or "the model in use"
        answers.append(ScoredAnswers(at=event.at, version=version, right=sum(rights[run]), n=len(rights[run])))
    return answers


def _find_tolerance(events: Sequence[Event]) -> float | None:
    """Return how far off a right answer of a regression may be, as the newest measurement reported it."""
    values = (event.data.get("tolerance") for event in reversed(events) if event.type == ACCURACY_EVENT)
    return next((float(value) for value in values if isinstance(value, int | float)), None)


def list_drifted_columns(event: Event) -> list[dict[str, Any]]:
    """Return the drifted columns of a detection's event, the worst first."""
    columns = event.data.get("columns")
    return (
        [column for column in columns if isinstance(column, dict) and "name" in column]
        if isinstance(columns, list)
        else []
    )


def compute_interval(right: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of right answers."""
    accuracy = measure_accuracy(right, n)
    return accuracy.low, accuracy.high


def _build_uses(changes: Sequence[tuple[float, int | None]]) -> dict[int, list[ModelUse]]:
    """Return the periods in which each version was the champion; a version of None ends the one before."""
    ends: list[float | None] = [at for at, _ in changes[1:]]
    uses: dict[int, list[ModelUse]] = {}
    for (began, version), ended in zip(changes, [*ends, None], strict=False):
        if version is not None:
            uses.setdefault(version, []).append(ModelUse(began=began, ended=ended))
    return uses


def _drop_repeated(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events without repetitions: an agent that restarts may publish the same event of a run again."""
    seen: set[tuple[str, ...]] = set()
    for event in events:
        if event.type in _RUN_EVENTS and event.data.get("run"):
            key = (event.type, event.app, event.subject, str(event.data["run"]), str(event.data.get("version")))
            if key in seen:
                continue
            seen.add(key)
        yield event


def _as_number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _build_version(event: Event, number: int | None, metric: str) -> Version | None:
    accuracy = event.data.get(metric)
    if number is None or not isinstance(accuracy, int | float):
        return None
    n, interval = None, None
    with suppress(KeyError, TypeError, ValueError, InvalidError):  # older events have no evidence
        evidence: Any = event.data["evidence"]
        (current,) = (part for part in evidence["slices"] if part["name"] == CURRENT)
        n, right = int(current["n"]), int(current[metric.replace("_metric", "_right")])
        accuracy, interval = right / n, compute_interval(right, n)
    return Version(version=number, at=event.at, accuracy=min(1.0, max(0.0, accuracy)), n=n, interval=interval)


def _read_agent(event: Event) -> Any:
    return LABELS if event.type == "labels.given" else event.data.get("agent")  # whoever gave them


def _build_loop_event(
    event: Event, kind: Kind, text: str, *, count: int | None = None, picked: int | None = None, detail: str = ""
) -> LoopEvent:
    agent = str(_read_agent(event))
    return LoopEvent(at=event.at, agent=agent, kind=kind, text=text, count=count, picked=picked, detail=detail)


def _format_count(event: Event) -> LoopEvent:
    count, unchecked = _as_number(event.data.get("new")), event.data.get("predictions")
    return _build_loop_event(
        event, "predictions", f"{count or 0:,} predictions", count=count, detail=f"{unchecked} not checked yet"
    )


def find_sample_count(event: Event) -> int | None:
    """Return how many samples a detection compared, among which it found the outliers: of equal pictures one."""
    return _as_number(event.data.get("samples", event.data.get("predictions")))


def _format_drift(event: Event) -> LoopEvent:
    anomalies, picked = (_as_number(event.data.get(name)) for name in ("anomalies", "picked"))
    looked = find_sample_count(event)
    suffix = "" if looked is None else f" of {looked:,}"
    points = f"; {picked:,} samples selected for labelling" if picked else ""
    columns = list_drifted_columns(event)
    where = f" in {', '.join(str(column['name']) for column in columns[:3])}" if columns else ""
    text = f"drift{where}: {anomalies:,}{suffix} outliers{points}"
    return _build_loop_event(event, "detection", text, count=anomalies, picked=picked, detail=_format_evidence(event))


def _format_suspicion(event: Event) -> LoopEvent:
    return _build_loop_event(event, "look", f"possible drift: {event.data.get('why')}", detail=_format_evidence(event))


def _format_continuation(event: Event) -> LoopEvent:
    return _build_loop_event(
        event, "look", "the same drift: labels are not requested again", detail=_format_evidence(event)
    )


def _format_evidence(event: Event) -> str:
    """Format the drifted columns with their figures, the reason, and the run."""
    parts = [
        f"{column['name']}: {column.get('test')} {float(column['statistic']):.3g}, p {float(column['p']):.2g}, "
        f"effect {float(column['effect']):.2f}, "
        f"{_format_summary(column, 'reference')} → {_format_summary(column, 'current')}"
        for column in list_drifted_columns(event)[:3]
        if {"statistic", "p", "effect"} <= column.keys()
    ]
    return _join(*parts, event.data.get("why"), _format_run(event))


def _join(*parts: Any, separator: str = "; ") -> str:
    """Join the parts that there are."""
    return separator.join(str(part) for part in parts if part)


def _format_summary(column: Mapping[str, Any], which: str) -> str:
    """Format a column's mean and deviation, or the shares of its commonest values."""
    summary = column.get(which)
    if not isinstance(summary, Mapping):
        return "?"
    if "mean" in summary:
        mean, sd = float(summary["mean"]), float(summary.get("sd", 0))
        return format_mean(mean, sd, is_time=bool(column.get("is_time")))
    return " ".join(f"{name} {float(share):.0%}" for name, share in list(summary.items())[:3])


def _format_no_drift(event: Event) -> LoopEvent:
    looked = _as_number(event.data.get("predictions"))
    suffix = "" if looked is None else f" in {looked:,} predictions"
    return _build_loop_event(event, "look", f"no drift{suffix}", detail=_format_run(event))


def _format_unknown_drift(event: Event) -> LoopEvent:
    tries = _as_number(event.data.get("tries"))
    text = f"drift unknown: {tries or 0} detections of the same predictions failed"
    return _build_loop_event(event, "look", text, detail=_join(event.data.get("error"), _format_run(event)))


def _format_labels(event: Event) -> LoopEvent:
    count = _as_number(event.data.get("count"))
    text = f"{count:,} label{'' if count == 1 else 's'}"
    return _build_loop_event(event, "label", text, count=count, detail=f"by {event.data.get('by')}")


def format_verdict(data: Mapping[str, Any]) -> str:
    """Format the verdict on a challenger in a few words, from the data of ``model.judged``."""
    evidence = data.get("evidence")
    verdict = evidence.get("verdict") if isinstance(evidence, Mapping) else None
    if verdict == "wait":
        return "waits for labels"
    if verdict == "ask":
        return "better, waiting for a person's approval"
    return "better" if data.get("better") else "not better"


def _format_comparison(event: Event) -> LoopEvent:
    data = event.data
    old, new = (float(str(data[name])) for name in ("champion_metric", "challenger_metric"))
    text = f"V{data.get('version')} {new:.3f} {'>' if new > old else '≤'} {old:.3f}: {format_verdict(data)}"
    return _build_loop_event(
        event, "gate", text, detail=f"{data.get('metric')} on the same samples; {_format_run(event)}"
    )


def _format_intent(event: Event) -> LoopEvent | None:
    verdict, strategy = event.data.get("verdict"), event.data.get("strategy")
    if verdict == "duplicate":
        return None
    detail = f"strategy {strategy}. {event.data.get('reason', '')}"
    if verdict != "act":
        return _build_loop_event(event, "other", f"{_format_call(event)}: {verdict}", detail=detail)
    return _build_loop_event(
        event, "retrain" if strategy == "retrain_model" else "call", _format_call(event), detail=detail
    )


def _format_call(event: Event) -> str:
    primitive = str(event.data.get("primitive"))
    return f"{_VERBS.get(primitive, primitive.replace('_', ' '))} {event.subject.partition('/')[2]}"


def _format_run(event: Event) -> str:
    return f"run {event.data['run']}" if event.data.get("run") else ""


def _format_action(event: Event) -> str:
    """Format who decided, why, and the command that explains the action."""
    action, by = event.data.get("action") or event.data.get("id"), event.data.get("by")
    person = f"by {by}" if isinstance(by, str) else None
    return _join(person, event.data.get("why"), f"scanflow why {action}" if action else None, separator=". ")


_VERBS = {
    "run_workflow": "runs",
    "deploy_workflow": "deploys",
    "upgrade_workflow": "changes the model of",
    "downgrade_workflow": "reverts the model of",
    "update_workflow_replica": "rescales",
    "update_workflow_affinity": "moves",
}

_FORMATTERS: Mapping[str, Callable[[Event], LoopEvent | None]] = {
    "predictions.counted": _format_count,
    "drift.found": _format_drift,
    "drift.suspected": _format_suspicion,
    "drift.continues": _format_continuation,
    "drift.none": _format_no_drift,
    "drift.unknown": _format_unknown_drift,
    "labels.given": _format_labels,
    "model.judged": _format_comparison,
    "model.promoted": lambda event: _build_loop_event(
        event, "promotion", f"V{event.data.get('version')} is the champion", detail=_format_action(event)
    ),
    "model.rejected": lambda event: _build_loop_event(
        event, "gate", f"V{event.data.get('version')} rejected", detail=_format_action(event)
    ),
    "intent": _format_intent,
    "action.failed": lambda event: _build_loop_event(
        event, "failure", f"{_format_call(event)}: failed", detail=str(event.data.get("error", ""))
    ),
    "action.reverted": lambda event: _build_loop_event(
        event, "revert", f"{_format_call(event)}: reverted", detail=_format_action(event)
    ),
}

_RUN_EVENTS = frozenset(
    {"drift.found", "drift.suspected", "drift.continues", "drift.none", "drift.unknown", "model.judged"}
)

LOOP_TYPES = tuple(_FORMATTERS)
"""The types of the events that agents' lanes show."""

TYPES = (*LOOP_TYPES, MEASURED_EVENT, ACCURACY_EVENT)
"""The types of the events that belong to a story."""
