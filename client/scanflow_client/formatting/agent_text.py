"""Agents, their strategies, actions and replays, as lines and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scanflow.agent.agent_records import Action, AgentView, Intent, SensorReport
from scanflow.agent.formatting import describe_entry, format_call
from scanflow.agent.trigger_text import format_trigger
from scanflow.app.quantities import format_count, format_duration
from scanflow.drift.promotion import format_decision
from scanflow.text.masking import mask_secrets
from scanflow_client.formatting.text import format_age, format_seconds, format_time, format_wait, shorten
from scanflow_client.formatting.text_table import Screen, Table

if TYPE_CHECKING:
    from scanflow.agent.primitive_model import Primitive
    from scanflow.agent.replay import Difference, StrategyEvaluation, Trace
    from scanflow_client.agent_replay import Replay

_PENDING = {"act": "about to start", "approve": "waiting for approval", "queue": "queued", "suggest": "suggested"}
MAX_MOMENTS = 200  # a replay prints the newest only


def format_agents(agents: Sequence[AgentView], *, detailed: bool) -> Screen:
    """Return a table of agents, with ``detailed`` a table of each one's sensors, and their errors."""
    if not agents:
        return ["No agents. Start an application's: scanflow agents --start app.py"]
    heads = ("agent", "application", "state", "since", "restarts", "sensors", "last firing", "missed", "errors")
    screen: list[str | Table] = [Table(heads, [_format_agent_sensors(agent) for agent in agents])]
    columns = ("sensor", "fires", "fired", "last", "next", "missed", "errors")
    for agent in agents if detailed else ():
        if agent.sensors:
            rows = [_format_sensor(sensor) for sensor in agent.sensors]
            screen += ["", f"{agent.full_name}, at {agent.url}", Table(columns, rows)]
    for agent in agents:
        screen += [f"{agent.full_name} fails: {agent.error}"] if agent.error is not None else []
    return screen if detailed else [*screen, f"Show one: scanflow agents {agents[0].full_name}"]


def format_journal(entries: Iterable[Mapping[str, Any]], agent: str) -> list[str]:
    """Return each entry of an agent's journal on one line: time, kind, sensor or strategy, details."""
    lines = []
    for entry in entries:
        kind = str(entry["kind"])
        details = shorten(describe_entry(kind, entry["body"]))
        lines.append(f"{format_time(entry['at'])}  {kind:<8}  {entry['subject']}  {details}".rstrip())
    return lines or [f"The journal is empty. See when its sensors fire: scanflow agents {agent}"]


def format_strategies(strategies: Iterable[Mapping[str, Any]], *, application: str) -> list[str]:
    """Return each strategy of an application's agents as a few lines: its limits, and what it does when and if."""
    lines: list[str] = []
    for strategy in strategies:
        limits = [strategy["autonomy"]]
        if strategy["cool_down_s"]:
            limits.append(f"cool-down {format_seconds(strategy['cool_down_s'])}")
        if strategy["budget"] is not None:
            limits.append(f"budget {strategy['budget']} in {format_duration(strategy['budget_window_s'])}")
        lines += [
            f"{strategy['agent']}: {strategy['name']} ({', '.join(limits)})",
            f"  when  {strategy['sensor']} ({format_trigger(strategy['when'])})",
            f"  if    {strategy['if'] or 'always'}",
            *(f"  {'then' if number == 0 else '    '}  {call}" for number, call in enumerate(strategy["then"])),
        ]
    return lines or [f"The agents of {application!r} declare no strategy: they only sense."]


def format_primitives(catalogue: Iterable[Primitive]) -> Table:
    rows = [
        (
            primitive.name,
            primitive.layer,
            primitive.kind,
            ", ".join(
                parameter.name if parameter.required else f"[{parameter.name}]" for parameter in primitive.parameters
            ),
            primitive.what.replace("``", ""),
        )
        for primitive in catalogue
    ]
    return Table(("primitive", "layer", "kind", "parameters", "what it does"), rows)


def describe_status(action: Action) -> str:
    if action.state == "pending":
        return _PENDING.get(action.decision.verdict, "pending")
    if (run := action.started_run) is not None:
        return f"started {run}"
    return "only observed" if action.state == "observed" else action.state


def format_action(action: Action) -> str:
    """Return an action on one line: id, call, target, status, reason."""
    call = f"{_format_call(action.intent)} on {action.intent.target}"
    if action.state == "reverted":
        return f"{action.id}  {call}: reverted by {action.reverted_by}."
    return f"{action.id}  {call}: {describe_status(action)}. {shorten(_choose_reason(action))}".rstrip()


def format_actions(actions: Sequence[Action]) -> Screen:
    if not actions:
        return ["No agent has requested an action yet. See: scanflow agents"]
    rows = [
        (
            *_format_origin(action),
            action.intent.primitive,
            action.intent.target,
            describe_status(action),
            shorten(_choose_reason(action)),
        )
        for action in actions
    ]
    columns = ("action", "when", "by", "primitive", "on", "status", "reason")
    return [Table(columns, rows), f"Explain one: scanflow why {actions[0].id}"]


