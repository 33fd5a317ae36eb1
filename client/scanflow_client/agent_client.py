"""Which agents are meant by what a person writes, and an agent's journal, as its server reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from scanflow.agent.records import AgentView
from scanflow.errors import InvalidError, NotFoundError, UnavailableError, did_you_mean
from scanflow.transport import ServerClient, path_of

PAGE = 5000  # entries of a journal that are requested at once


def meant(listed: Iterable[Any], target: str | None) -> list[AgentView]:
    """Return the listed agents, or those that ``APP``, ``AGENT``, ``APP:AGENT`` or ``APP/AGENT`` means.

    An application of that name comes before an agent.
    """
    every = [AgentView.model_validate(one) for one in listed]
    if target is None:
        return every
    app, separator, name = target.replace("/", ":").partition(":")
    if separator:
        found = [one for one in every if (one.app, one.name) == (app, name)]
    else:
        found = [one for one in every if one.app == app] or [one for one in every if one.name == app]
    if not found:
        names = {name for one in every for name in (one.app, one.name, one.full_name)}
        hint = did_you_mean(target, names) if names else " None was ever started: scanflow agents --start app.py"
        raise NotFoundError(f"There is no agent, and no application with agents, {target!r}.{hint}")
    return found


def one_of(found: Sequence[AgentView]) -> AgentView:
    if len(found) > 1:
        raise InvalidError(f"A journal is one agent's. Say which: {', '.join(one.full_name for one in found)}")
    return found[0]


def entries_of(server: ServerClient, agent: AgentView, *, also: str = "") -> Iterator[dict[str, Any]]:
    """Yield the entries of an agent's journal, the oldest first. ``also``: advice for when it cannot be read."""
    path, after, page = path_of("agents", agent.app, agent.name, "journal"), 0, PAGE
    while page == PAGE:
        try:
            answer = server.get(path, after=after, limit=PAGE)
        except UnavailableError as error:
            raise UnavailableError(f"{error}{also}") from error
        yield from answer
        page, after = len(answer), answer[-1]["id"] if answer else after
