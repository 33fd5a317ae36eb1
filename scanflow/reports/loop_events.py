"""The server's events as the story of the loop: who saw or did what, and what became of the model's versions. Pure.

The built-in agents tell what they find out: ``predictions.counted``, ``drift.found``, ``drift.none``, ``labels.given``,
``model.judged``, ``model.promoted`` and ``model.rejected``. What is done about it, the arbiter tells: ``intent`` and
``action.*``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from scanflow.agent.records import Event
from scanflow.reports.records import Kind, LoopEvent, Use, Version


def loop_events(events: Iterable[Event], *, app: str | None = None) -> list[LoopEvent]:
    """Return what belongs to the story, in the order told; ``app``: of one application."""
    told = (loop_event(event) for event in _once(events) if app is None or event.app == app)
    return [one for one in told if one is not None]


def loop_event(event: Event) -> LoopEvent | None:
    """Return an event as a part of the story; None: it is none."""
    teller = _TELLERS.get(event.type)
    agent = event.data.get("agent")
    if teller is None or not isinstance(agent, str):
        return None
    try:
        return teller(event, agent, event.data)
    except (KeyError, TypeError, ValueError):  # somebody else's event of that name: anybody may tell the server
        return None


def versions_of(events: Iterable[Event], *, model: str | None = None) -> list[Version]:
    """Return the versions that were judged, with the accuracy (from 0 to 1) that each had when it was first judged.

    Only versions judged side by side on the same samples can be compared; a champion's figure is that of its first
    comparison. Who is the champion is what was told last: by a comparison, which names it (a person may have moved the
    alias), by a promotion, or by a champion's rejection, after which the one before it is back.

    Args:
        events: in the order told.
        model: of one model.
    """
    found: dict[int, Version] = {}
    changes: list[tuple[float, int | None]] = []
    before: dict[int, int] = {}
    champion: int | None = None
    for event in _once(events):
        if model is not None and event.subject != f"model/{model}":
            continue
        number = _number(event.data.get("version"))
        now = champion
        if event.type == "model.judged":
            against = _number(event.data.get("champion"))
            now = champion if against is None else against
            for one in (_version(event, against, "champion_metric"), _version(event, number, "challenger_metric")):
                if one is not None:
                    found.setdefault(one.version, one)
        elif event.type == "model.promoted" and number is not None:
            now, last = number, _number(event.data.get("before"))
            if last is not None and last != number:
                before[number] = last
        elif event.type == "model.rejected" and champion is not None and number == champion:
            now = before.get(champion)
        if now != champion:
            champion = now
            changes.append((event.at, champion))
    uses = _uses(changes)
    return [one.model_copy(update={"uses": tuple(uses.get(one.version, ()))}) for _, one in sorted(found.items())]


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
    return Version(version=number, at=event.at, accuracy=min(1.0, max(0.0, accuracy)))


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _counted(event: Event, agent: str, data: Mapping[str, Any]) -> LoopEvent:
    count = _count(data.get("new"))
    text = f"{count or 0:,} predictions"
    return _loop_event(
        event, agent, "predictions", text, count=count, detail=f"{data.get('predictions')} not checked yet"
    )


def _drift(event: Event, agent: str, data: Mapping[str, Any]) -> LoopEvent:
    anomalies, looked = _count(data.get("anomalies")), data.get("predictions")
    of = f" of {looked:,}" if isinstance(looked, int) else ""
    picked = _count(data.get("picked"))
    points = f"; {picked:,} samples selected for labelling" if picked else ""
    text = f"drift: {anomalies:,}{of} outliers{points}"
    return _loop_event(event, agent, "detection", text, count=anomalies, picked=picked, detail=_run(data))


def _no_drift(event: Event, agent: str, data: Mapping[str, Any]) -> LoopEvent:
    looked = data.get("predictions")
    of = f" in {looked:,} predictions" if isinstance(looked, int) else ""
    return _loop_event(event, agent, "look", f"no drift{of}", detail=_run(data))


def _labels(event: Event, agent: str, data: Mapping[str, Any]) -> LoopEvent:
    count = _count(data.get("count"))
    return _loop_event(event, agent, "label", f"{count:,} labels", count=count, detail=f"by {data.get('by')}")


def _judged(event: Event, agent: str, data: Mapping[str, Any]) -> LoopEvent:
    version, metric = data.get("version"), data.get("metric")
    old, new = float(data["champion_metric"]), float(data["challenger_metric"])
    sign = ">" if new > old else "≤"
    verdict = "better" if data.get("better") else "not better"
    text = f"V{version} {new:.3f} {sign} {old:.3f}: {verdict}"
    return _loop_event(event, agent, "gate", text, detail=f"{metric} on the same samples; {_run(data)}")


def _promoted(event: Event, agent: str, data: Mapping[str, Any]) -> LoopEvent:
    return _loop_event(event, agent, "promotion", f"V{data.get('version')} is the champion", detail=_action(data))


def _rejected(event: Event, agent: str, data: Mapping[str, Any]) -> LoopEvent:
    return _loop_event(event, agent, "revert", f"V{data.get('version')} rejected", detail=str(data.get("why")))


def _intent(event: Event, agent: str, data: Mapping[str, Any]) -> LoopEvent | None:
    if data.get("verdict") == "duplicate":
        return None
    kind: Kind = "retrain" if data.get("strategy") == "retrain_model" else "call"
    done = data.get("verdict") == "act"
    words = f"{_verb(data.get('primitive'))} {event.subject.partition('/')[2]}"
    return _loop_event(
        event,
        agent,
        kind if done else "other",
        words if done else f"{words}: {data.get('verdict')}",
        detail=f"strategy {data.get('strategy')}. {data.get('reason', '')}",
    )


def _failed(event: Event, agent: str, data: Mapping[str, Any]) -> LoopEvent:
    text = f"{_verb(data.get('primitive'))} {event.subject.partition('/')[2]}: failed"
    return _loop_event(event, agent, "revert", text, detail=str(data.get("error", "")))


def _reverted(event: Event, agent: str, data: Mapping[str, Any]) -> LoopEvent:
    words = f"{_verb(data.get('primitive'))} {event.subject.partition('/')[2]}: taken back"
    return _loop_event(event, agent, "revert", words, detail=_action(data))


def _loop_event(
    event: Event,
    agent: str,
    kind: Kind,
    text: str,
    *,
    count: int | None = None,
    picked: int | None = None,
    detail: str = "",
) -> LoopEvent:
    return LoopEvent(at=event.at, agent=agent, kind=kind, text=text, count=count, picked=picked, detail=detail)


def _verb(primitive: Any) -> str:
    return _VERBS.get(str(primitive), str(primitive).replace("_", " "))


def _run(data: Mapping[str, Any]) -> str:
    return f"run {data['run']}" if data.get("run") else ""


def _action(data: Mapping[str, Any]) -> str:
    found = data.get("action") or data.get("id")
    return f"scanflow why {found}" if found else ""


_VERBS = {
    "run_workflow": "runs",
    "deploy_workflow": "deploys",
    "upgrade_workflow": "swaps the model of",
    "downgrade_workflow": "takes back the model of",
    "update_workflow_replica": "rescales",
    "update_workflow_affinity": "moves",
}

_TELLERS: Mapping[str, Callable[[Event, str, Mapping[str, Any]], LoopEvent | None]] = {
    "predictions.counted": _counted,
    "drift.found": _drift,
    "drift.none": _no_drift,
    "labels.given": _labels,
    "model.judged": _judged,
    "model.promoted": _promoted,
    "model.rejected": _rejected,
    "intent": _intent,
    "action.failed": _failed,
    "action.reverted": _reverted,
}

_OF_RUNS = frozenset({"drift.found", "drift.none", "model.judged"})

TYPES = tuple(_TELLERS)  # the types of the events that belong to a story
