"""How agents, what they want and what they ask people are told, as plain lines. Pure: no terminal, no colours."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from scanflow.agent.messages import SensorReport
from scanflow.agent.records import Action, Intent
from scanflow.agent.words import called
from scanflow.app.quantities import format_duration
from scanflow_client.words import ago

if TYPE_CHECKING:
    from scanflow.agent.catalogue import Primitive

__all__ = [
    "AgentTold",
    "action_line",
    "action_rows",
    "agent_rows",
    "chosen",
    "journal_line",
    "label_rows",
    "outcome",
    "primitive_rows",
    "sensor_rows",
    "strategy_rows",
    "trigger_words",
    "waiting_rows",
]

_MOST_SHOWN = 160
_WAITS = {
    "act": "about to begin",
    "approve": "waits for a yes",
    "queue": "waits for its turn",
    "suggest": "suggested",
}


class AgentTold(BaseModel):
    """An agent as the server tells of it, and what itself tells of its sensors."""

    model_config = ConfigDict(frozen=True)

    name: str
    app: str
    team: str = ""
    state: str
    url: str | None = None
    pid: int | None = None
    started: float | None = None
    restarts: int = 0
    error: str | None = None
    """Why it fails, as the server tells it."""

    sensors: tuple[SensorReport, ...] | None = None
    """None: it could not be asked."""

    problem: str | None = None
    """Why it could not."""

    @property
    def full_name(self) -> str:
        """Return ``APP:AGENT``."""
        return f"{self.app}:{self.name}"


def chosen(agents: Iterable[AgentTold], target: str) -> list[AgentTold]:
    """Return the agents that ``APP``, ``AGENT``, ``APP:AGENT`` or ``APP/AGENT`` means; an application comes first."""
    known = list(agents)
    app, separator, name = target.replace("/", ":").partition(":")
    if separator:
        return [one for one in known if (one.app, one.name) == (app, name)]
    return [one for one in known if one.app == app] or [one for one in known if one.name == app]


def agent_rows(agents: Sequence[AgentTold]) -> list[tuple[str, ...]]:
    """Return a table of agents: name, application, state, since, restarts, sensors, last firing, missed, errors."""
    return [
        (
            one.name,
            one.app,
            one.state,
            "-" if one.started is None else ago(one.started),
            str(one.restarts),
            *_fared(one.sensors),
        )
        for one in agents
    ]


def sensor_rows(sensors: Iterable[SensorReport], *, now: float | None = None) -> list[tuple[str, ...]]:
    """Return a table of sensors: name, trigger, fired, last, next, missed, errors."""
    moment = time.time() if now is None else now
    return [
        (
            one.name,
            trigger_words(one.trigger),
            str(one.fired),
            "-" if one.last is None else ago(one.last),
            "-" if one.next is None else f"in {format_duration(max(0.0, one.next - moment))}",
            str(one.missed),
            str(one.errors),
        )
        for one in sensors
    ]


def trigger_words(trigger: Mapping[str, Any]) -> str:
    """Return a trigger as it is said: ``every 1 h``, ``cron 0 * * * *``, ``on run.failed (workflow=training)``."""
    match trigger:
        case {"kind": "interval", "seconds": int() | float() as seconds}:
            return f"every {format_duration(seconds)}"
        case {"kind": "date", "when": when}:
            return f"at {when}"
        case {"kind": "cron", "expression": expression}:
            zone = trigger.get("timezone", "UTC")
            return f"cron {expression}" + ("" if zone == "UTC" else f" in {zone}")
        case {"kind": "call"}:
            return "on a call"
        case {"kind": "event", "type": type}:
            matched = ", ".join(f"{name}={value}" for name, value in (trigger.get("match") or {}).items())
            return f"on {type}" + (f" ({matched})" if matched else "")
        case {"kind": "all_of" | "any_of" as kind, "triggers": [*inner]}:
            return f"{kind[:3]} of: {'; '.join(trigger_words(one) for one in inner)}"
    return str(trigger.get("kind", "unknown"))


def journal_line(entry: Mapping[str, Any]) -> str:
    """Return an entry of an agent's journal as a line: when, what, of which sensor or strategy, and its details."""
    kind, body = str(entry["kind"]), entry["body"]
    return f"{_time(entry['at'])}  {kind:<8}  {entry['subject']}  {_short(_noted(kind, body))}".rstrip()


