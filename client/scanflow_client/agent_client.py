"""Select agents by what a person writes, and read an agent's journal from its server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from scanflow.agent.agent_records import AgentView
from scanflow.errors import InvalidError, NotFoundError, UnavailableError, did_you_mean
from scanflow.transport import ServerClient, build_path

PAGE_SIZE = 5000  # entries of a journal in one request


def match_agents(listed: Iterable[Any], target: str | None) -> list[AgentView]:
    """Return all listed agents, or those that match ``APP``, ``AGENT``, ``APP:AGENT`` or ``APP/AGENT``.

    An application of that name comes before an agent.
    """
    agents = [AgentView.model_validate(record) for record in listed]
    if target is None:
        return agents
    app, separator, name = target.replace("/", ":").partition(":")
    if separator:
        matches = [agent for agent in agents if (agent.app, agent.name) == (app, name)]
    else:
        matches = [agent for agent in agents if agent.app == app] or [agent for agent in agents if agent.name == app]
    if not matches:
        names = {name for agent in agents for name in (agent.app, agent.name, agent.full_name)}
        hint = did_you_mean(target, names) if names else " Start agents: scanflow agents --start app.py"
        raise NotFoundError(f"There is no agent, and no application with agents, named {target!r}.{hint}")
    return matches


def require_one_agent(agents: Sequence[AgentView]) -> AgentView:
    if len(agents) > 1:
        raise InvalidError(f"A journal belongs to one agent. Name it: {', '.join(agent.full_name for agent in agents)}")
    return agents[0]


def read_journal(server: ServerClient, agent: AgentView, *, advice: str = "") -> Iterator[dict[str, Any]]:
    """Yield an agent's journal entries, the oldest first. ``advice`` ends the error if the journal is unavailable."""
    path, last_id, size = build_path("agents", agent.app, agent.name, "journal"), 0, PAGE_SIZE
    while size == PAGE_SIZE:
        try:
            entries = server.get(path, after=last_id, limit=PAGE_SIZE)
        except UnavailableError as error:
            raise UnavailableError(f"{error}{advice}") from error
        yield from entries
        size, last_id = len(entries), entries[-1]["id"] if entries else last_id
