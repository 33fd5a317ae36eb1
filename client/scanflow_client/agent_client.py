"""Which agents are meant by what a person writes, and an agent's journal, by its HTTP API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from scanflow.agent.records import AgentView
from scanflow.errors import InvalidError, NotFoundError, UnavailableError, did_you_mean
from scanflow.settings import Settings
from scanflow.transport.clients import is_loopback, reply_of

JOURNAL_TIMEOUT_S = 30.0  # the longest that it may take to send a page of its journal
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


def entries_of(agent: AgentView, *, also: str = "") -> Iterator[dict[str, Any]]:
    """Yield the entries of an agent's journal, the oldest first. ``also``: advice for when it is not running."""
    if agent.url is None:
        raise UnavailableError(
            f"The agent {agent.full_name} is {agent.state}, so its journal cannot be read. Start it: scanflow "
            f"agents --start app.py:{agent.name}{also}"
        )
    after, page = 0, PAGE
    while page == PAGE:
        answer = _get(agent.url, f"/journal?after={after}&limit={PAGE}")
        yield from answer
        page, after = len(answer), answer[-1]["id"] if answer else after


def _get(url: str, path: str) -> Any:
    if not is_loopback(url):  # whoever says so, is sent no token of ours
        raise UnavailableError(f"It is not on this machine, but at {url}, which takes only its own team's agents.")
    token = Settings.from_environment().token_for(url)
    return reply_of(url, path, token=token, timeout_s=JOURNAL_TIMEOUT_S)
