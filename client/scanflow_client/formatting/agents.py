"""Agents, their strategies, actions and replays, as lines and tables."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scanflow.agent.formatting import called
from scanflow.agent.records import Action, AgentView, Intent, SensorReport
from scanflow.app.quantities import counted, format_duration
from scanflow.drift.promotion import sentence
from scanflow.masking import masked
from scanflow_client.formatting.table import Screen, Table
from scanflow_client.formatting.text import ago, as_json, clock, duration, shorten

if TYPE_CHECKING:
    from scanflow.agent.primitive_model import Primitive
    from scanflow.agent.replay import Difference, Moment, Trace
    from scanflow_client.replay import Replay

_PENDING = {"act": "about to start", "approve": "waiting for approval", "queue": "queued", "suggest": "suggested"}
MAX_MOMENTS = 200  # the newest of a replay that are printed


def agents_screen(agents: Sequence[AgentView], *, detailed: bool) -> Screen:
    """Return a table of agents, with ``detailed`` a table of each one's sensors, and their errors."""
    if not agents:
        return ["No agents. Start an application's: scanflow agents --start app.py"]
    heads = ("agent", "application", "state", "since", "restarts", "sensors", "last firing", "missed", "errors")
    screen: list[str | Table] = [Table(heads, [_sensors_row(one) for one in agents])]
    columns = ("sensor", "fires", "fired", "last", "next", "missed", "errors")
    for one in agents if detailed else ():
        if one.sensors:
            rows = [_sensor_row(sensor) for sensor in one.sensors]
            screen += ["", f"{one.full_name}, at {one.url}", Table(columns, rows)]
    for one in agents:
        screen += [f"{one.full_name} fails: {one.error}"] if one.error is not None else []
    return screen if detailed else [*screen, f"Show one: scanflow agents {agents[0].full_name}"]


def trigger_text(trigger: Mapping[str, Any]) -> str:
    """Return a trigger in words: ``every 1 h``, ``cron 0 * * * *``, ``on run.failed (workflow=training)``."""
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
            return f"{kind[:3]} of: {'; '.join(trigger_text(one) for one in inner)}"
    return str(trigger.get("kind", "unknown"))


def journal_lines(entries: Iterable[Mapping[str, Any]], agent: str) -> list[str]:
    """Return each entry of an agent's journal on one line: time, kind, sensor or strategy, details."""
    lines = []
    for entry in entries:
        kind = str(entry["kind"])
        line = f"{clock(entry['at'])}  {kind:<8}  {entry['subject']}  {shorten(_details(kind, entry['body']))}"
        lines.append(line.rstrip())
    return lines or [f"Nothing has happened yet. See when its sensors fire: scanflow agents {agent}"]


def strategies_table(strategies: Iterable[Mapping[str, Any]]) -> Table:
    rows = [
        (
            one["agent"],
            one["name"],
            f"{one['sensor']} ({trigger_text(one['when'])})",
            one["if"] or "always",
            "; ".join(one["then"]),
            one["autonomy"],
            duration(one["cool_down_s"]),
            "-" if one["budget"] is None else f"{one['budget']} in {format_duration(one['budget_window_s'])}",
        )
        for one in strategies
    ]
    return Table(("agent", "strategy", "when", "if", "then", "autonomy", "cool-down", "budget"), rows)


def primitives_table(catalogue: Iterable[Primitive]) -> Table:
    rows = [
        (
            one.name,
            one.layer,
            one.kind,
            ", ".join(each.name if each.required else f"[{each.name}]" for each in one.parameters),
            one.what.replace("``", ""),
        )
        for one in catalogue
    ]
    return Table(("primitive", "layer", "kind", "parameters", "what it does"), rows)


def action_status(action: Action) -> str:
    if action.state == "pending":
        return _PENDING.get(action.decision.verdict, "pending")
    return "only observed" if action.state == "observed" else action.state


def action_line(action: Action) -> str:
    """Return one line on an action: id, call, target, status, reason."""
    why = f"by {action.reverted_by}" if action.state == "reverted" else _reason(action)
    call = f"{_call(action.intent)} on {action.intent.target}"
    return f"{action.id}  {call}: {action_status(action)}. {shorten(why)}".rstrip()


def actions_screen(actions: Sequence[Action]) -> Screen:
    if not actions:
        return ["No agent has requested an action yet. See: scanflow agents"]
    rows = [
        (*_who(one), one.intent.primitive, one.intent.target, action_status(one), shorten(_reason(one)))
        for one in actions
    ]
    columns = ("action", "when", "by", "primitive", "on", "status", "reason")
    return [Table(columns, rows), f"Explain one: scanflow why {actions[0].id}"]