def format_approvals(actions: Sequence[Action]) -> Screen:
    if not actions:
        return ["No action is waiting for approval. See what was done: scanflow why"]
    rows = [
        (
            *_format_origin(action),
            shorten(_format_call(action.intent)),
            action.intent.target,
            shorten(action.intent.rule or "always"),
        )
        for action in actions
    ]
    id = actions[0].id
    after = f"Approve: scanflow approve {id}. Refuse: scanflow approve {id} --refuse. Explain: scanflow why {id}"
    sentences = [
        (action.id, text)
        for action in actions
        for text in (format_decision(action.intent.evidence), action.decision.reason)
    ]
    reasons = [f"{id}: {text}" for id, text in sentences if text]
    return [Table(("action", "when", "by", "requests", "on", "rule"), rows), *reasons, after]


def format_replay(replay: Replay) -> Screen:
    """Return a timeline with the recorded verdicts, the requests that differ from the recorded ones, and a summary."""
    rows = _format_moments(replay.moments, replay.trace)
    screen: list[str | Table] = []
    if len(rows) > MAX_MOMENTS:
        screen.append(f"The last {MAX_MOMENTS} of {len(rows):,} moments; all of them: --json")
    if rows:
        screen += [Table(("when", "sensor", "strategy", "rule", "requests", "verdict"), rows[-MAX_MOMENTS:]), ""]
    if replay.differences:
        changed = [
            (
                difference.symbol,
                format_time(difference.at),
                difference.strategy,
                shorten(difference.before),
                shorten(difference.after),
            )
            for difference in replay.differences
        ]
        screen += [Table(("", "when", "strategy", "recorded", "now"), changed), ""]
    not_called = dict.fromkeys(text for moment in replay.moments for text in moment.not_called)
    screen += [f"Not called, as it does something itself: {text}" for text in not_called]
    return [*screen, _summarize_differences(len(replay.trace.samples), replay.strategies, replay.differences)]


def format_agent_row(agent: AgentView) -> tuple[str, ...]:
    """Return an agent's name, application, state, age and restarts."""
    return (agent.name, agent.app, agent.state, format_age(agent.started), str(agent.restarts))


def _format_agent_sensors(agent: AgentView) -> tuple[str, ...]:
    if agent.sensors is None:
        return (*format_agent_row(agent), "-", "-", "-", "-")
    last = max((sensor.last for sensor in agent.sensors if sensor.last is not None), default=None)
    missed, errors = sum(sensor.missed for sensor in agent.sensors), sum(sensor.errors for sensor in agent.sensors)
    return (*format_agent_row(agent), str(len(agent.sensors)), format_age(last), str(missed), str(errors))


def _format_sensor(sensor: SensorReport) -> tuple[str, ...]:
    return (
        sensor.name,
        format_trigger(sensor.trigger),
        str(sensor.fired),
        format_age(sensor.last),
        "-" if sensor.next is None else format_wait(sensor.next),
        str(sensor.missed),
        str(sensor.errors),
    )


def _format_call(intent: Intent) -> str:
    return format_call(intent.primitive, mask_secrets(intent.arguments))


def _format_origin(action: Action) -> tuple[str, str, str]:
    return action.id, format_age(action.intent.at), f"{action.intent.agent}/{action.intent.strategy}"


def _choose_reason(action: Action) -> str:
    reason = action.error if action.error is not None else _describe_command(action) or action.decision.reason
    return f"({action.repeats + 1} times) {reason}" if action.repeats and action.repeats_decision else reason


def _describe_command(action: Action) -> str:
    """Return what a person's command put in use, and why: ``models:/cnn/3: the audit says``; empty: neither."""
    if action.intent.source != "person" or action.state not in {"running", "succeeded"}:
        return ""
    asked, result = action.intent.arguments, action.result
    models = result.get("models") if isinstance(result, Mapping) else None
    served = ", ".join(map(str, models.values())) if isinstance(models, Mapping) else ""
    if asked.get("model"):
        version = f"{asked['model']} as a canary" if asked.get("weight") or asked.get("shadow") else str(asked["model"])
    elif asked.get("rollback"):
        version = f"rollback to {served}" if served else "rollback"
    else:
        version = served if asked.get("promote") or action.intent.primitive == "deploy" else ""
    return ": ".join(part for part in (version, str(asked.get("reason") or "")) if part)


def _format_moments(moments: Iterable[StrategyEvaluation], trace: Trace) -> list[tuple[str, ...]]:
    recorded = {moment.place: moment.verdicts for moment in trace.moments}
    return [
        (
            format_time(moment.at),
            moment.sensor,
            moment.strategy,
            "-" if moment.sensor_error or moment.error else "held" if moment.held else "no",
            shorten(_format_request(moment)),
            ", ".join(recorded.get(moment.place, ())) or "-",
        )
        for moment in moments
    ]


def _format_request(moment: StrategyEvaluation) -> str:
    if moment.sensor_error:
        return f"the sensor failed: {moment.sensor_error}"
    return moment.outcome if moment.held or moment.error else "-"


def _summarize_differences(samples: int, strategies: Sequence[str], differences: Sequence[Difference]) -> str:
    head = f"{format_count(samples, 'sample')}, {format_count(len(strategies), 'strategy')}"
    if not differences:
        return f"{head}: all requests are as recorded."
    signs = {"+": "added", "-": "removed", "~": "changed"}
    counts = {text: sum(difference.symbol == sign for difference in differences) for sign, text in signs.items()}
    differ = f"{format_count(len(differences), 'request')} {'differs' if len(differences) == 1 else 'differ'}"
    parts = ", ".join(f"{count} {text}" for text, count in counts.items() if count)
    return f"{head}: {differ} from what was recorded: {parts}."
