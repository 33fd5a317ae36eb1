"""Explain an action: sample, trigger, rule, intent, decision, action, effect; a line or more each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, tzinfo
from typing import Any

from scanflow.agent.agent_records import JSON, Action
from scanflow.agent.formatting import MAX_VALUE_LENGTH, describe_changes
from scanflow.drift.promotion import format_decision
from scanflow.text.printable import make_one_line
from scanflow.text.times import to_datetime
from scanflow_server.arbiter.arbitration import ALLOWED

_NO_RESULT = {
    "pending": "none yet",
    "running": "none yet",
    "failed": "failed: no error was recorded",
    "refused": "none: it was refused",
    "observed": "none: it was only recorded",
}


def explain_action(action: Action, trail: Sequence[tuple[float, str]], *, zone: tzinfo = UTC) -> list[str]:
    """Return the lines; what continues one is indented. Times are in ``zone``."""
    intent, sample = action.intent, action.intent.sample
    lines = []
    if intent.source == "person":
        lines.append(f"request   by {intent.agent} at {_format_time(intent.at, zone)}")
        lines += [f"reason    {intent.arguments['reason']}"] if intent.arguments.get("reason") else []
    elif sample is None:
        lines += ["sample    not recorded", "trigger   not recorded"]
    else:
        shown = sample.value
        if intent.evidence and isinstance(shown, dict):
            shown = {name: value for name, value in shown.items() if name != "evidence"}
        value = f"failed: {sample.error}" if sample.error is not None else _shorten(shown)
        at = _format_time(sample.at, zone)
        lines += [
            f"sample    {sample.sensor} of {sample.agent} at {at}: {value} (in {sample.seconds:.3g} s)",
            f"trigger   {sample.cause}",
        ]
    if text := format_decision(intent.evidence):
        lines.append(f"evidence  {text}")
    arguments = ", ".join(f"{name}={_shorten(value)}" for name, value in sorted(intent.arguments.items()))
    strategy = f"strategy {intent.strategy} of {intent.agent}, priority {intent.priority}, {intent.autonomy}"
    lines += [] if intent.source == "person" else [f"rule      {intent.rule or 'always'}"]
    lines += [
        f"intent    {intent.id}: {intent.primitive}({arguments}) on {intent.target}",
        "          requested by a person: precedes all intents of agents"
        if intent.source == "person"
        else f"          by the {strategy}",
        f"decision  {action.decision.verdict}: {action.decision.reason}",
    ]
    if action.approved_by is not None and not action.decision.reason.startswith("Approved by"):
        why = f": {action.approved_why}" if action.approved_why else ""
        lines.append(f"          approved by {action.approved_by}{why}")
    if action.decision.winner is not None:
        lines.append(f"          conflicts with {action.decision.winner}")
    if action.repeats:
        times = "once more" if action.repeats == 1 else f"{action.repeats} times more"
        what = "the same was decided" if action.repeats_decision else "before that, the same was requested"
        lines.append(f"          {what} {times}, last at {_format_time(action.repeated or 0.0, zone)}")
    began = "" if action.began is None else f", started at {_format_time(action.began, zone)}"
    took = "" if action.began is None or action.ended is None else f", ended after {action.ended - action.began:.3g} s"
    lines.append(f"action    {action.state}{began}{took}")
    lines += [f"          {_format_time(at, zone)} {text}" for at, text in trail]
    lines.append(f"effect    {_describe_effect(action)}")
    return lines


def format_reason(action: Action) -> str:
    """Return in a line why an action was wanted; of one that failed, its error, and of one that is not allowed, why."""
    intent, decision = action.intent, action.decision
    if action.state == "failed" and action.error:
        return action.error
    if intent.evidence:
        return format_decision(intent.evidence)
    if decision.reason != ALLOWED:
        return decision.reason.removesuffix(f" Approve it: scanflow approve {action.id}.")  # pages have a button
    return intent.rule if intent.source == "agent" else str(intent.arguments.get("reason") or "")


def format_request(action: Action, now: Mapping[str, Any]) -> str:
    """Return in a line what an action that waits would change, by which rule, and why it waits.

    ``now``: the present values of its target.
    """
    rule = f"rule: {make_one_line(action.intent.rule, MAX_VALUE_LENGTH)}" if action.intent.rule else ""
    changes = describe_changes(action, now)
    if not changes and (wanted := describe_changes(action)):
        changes = f"nothing to change, as it has {wanted} already"
    return "; ".join(filter(None, (changes, rule, format_reason(action))))


def _describe_effect(action: Action) -> str:
    if action.state == "reverted":
        return f"reverted by {action.reverted_by}"
    if action.error is not None:
        return f"failed: {action.error}" if action.state == "failed" else action.error
    if action.state == "succeeded":
        undone = "" if action.inverse is None else f"; inverse: {action.inverse.primitive}"
        if isinstance(action.result, dict) and (run := action.started_run) is not None:
            now = f", which is {action.result['state']} now" if action.result.get("state") else ""
            return f"started the run {run}{now}{undone}"
        return f"{_shorten(action.result)}{undone}"
    return _NO_RESULT.get(action.state, "none")


def _format_time(at: float, zone: tzinfo) -> str:
    return f"{to_datetime(at).astimezone(zone):%Y-%m-%d %H:%M:%S}{'Z' if zone is UTC else ''}"


def _shorten(value: JSON) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else text[:197] + "..."
