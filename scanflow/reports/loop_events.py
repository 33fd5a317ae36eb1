"""The server's events as the story of the loop: who saw or did what, and what became of the model's versions. Pure.

The built-in agents tell what they find out: ``predictions.counted``, ``drift.found``, ``drift.suspected``,
``drift.continues``, ``drift.none``, ``model.judged``, ``model.promoted`` and ``model.rejected``. What is done about it,
the arbiter tells: ``intent`` and ``action.*``; and what was labelled, the server: ``labels.given``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from scanflow.agent.records import Event
from scanflow.drift.performance import measured
from scanflow.drift.slices import CURRENT
from scanflow.errors import InvalidError
from scanflow.reports.records import Answers, Kind, LoopEvent, RequestCounts, Use, Version

MEASURED = "service.measured"
LABELS = "labels"
"""What stands for an agent where labels were given: people or a labeller."""


def loop_events(events: Iterable[Event], *, app: str | None = None) -> list[LoopEvent]:
    """Return what belongs to the story, in the order told; ``app``: of one application."""
    told = (loop_event(event) for event in _once(events) if app is None or event.app == app)
    return [one for one in told if one is not None]


def loop_event(event: Event) -> LoopEvent | None:
    """Return an event as a part of the story; None: it is none."""
    teller = _TELLERS.get(event.type)
    if teller is None or not isinstance(_agent(event), str):
        return None
    try:
        return teller(event)
    except (KeyError, TypeError, ValueError):  # somebody else's event of that name: anybody may tell the server
        return None


def versions_of(events: Iterable[Event], *, model: str | None = None) -> list[Version]:
    """Return the versions that were judged, with the accuracy (from 0 to 1) that each had when it was first judged.

    Only versions judged side by side on the same samples can be compared; a champion's figure is that of its first
    comparison. Who is the champion, :func:`champions_of` says.

    Args:
        events: in the order told.
        model: of one model.
    """
    mine = [event for event in _once(events) if model is None or event.subject == f"model/{model}"]
    found: dict[int, Version] = {}
    for event in mine:
        if event.type == "model.judged":
            champion, challenger = (_number(event.data.get(name)) for name in ("champion", "version"))
            for one in (_version(event, champion, "champion_metric"), _version(event, challenger, "challenger_metric")):
                if one is not None:
                    found.setdefault(one.version, one)
    uses = _uses(champions_of(mine))
    return [one.model_copy(update={"uses": tuple(uses.get(one.version, ()))}) for _, one in sorted(found.items())]


def champions_of(events: Iterable[Event]) -> list[tuple[float, int | None]]:
    """Return which version became the champion when, as far as it was told of one model; None: nobody is any more.

    It is what was told last: by a comparison, which names it (a person may have moved the alias), by a promotion, or by
    a champion's rejection, after which the one before it is back.
    """
    changes: list[tuple[float, int | None]] = []
    before: dict[int, int] = {}
    champion: int | None = None
    for event in events:
        number, now = _number(event.data.get("version")), champion
        if event.type == "model.judged":
            against = _number(event.data.get("champion"))
            now = champion if against is None else against
        elif event.type == "model.promoted" and number is not None:
            now, last = number, _number(event.data.get("before"))
            if last is not None and last != number:
                before[number] = last
        elif event.type == "model.rejected" and champion is not None and number == champion:
            now = before.get(champion)
        if now != champion:
            champion = now
            changes.append((event.at, champion))
    return changes


def request_counts(events: Iterable[Event]) -> list[RequestCounts]:
    """Return what the versions of a service were asked, as far as it was told."""
    found = []
    for event in events:
        if event.type == MEASURED:
            with suppress(ValidationError):  # somebody else's event of that name
                found.append(RequestCounts.model_validate({**event.data, "at": event.at}))
    return found


def answers_of(events: Iterable[Event], labels: Iterable[Mapping[str, Any]]) -> list[Answers]:
    """Return how many guesses were right in each drifted window, by the labelled points that were drawn for evaluation.

    Those were drawn at random from the window; what was picked to learn from is what the model is least sure of.
    """
    rights: dict[str, list[bool]] = {}
    for one in labels:
        guess, label = one.get("guess"), one.get("label")
        if one.get("purpose") == "evaluate" and label is not None and guess not in (None, -1):
            rights.setdefault(str(one.get("run")), []).append(str(guess) == str(label))
    windows: dict[str, float] = {}
    champions: list[tuple[float, str]] = []  # from when on; the first may have been it before
    asked = ""
    for event in events:
        if event.type == "drift.found" and event.data.get("run") in rights:
            windows.setdefault(str(event.data["run"]), event.at)
        names = {"model.judged": ("champion",), "model.promoted": ("before", "version")}.get(event.type, ())
        numbers = [_number(event.data.get(name)) for name in names if name != "before" or not champions]
        champions += [(event.at, f"V{number}") for number in numbers if number is not None]
        asked = asked or (str(event.data.get("version")) if event.type == MEASURED else "")
    found = []
    for run, at in windows.items():
        served = [version for since, version in champions if since <= at][-1:] or [one for _, one in champions[:1]]
        version = served[0] if served else asked or "the model in use"
        found.append(Answers(at=at, version=version, right=sum(rights[run]), n=len(rights[run])))
    return found


def drifted_columns(event: Event) -> list[dict[str, Any]]:
    """Return the columns that a detection named, the worst first."""
    found = event.data.get("columns")
    return [one for one in found if isinstance(one, dict) and "name" in one] if isinstance(found, list) else []


def interval_of(right: int, n: int) -> tuple[float, float]:
    """Return where a share of right answers may really be, at 95 %."""
    found = measured(right, n)
    return found.low, found.high


def _uses(changes: Sequence[tuple[float, int | None]]) -> dict[int, list[Use]]:
    """Return when each version was the champion, from when who became it; None: nobody was any more."""
    ends: list[float | None] = [at for at, _ in changes[1:]]
    uses: dict[int, list[Use]] = {}
    for (began, version), ended in zip(changes, [*ends, None], strict=False):
        if version is not None:
            uses.setdefault(version, []).append(Use(began=began, ended=ended))
    return uses


def _once(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events, each told of a run once: an agent that ends before it has noted what it told tells it again."""
    told: set[tuple[str, ...]] = set()
    for event in events:
        if event.type in _OF_RUNS and event.data.get("run"):
            mark = (event.type, event.app, event.subject, str(event.data["run"]), str(event.data.get("version")))
            if mark in told:
                continue
            told.add(mark)
        yield event


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _version(event: Event, number: int | None, metric: str) -> Version | None:
    accuracy = event.data.get(metric)
    if number is None or not isinstance(accuracy, int | float):
        return None
    n, interval = None, None
    with suppress(KeyError, TypeError, ValueError, InvalidError):  # older events have no evidence
        evidence: Any = event.data["evidence"]
        (current,) = (one for one in evidence["slices"] if one["name"] == CURRENT)
        n, right = int(current["n"]), int(current[metric.replace("_metric", "_right")])
        accuracy, interval = right / n, interval_of(right, n)
    return Version(version=number, at=event.at, accuracy=min(1.0, max(0.0, accuracy)), n=n, interval=interval)


