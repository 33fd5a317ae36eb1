"""The control plane and its events as lines and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scanflow.agent.agent_records import AgentView
from scanflow.drift.promotion import format_decision
from scanflow.text.masking import mask_secrets
from scanflow.text.printable import make_one_line
from scanflow_client.formatting.agent_text import format_agent_row
from scanflow_client.formatting.text import format_age, format_time, shorten, to_json
from scanflow_client.formatting.text_table import Screen, Table

if TYPE_CHECKING:
    from scanflow.agent.agent_records import Event
    from scanflow_client.control_plane import DownResult, UpResult
    from scanflow_client.control_status import ControlStatus


def format_up(result: UpResult, *, server_url: str | None = None) -> list[str]:
    """Return the outcome of ``scanflow up`` and the next steps; ``elsewhere``: the server that commands use instead."""
    up = result.up
    lines = [f"The server is {'up' if result.server else 'up already'}: {up.server.url}"]
    if up.tracker is not None:
        lines.append(f"The tracker is {'starting' if result.tracker else 'up already'}: {up.tracker.url}")
    lines += result.notes
    if server_url is not None:
        lines.append(f"SCANFLOW_URL names another server, {server_url}: commands use that. Unset it to use this one.")
    return [*lines, "Dashboard: scanflow dashboard. Status: scanflow status. Stop: scanflow down"]


def format_down(result: DownResult) -> list[str]:
    nothing = [] if result.stopped or result.left else ["Nothing was running."]
    return [*(f"Stopped {what}." for what in result.stopped), *nothing, *result.left]


def format_status(state: dict[str, Any]) -> Screen:
    """Return the status of the server and the tracker, the server's counts, and the agents."""
    if not state["up"]:
        return ["The control plane is not running. Start it: scanflow up"]
    server, tracker, status = state["server"], state["tracker"], state["status"] or {}
    since = f", started {format_age(status['started'])}" if isinstance(status.get("started"), int | float) else ""
    process = "" if server["pid"] is None else f"  process {server['pid']}"
    screen: list[str | Table] = [f"✓ server   {server['url']}{process}{since}"]
    if not server["ready"]:
        screen = [f"✗ server   {server['url']}{process}  is not ready: {shorten(str(server['reason']))}"]
    screen += [_format_tracker(tracker)] if tracker else []
    screen += [f"  database {status['database']}"] if status.get("database") else []
    counts = [f"{name.replace('_', ' ')}: {count}" for name, count in status.get("counts", {}).items() if count]
    screen += [f"  {', '.join(counts)}"] if counts else []
    rows = [format_agent_row(AgentView.model_validate(agent)) for agent in status.get("agents", ())]
    return [*screen, *([Table(("agent", "application", "state", "since", "restarts"), rows)] if rows else [])]


def format_server_status(status: ControlStatus) -> Screen:
    """Return the same of a server that answered, by what it says itself."""
    server = {"url": status.url, "pid": status["pid"] or None, "ready": True}
    head, *rest = format_status({"up": True, "server": server, "tracker": None, "status": status})
    address = status["tracker"]["url"]
    return [head, f"✓ tracker  {address}" if address else "✗ tracker  does not run. Start it: scanflow up", *rest]


def format_tokens(tokens: Iterable[Mapping[str, Any]]) -> Table:
    times = ("created", "expires", "revoked")
    rows = [
        (
            token["name"],
            str(token.get("role") or ""),
            str(token.get("team") or "all"),
            *("" if token.get(time) is None else format_time(token[time]) for time in times),
        )
        for token in tokens
    ]
    return Table(("token", "role", "team", "made", "expires", "revoked"), rows)


def format_audit(entries: Iterable[Mapping[str, Any]]) -> Table:
    rows = [
        (
            format_time(entry["at"]),
            entry["who"] or "?",
            entry["role"] or "",
            entry["team"] or "",
            entry["address"],
            str(entry["status"]),
            f"{entry['method']} {entry['path']}",
            shorten(entry["what"]),
        )
        for entry in entries
    ]
    return Table(("when", "who", "role", "team", "from", "status", "request", "what"), rows)


def format_event(event: Event) -> str:
    """Return an event on one line: time, type, application, subject, and the evidence or the data."""
    at, kind, app, subject, data = _format_event_cells(event)
    return f"{at}  {kind:<18}  {app:<12}  {subject}  {data}".rstrip()


def format_events(events: Sequence[Event]) -> Screen:
    if not events:
        return ["No event has been published. See what runs: scanflow status"]
    return [Table(("when", "type", "application", "subject", "what"), [*map(_format_event_cells, events)])]


def _format_event_cells(event: Event) -> tuple[str, str, str, str, str]:
    evidence = event.data.get("evidence")
    data = format_decision(evidence) if isinstance(evidence, dict) else ""
    data = data or (shorten(to_json(mask_secrets(_name_parts(event.data)))) if event.data else "")
    kind, app, subject = map(make_one_line, (event.type, event.app, event.subject))
    return format_time(event.at), kind, app, subject, data


def _name_parts(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return data with lists of named parts, such as the columns of a detection, as their names, and first."""
    names = {
        key: [part["name"] for part in value]
        for key, value in data.items()
        if isinstance(value, list) and value and all(isinstance(part, dict) and "name" in part for part in value)
    }
    return {**names, **{key: value for key, value in data.items() if key not in names}}


def _format_tracker(tracker: dict[str, Any]) -> str:
    if tracker["ready"]:
        return f"✓ tracker  {tracker['url']}  process {tracker['pid']}"
    if tracker["alive"]:
        return f"● tracker  {tracker['url']}  process {tracker['pid']}  is starting"
    return f"✗ tracker  {tracker['url']}  has ended. See {tracker['log']!r}, and start it again: scanflow up"
