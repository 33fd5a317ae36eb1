"""How the control plane is told to people, as plain lines. Pure."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from scanflow_client.words import ago

if TYPE_CHECKING:
    from scanflow.agent.records import Event
    from scanflow_client.plane import Down, Raised

__all__ = ["agent_rows", "down_lines", "event_line", "raised_lines", "status_lines"]

_MOST_SHOWN = 160


def raised_lines(raised: Raised, *, elsewhere: str | None = None) -> list[str]:
    """Return what ``up`` did, and what to do next; ``elsewhere``: the server that commands speak to instead."""
    found = raised.up
    lines = [f"The server is {'up' if raised.server else 'up already'}: {found.server.url}"]
    if found.tracker is not None:
        lines.append(f"The tracker {'follows in some seconds' if raised.tracker else 'is up too'}: {found.tracker.url}")
    lines += raised.notes
    if elsewhere is not None:
        lines.append(
            f"SCANFLOW_URL names another server, {elsewhere}, and commands go there. Unset it to use this one."
        )
    return [*lines, "Look at it: scanflow status. Stop it: scanflow down"]


def down_lines(done: Down) -> list[str]:
    """Return what ``down`` did, and what goes on."""
    nothing = [] if done.stopped or done.left else ["Nothing was up."]
    return [*(f"Stopped {what}." for what in done.stopped), *nothing, *done.left]


def status_lines(told: dict[str, Any]) -> list[str]:
    """Return what is up."""
    if not told["up"]:
        return ["Nothing is up. Start it: scanflow up"]
    server, tracker, status = told["server"], told["tracker"], told["status"] or {}
    since = f", started {ago(status['started'])}" if isinstance(status.get("started"), int | float) else ""
    process = "" if server["pid"] is None else f"  process {server['pid']}"
    if server["ready"]:
        lines = [f"✓ server   {server['url']}{process}{since}"]
    else:
        lines = [f"✗ server   {server['url']}{process}  is not ready: {_short(str(server['reason']))}"]
    lines += [_tracker_line(tracker)] if tracker else []
    if status.get("database"):
        lines.append(f"  database {status['database']}")
    if counts := {name.replace("_", " "): count for name, count in status.get("counts", {}).items() if count}:
        lines.append("  " + ", ".join(f"{name}: {count}" for name, count in counts.items()))
    return lines


def agent_rows(told: dict[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """Return a row for each agent."""
    return [
        (
            str(agent.get("name", "")),
            str(agent.get("app", "")),
            str(agent.get("state", "")),
            ago(agent["started"]) if isinstance(agent.get("started"), int | float) else "",
            str(agent.get("restarts", 0)),
        )
        for agent in (told["status"] or {}).get("agents", ())
    ]


def event_line(event: Event) -> str:
    """Return one event as a line: when, what, of what, and its details."""
    at = datetime.fromtimestamp(event.at).astimezone()
    data = _short(json.dumps(event.data, ensure_ascii=False)) if event.data else ""
    return f"{at:%Y-%m-%d %H:%M:%S}  {event.type:<18}  {event.app:<12}  {event.subject}  {data}".rstrip()


def _tracker_line(tracker: dict[str, Any]) -> str:
    if tracker["ready"]:
        return f"✓ tracker  {tracker['url']}  process {tracker['pid']}"
    if tracker["alive"]:
        return f"● tracker  {tracker['url']}  process {tracker['pid']}  is starting"
    return f"✗ tracker  {tracker['url']}  has ended. See {tracker['log']!r}, and start it again: scanflow up"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_SHOWN else line[: _MOST_SHOWN - 1] + "…"