def _agent(event: Event) -> Any:
    return LABELS if event.type == "labels.given" else event.data.get("agent")  # whoever gave them


def _loop_event(
    event: Event, kind: Kind, text: str, *, count: int | None = None, picked: int | None = None, detail: str = ""
) -> LoopEvent:
    agent = str(_agent(event))
    return LoopEvent(at=event.at, agent=agent, kind=kind, text=text, count=count, picked=picked, detail=detail)


def _counted(event: Event) -> LoopEvent:
    count, unchecked = _number(event.data.get("new")), event.data.get("predictions")
    return _loop_event(
        event, "predictions", f"{count or 0:,} predictions", count=count, detail=f"{unchecked} not checked yet"
    )


def _drift(event: Event) -> LoopEvent:
    anomalies, looked, picked = (_number(event.data.get(name)) for name in ("anomalies", "predictions", "picked"))
    of = "" if looked is None else f" of {looked:,}"
    points = f"; {picked:,} samples selected for labelling" if picked else ""
    named = drifted_columns(event)
    where = f" in {', '.join(str(one['name']) for one in named[:3])}" if named else ""
    text = f"drift{where}: {anomalies:,}{of} outliers{points}"
    return _loop_event(event, "detection", text, count=anomalies, picked=picked, detail=_evidence(event))


def _suspected(event: Event) -> LoopEvent:
    return _loop_event(event, "look", f"possible drift: {event.data.get('why')}", detail=_evidence(event))


def _continues(event: Event) -> LoopEvent:
    return _loop_event(event, "look", "the same drift: nobody is asked again", detail=_evidence(event))


