"""The control plane and its events as lines and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from scanflow.agent.records import AgentView
from scanflow.drift.promotion import sentence
from scanflow.masking import masked
from scanflow_client.formatting.agents import agent_row
from scanflow_client.formatting.table import Screen, Table
from scanflow_client.formatting.text import ago, as_json, clock, shorten

if TYPE_CHECKING:
    from scanflow.agent.records import Event
    from scanflow_client.control_plane import DownResult, UpResult


def up_lines(result: UpResult, *, elsewhere: str | None = None) -> list[str]:
    """Return what ``up`` did and what to do next; ``elsewhere``: the server that commands use instead."""
    found = result.up
    lines = [f"The server is {'up' if result.server else 'up already'}: {found.server.url}"]
    if found.tracker is not None:
        lines.append(f"The tracker is {'starting' if result.tracker else 'up already'}: {found.tracker.url}")
    lines += result.notes
    if elsewhere is not None:
        lines.append(f"SCANFLOW_URL names another server, {elsewhere}: commands use that. Unset it to use this one.")
    return [
        *lines,
        "In a browser: its address, and the token of scanflow token show. Status: scanflow status. Stop: scanflow down",
    ]


def down_lines(result: DownResult) -> list[str]:
    nothing = [] if result.stopped or result.left else ["Nothing was up."]
    return [*(f"Stopped {what}." for what in result.stopped), *nothing, *result.left]


def status_screen(found: dict[str, Any]) -> Screen:
    """Return what is up: the server, the tracker, what the server counts, and the agents."""
    if not found["up"]:
        return ["Nothing is up. Start it: scanflow up"]
    server, tracker, status = found["server"], found["tracker"], found["status"] or {}
    since = f", started {ago(status['started'])}" if isinstance(status.get("started"), int | float) else ""
    process = "" if server["pid"] is None else f"  process {server['pid']}"
    screen: list[str | Table] = [f"✓ server   {server['url']}{process}{since}"]
    if not server["ready"]:
        screen = [f"✗ server   {server['url']}{process}  is not ready: {shorten(str(server['reason']))}"]
    screen += [_tracker_line(tracker)] if tracker else []
    screen += [f"  database {status['database']}"] if status.get("database") else []
    counts = [f"{name.replace('_', ' ')}: {count}" for name, count in status.get("counts", {}).items() if count]
    screen += [f"  {', '.join(counts)}"] if counts else []
    rows = [agent_row(AgentView.model_validate(one)) for one in status.get("agents", ())]
    return [*screen, *([Table(("agent", "application", "state", "since", "restarts"), rows)] if rows else [])]


def tokens_table(tokens: Iterable[Mapping[str, Any]]) -> Table:
    times = ("created", "expires", "revoked")
    rows = [
        (
            one["name"],
            str(one.get("role") or ""),
            str(one.get("team") or "all"),
            *("" if one.get(each) is None else clock(one[each]) for each in times),
        )
        for one in tokens
    ]
    return Table(("token", "role", "team", "made", "expires", "revoked"), rows)


def event_line(event: Event) -> str:
    """Return one event on one line: time, type, application, subject, and the evidence in words or the data."""
    evidence = event.data.get("evidence")
    data = sentence(evidence) if isinstance(evidence, dict) else ""
    data = data or (shorten(as_json(masked(event.data))) if event.data else "")
    return f"{clock(event.at)}  {event.type:<18}  {event.app:<12}  {event.subject}  {data}".rstrip()


def _tracker_line(tracker: dict[str, Any]) -> str:
    if tracker["ready"]:
        return f"✓ tracker  {tracker['url']}  process {tracker['pid']}"
    if tracker["alive"]:
        return f"● tracker  {tracker['url']}  process {tracker['pid']}  is starting"
    return f"✗ tracker  {tracker['url']}  has ended. See {tracker['log']!r}, and start it again: scanflow up"