def approvals_screen(actions: Sequence[Action]) -> Screen:
    if not actions:
        return ["No action is waiting for approval. See what was done: scanflow why"]
    rows = [
        (*_who(one), shorten(_call(one.intent)), one.intent.target, shorten(one.intent.rule or "always"))
        for one in actions
    ]
    id = actions[0].id
    after = f"Approve: scanflow approve {id}. Refuse: scanflow approve {id} --refuse. Explain: scanflow why {id}"
    told = [(one.id, sentence(one.intent.evidence)) for one in actions]
    evidence = [f"{id}: {text}" for id, text in told if text]
    return [Table(("action", "when", "by", "requests", "on", "rule"), rows), *evidence, after]


def replay_screen(found: Replay) -> Screen:
    """Return a timeline, the decisions that differ from the recorded ones, and a summary."""
    rows = _moment_rows(found.moments, found.trace)
    screen: list[str | Table] = []
    if len(rows) > MAX_MOMENTS:
        screen.append(f"The last {MAX_MOMENTS} of {len(rows):,} moments; all of them: --json")
    if rows:
        screen += [Table(("when", "sensor", "strategy", "rule", "requests", "recorded"), rows[-MAX_MOMENTS:]), ""]
    if found.differences:
        changed = [
            (one.symbol, clock(one.at), one.strategy, shorten(one.before), shorten(one.after))
            for one in found.differences
        ]
        screen += [Table(("", "when", "strategy", "recorded", "now"), changed), ""]
    return [*screen, _summary(len(found.trace.samples), found.strategies, found.differences)]


def agent_row(one: AgentView) -> tuple[str, ...]:
    """Return its name, application, state, since when, and restarts."""
    return (one.name, one.app, one.state, ago(one.started), str(one.restarts))


def _sensors_row(one: AgentView) -> tuple[str, ...]:
    if one.sensors is None:
        return (*agent_row(one), "-", "-", "-", "-")
    last = max((each.last for each in one.sensors if each.last is not None), default=None)
    missed, errors = sum(each.missed for each in one.sensors), sum(each.errors for each in one.sensors)
    return (*agent_row(one), str(len(one.sensors)), ago(last), str(missed), str(errors))


def _sensor_row(one: SensorReport) -> tuple[str, ...]:
    return (
        one.name,
        trigger_text(one.trigger),
        str(one.fired),
        ago(one.last),
        "-" if one.next is None else f"in {format_duration(max(0.0, one.next - time.time()))}",
        str(one.missed),
        str(one.errors),
    )


def _details(kind: str, body: Any) -> str:
    match kind, body:
        case "sample", {"error": str() as error}:
            return f"failed: {error}"
        case "sample", {"value": value, "cause": cause}:
            return f"{shorten(as_json(value))} ({cause})"
        case "intent", {"primitive": primitive, "target": target}:
            call = called(str(primitive), masked(body.get("arguments") or {}))
            return f"{call} on {target}, by the rule: {body.get('rule') or 'always'}"
        case "call", {"agent": agent, "sensor": sensor}:
            return called(f"{agent}.{sensor}", masked(body.get("kwargs") or {}), body.get("args") or ())
        case "decision", {"answer": {"verdict": verdict, "reason": reason}}:
            return f"{verdict}: {reason}"
        case "decision", {"answer": {"sample": sample}}:
            return f"accepted, as the sample {sample}"
        case "missed", {"reason": reason, "count": count}:
            return f"{count} ({reason})"
        case (("error" | "refused"), {"error": str() as error}):
            return error
    return as_json(body)


def _call(intent: Intent) -> str:
    return called(intent.primitive, masked(intent.arguments))


def _who(action: Action) -> tuple[str, str, str]:
    return action.id, ago(action.intent.at), f"{action.intent.agent}/{action.intent.strategy}"


def _reason(action: Action) -> str:
    return action.error if action.error is not None else action.decision.reason


def _moment_rows(moments: Iterable[Moment], trace: Trace) -> list[tuple[str, ...]]:
    recorded = {one.place: one.answers for one in trace.moments}
    return [
        (
            clock(one.at),
            one.sensor,
            one.strategy,
            "-" if one.sensor_error or one.error else "held" if one.held else "no",
            shorten(_request(one)),
            ", ".join(recorded.get(one.place, ())) or "-",
        )
        for one in moments
    ]


def _request(one: Moment) -> str:
    if one.sensor_error:
        return f"the sensor failed: {one.sensor_error}"
    return one.outcome if one.held or one.error else "-"


def _summary(samples: int, strategies: Sequence[str], differences: Sequence[Difference]) -> str:
    head = f"{counted(samples, 'sample')}, {counted(len(strategies), 'strategy')}"
    if not differences:
        return f"{head}: all decisions are as recorded."
    signs = {"+": "added", "-": "removed", "~": "changed"}
    counts = {text: sum(one.symbol == sign for one in differences) for sign, text in signs.items()}
    differ = f"{counted(len(differences), 'decision')} {'differs' if len(differences) == 1 else 'differ'}"
    parts = ", ".join(f"{count} {text}" for text, count in counts.items() if count)
    return f"{head}: {differ} from what was recorded: {parts}."