def strategy_rows(told: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return a table of strategies: agent, name, when, if, then, autonomy, cool-down, budget."""
    return [
        (
            one["agent"],
            one["name"],
            f"{one['sensor']} ({trigger_words(one['when'])})",
            one["if"] or "always",
            "; ".join(one["then"]),
            one["autonomy"],
            format_duration(one["cool_down_s"]) if one["cool_down_s"] else "-",
            "-" if one["budget"] is None else f"{one['budget']} in {format_duration(one['budget_window_s'])}",
        )
        for one in told
    ]


def primitive_rows(catalogue: Iterable[Primitive]) -> list[tuple[str, ...]]:
    """Return a table of primitives: name, layer, kind of workflow, parameters, what it does. ``[...]``: may be left
    out."""
    return [
        (
            one.name,
            one.layer,
            one.kind,
            ", ".join(each.name if each.required else f"[{each.name}]" for each in one.parameters),
            one.what.replace("``", ""),
        )
        for one in catalogue
    ]


def outcome(action: Action) -> str:
    """Return how an action stands, in few words."""
    if action.state == "pending":
        return _WAITS.get(action.decision.verdict, "pending")
    return "only observed" if action.state == "observed" else action.state


def action_line(action: Action) -> str:
    """Return one line on an action: id, what, on what, how it stands and why."""
    why = action.error if action.error is not None else action.decision.reason
    if action.state == "reverted":
        why = f"by {action.reverted_by}"
    intent = action.intent
    return f"{action.id}  {_wanted(intent)} on {intent.target}: {outcome(action)}. {_short(why)}".rstrip()


def action_rows(actions: Iterable[Action]) -> list[tuple[str, ...]]:
    """Return a table of actions: id, when, who wanted it, what, on what, how it stands, why."""
    return [
        (
            one.id,
            ago(one.intent.at),
            f"{one.intent.agent}/{one.intent.strategy}",
            one.intent.primitive,
            one.intent.target,
            outcome(one),
            _short(one.error if one.error is not None else one.decision.reason),
        )
        for one in actions
    ]


def waiting_rows(actions: Iterable[Action]) -> list[tuple[str, ...]]:
    """Return a table of what waits for a person: id, when, who wants it, what, on what, by which rule."""
    return [
        (
            one.id,
            ago(one.intent.at),
            f"{one.intent.agent}/{one.intent.strategy}",
            _short(_wanted(one.intent)),
            one.intent.target,
            _short(one.intent.rule or "always"),
        )
        for one in actions
    ]


def label_rows(labels: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return a table of the label queue: id, application, what the model took it for, how critical, run, what it is."""
    return [
        (
            str(one["id"]),
            str(one["app"]),
            "-" if one.get("guess") is None else _plain(one["guess"]),
            "-" if one.get("score") is None else f"{one['score']:.4g}",
            str(one.get("run") or "-"),
            _short(", ".join(f"{name}={_plain(value)}" for name, value in (one.get("data") or {}).items())),
        )
        for one in labels
    ]


def _fared(sensors: Sequence[SensorReport] | None) -> tuple[str, str, str, str]:
    if sensors is None:
        return ("-", "-", "-", "-")
    last = max((one.last for one in sensors if one.last is not None), default=None)
    return (
        str(len(sensors)),
        "-" if last is None else ago(last),
        str(sum(one.missed for one in sensors)),
        str(sum(one.errors for one in sensors)),
    )


def _noted(kind: str, body: Any) -> str:
    match kind, body:
        case "sample", {"error": str() as error}:
            return f"failed: {error}"
        case "sample", {"value": value, "cause": cause}:
            return f"{_short(_plain(value))} ({cause})"
        case "intent", {"primitive": primitive, "target": target}:
            wanted = called(str(primitive), body.get("arguments") or {})
            return f"{wanted} on {target}, by the rule: {body.get('rule') or 'always'}"
        case "call", {"agent": agent, "sensor": sensor}:
            return called(f"{agent}.{sensor}", body.get("kwargs") or {}, body.get("args") or ())
        case "decision", {"answer": {"verdict": verdict, "reason": reason}}:
            return f"{verdict}: {reason}"
        case "decision", {"answer": {"sample": sample}}:
            return f"taken, as the sample {sample}"
        case "missed", {"reason": reason, "count": count}:
            return f"{count} ({reason})"
        case (("error" | "refused"), {"error": str() as error}):
            return error
    return json.dumps(body, ensure_ascii=False)


def _wanted(intent: Intent) -> str:
    return called(intent.primitive, intent.arguments)


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_SHOWN else line[: _MOST_SHOWN - 1] + "…"