def _evidence(event: Event) -> str:
    """Return the columns that moved with their figures, why it is an alarm or none, and the run."""
    parts = [
        f"{one['name']}: {one.get('test')} {float(one['statistic']):.3g}, p {float(one['p']):.2g}, "
        f"effect {float(one['effect']):.2f}, {_shown(one.get('reference'))} → {_shown(one.get('current'))}"
        for one in drifted_columns(event)[:3]
        if {"statistic", "p", "effect"} <= one.keys()
    ]
    return "; ".join(part for part in (*parts, str(event.data.get("why") or ""), _run(event)) if part)


def _shown(summary: Any) -> str:
    """Return a column's mean and deviation, or the shares of its commonest values."""
    if not isinstance(summary, Mapping):
        return "?"
    if "mean" in summary:
        return f"{float(summary['mean']):.3g} ± {float(summary.get('sd', 0)):.3g}"
    return " ".join(f"{name} {float(share):.0%}" for name, share in list(summary.items())[:3])


def _no_drift(event: Event) -> LoopEvent:
    looked = _number(event.data.get("predictions"))
    of = "" if looked is None else f" in {looked:,} predictions"
    return _loop_event(event, "look", f"no drift{of}", detail=_run(event))


def _labels(event: Event) -> LoopEvent:
    count = _number(event.data.get("count"))
    return _loop_event(event, "label", f"{count:,} labels", count=count, detail=f"by {event.data.get('by')}")


def verdict_text(judged: Mapping[str, Any]) -> str:
    """Return what became of a challenger, from the data of ``model.judged``, in a word or two."""
    evidence = judged.get("evidence")
    verdict = evidence.get("verdict") if isinstance(evidence, Mapping) else None
    if verdict == "wait":
        return "waits for labels"
    if verdict == "ask":
        return "better, but a person decides"
    return "better" if judged.get("better") else "not better"


def _judged(event: Event) -> LoopEvent:
    data = event.data
    old, new = (float(str(data[name])) for name in ("champion_metric", "challenger_metric"))
    text = f"V{data.get('version')} {new:.3f} {'>' if new > old else '≤'} {old:.3f}: {verdict_text(data)}"
    return _loop_event(event, "gate", text, detail=f"{data.get('metric')} on the same samples; {_run(event)}")


def _intent(event: Event) -> LoopEvent | None:
    verdict, strategy = event.data.get("verdict"), event.data.get("strategy")
    if verdict == "duplicate":
        return None
    detail = f"strategy {strategy}. {event.data.get('reason', '')}"
    if verdict != "act":
        return _loop_event(event, "other", f"{_deed(event)}: {verdict}", detail=detail)
    return _loop_event(event, "retrain" if strategy == "retrain_model" else "call", _deed(event), detail=detail)


def _deed(event: Event) -> str:
    primitive = str(event.data.get("primitive"))
    return f"{_VERBS.get(primitive, primitive.replace('_', ' '))} {event.subject.partition('/')[2]}"


def _run(event: Event) -> str:
    return f"run {event.data['run']}" if event.data.get("run") else ""


def _action(event: Event) -> str:
    found = event.data.get("action") or event.data.get("id")
    return f"scanflow why {found}" if found else ""


_VERBS = {
    "run_workflow": "runs",
    "deploy_workflow": "deploys",
    "upgrade_workflow": "swaps the model of",
    "downgrade_workflow": "takes back the model of",
    "update_workflow_replica": "rescales",
    "update_workflow_affinity": "moves",
}

_TELLERS: Mapping[str, Callable[[Event], LoopEvent | None]] = {
    "predictions.counted": _counted,
    "drift.found": _drift,
    "drift.suspected": _suspected,
    "drift.continues": _continues,
    "drift.none": _no_drift,
    "labels.given": _labels,
    "model.judged": _judged,
    "model.promoted": lambda event: _loop_event(
        event, "promotion", f"V{event.data.get('version')} is the champion", detail=_action(event)
    ),
    "model.rejected": lambda event: _loop_event(
        event, "revert", f"V{event.data.get('version')} rejected", detail=str(event.data.get("why"))
    ),
    "intent": _intent,
    "action.failed": lambda event: _loop_event(
        event, "revert", f"{_deed(event)}: failed", detail=str(event.data.get("error", ""))
    ),
    "action.reverted": lambda event: _loop_event(event, "revert", f"{_deed(event)}: taken back", detail=_action(event)),
}

_OF_RUNS = frozenset({"drift.found", "drift.suspected", "drift.continues", "drift.none", "model.judged"})

TYPES = (*_TELLERS, MEASURED)  # the types of the events that belong to a story
