"""The messages that webhooks get about events, in one line for a chat. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scanflow.agent.agent_records import Action, Event
from scanflow.app.webhook import News
from scanflow.drift.promotion import format_decision

_MAX_TEXT_LENGTH = 3000
_MAX_DATA_BYTES = 256 * 1024
_MAX_NAMED = 5

TYPES: Mapping[News, tuple[str, ...]] = {
    "approval": ("intent",),
    "drift": ("drift.found",),
    "run_failed": ("run.failed",),
    "promoted": ("model.promoted",),
    "reverted": ("model.rejected", "action.reverted"),
}
"""The event types of each kind of news."""


def is_news(event: Event) -> bool:
    """Whether an event of these types is sent: of intents only those that wait for approval."""
    return event.type != "intent" or event.data.get("verdict") == "approve"


def build_body(event: Event, action: Action | None, *, url: str) -> bytes:
    """Return the message: ``text``, escaped for Slack; the event; and the evidence, if any.

    ``action``: the event's action, if it has one. ``url``: the server's address.
    """
    evidence = _get_evidence(event, action)
    command = f"Approve: scanflow approve {event.data.get('id')}" if event.type == "intent" else ""
    parts = [_format_line(event, url), format_decision(evidence) if evidence else "", command]
    text = ". ".join(part.rstrip(".") for part in parts if part)
    whole = event.model_dump(mode="json")
    if len(json.dumps(whole)) > _MAX_DATA_BYTES:
        whole["data"] = {"left_out": f"more than {_MAX_DATA_BYTES} bytes"}
    about = {"text": _escape(f"[{event.app}] {text}"[:_MAX_TEXT_LENGTH]), "event": whole}
    return json.dumps(about | ({"evidence": evidence} if evidence else {})).encode()


def _get_evidence(event: Event, action: Action | None) -> dict[str, Any]:
    own = event.data.get("evidence")
    return own if isinstance(own, dict) else {} if action is None else action.intent.evidence


def _format_line(event: Event, url: str) -> str:
    data, name = event.data, event.subject.partition("/")[2]
    match event.type:
        case "intent":
            return f"{data.get('agent')} requests {data.get('primitive')} on {event.subject}, which needs approval"
        case "drift.found":
            columns = _format_columns(data.get("columns"))
            text = f"Drift{f' in {columns}' if columns else ''} (run {data.get('run')})"
            picked = data.get("picked")
            return text + (f"; {picked} samples are waiting for labels: {url}/labels" if picked else "")
        case "run.failed":
            why = str(data.get("error") or "no reason was recorded").rstrip(".")
            return f"The run {name} of {data.get('workflow')} failed: {why}. See: scanflow show {name}"
        case "model.promoted":
            before = f", instead of version {data['before']}" if data.get("before") is not None else ""
            return f"Version {data.get('version')} of {name} is in use{before}"
        case "model.rejected":
            return f"Version {data.get('version')} of {name} is rejected: {data.get('why')}"
        case _:
            return f"{data.get('primitive')} on {event.subject} was reverted. See: scanflow why {data.get('id')}"


def _format_columns(columns: Any) -> str:
    names = (
        [column.get("name") if isinstance(column, dict) else column for column in columns]
        if isinstance(columns, list)
        else []
    )
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(f"`{name}`" for name in names[:_MAX_NAMED]) + more


def _escape(text: str) -> str:
    # The output of a failed step must not mention everybody in a channel.
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
