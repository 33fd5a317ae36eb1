"""The agents' HTTP APIs: which agents there are, the status of their sensors, and their journals."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from scanflow.agent.records import AgentView, SensorReport
from scanflow.errors import InvalidError, NotFoundError, ScanflowError, UnavailableError, did_you_mean
from scanflow.settings import Settings
from scanflow.transport import async_client

SENSORS_TIMEOUT_S = 3.0  # the longest that an agent may take to report them; the others are listed all the same
JOURNAL_TIMEOUT_S = 30.0  # the longest that it may take to send a page of its journal
PAGE = 5000  # entries of a journal that are requested at once


class AgentStatus(AgentView):
    """An agent with what it reports of its sensors itself."""

    sensors: tuple[SensorReport, ...] | None = None
    """None: it was not asked or did not answer."""

    problem: str | None = None
    """Why it did not answer."""


def meant(listed: Iterable[Any], target: str | None) -> list[AgentStatus]:
    """Return the listed agents, or those that ``APP``, ``AGENT``, ``APP:AGENT`` or ``APP/AGENT`` means.

    An application of that name comes before an agent.
    """
    every = [AgentStatus.model_validate(one) for one in listed]
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


def one_of(found: Sequence[AgentStatus]) -> AgentStatus:
    if len(found) > 1:
        raise InvalidError(f"A journal is one agent's. Say which: {', '.join(one.full_name for one in found)}")
    return found[0]


def with_sensors(found: Sequence[AgentStatus]) -> list[AgentStatus]:
    """Return the agents with the status of their sensors, as far as they answer."""
    answers = iter(_get([(one.url, "/sensors") for one in found if one.url is not None]))
    return [one if one.url is None else _with_answer(one, next(answers)) for one in found]


def _with_answer(agent: AgentStatus, answer: Any) -> AgentStatus:
    told = {"problem": str(answer)} if isinstance(answer, ScanflowError) else {"sensors": answer}
    return AgentStatus.model_validate(agent.model_dump() | told)


def entries_of(agent: AgentStatus, *, also: str = "") -> Iterator[dict[str, Any]]:
    """Yield the entries of an agent's journal, the oldest first. ``also``: advice for when it is not running."""
    if agent.url is None:
        raise UnavailableError(
            f"The agent {agent.full_name} is {agent.state}, so its journal cannot be read. Start it: scanflow "
            f"agents --start app.py:{agent.name}{also}"
        )
    after, page = 0, PAGE
    while page == PAGE:
        (answer,) = _get([(agent.url, f"/journal?after={after}&limit={PAGE}")], timeout_s=JOURNAL_TIMEOUT_S)
        if isinstance(answer, Exception):
            raise answer
        yield from answer
        page, after = len(answer), answer[-1]["id"] if answer else after


def _get(places: Sequence[tuple[str, str]], *, timeout_s: float = SENSORS_TIMEOUT_S) -> list[Any]:
    """Return the answer of each address and path, or the error in its place; all are asked at once."""
    settings = Settings.from_environment()

    async def get(url: str, path: str) -> Any:
        client = async_client.AsyncClient(url, token=settings.token_for(url), timeout_s=timeout_s)
        try:
            return await client.ask("GET", path)
        except ScanflowError as error:
            return error
        finally:
            await client.close()

    async def get_all() -> list[Any]:
        return await asyncio.gather(*(get(url, path) for url, path in places))

    if not places:
        return []
    with ThreadPoolExecutor(1) as thread:  # a notebook runs an event loop in this one
        return thread.submit(asyncio.run, get_all()).result()
