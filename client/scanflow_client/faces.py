"""Agents asked at their own addresses: which are meant, how their sensors fare, and what their journals hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from scanflow.errors import InvalidError, NotFoundError, ScanflowError, UnavailableError, did_you_mean
from scanflow.transport import async_json, path_of
from scanflow_client.agent_words import AgentTold, chosen

if TYPE_CHECKING:
    from scanflow.transport import Server

__all__ = ["entries_of", "known", "one_of", "with_sensors"]

FACE_TIMEOUT_S = 3.0
"""So long an agent may take to tell of its sensors; the others are told of all the same."""

JOURNAL_TIMEOUT_S = 30.0
"""So long it may take to tell a page of its journal."""

PAGE = 5000
"""So many entries of a journal are asked for at once."""


def known(where: Server, target: str | None) -> list[AgentTold]:
    """Return the agents that the server knows, or those of them that are meant.

    Raises:
        NotFoundError: there is none of that name.
    """
    every = [AgentTold.model_validate(one) for one in where.get(path_of("agents"))]
    if target is None:
        return every
    found = chosen(every, target)
    if not found:
        names = {name for one in every for name in (one.app, one.name, one.full_name)}
        hint = did_you_mean(target, names) if names else " None was ever started: scanflow agents --start app.py"
        raise NotFoundError(f"There is no agent, and no application with agents, {target!r}.{hint}")
    return found


def one_of(found: Sequence[AgentTold]) -> AgentTold:
    """Return the one agent that is meant, since a journal is one's.

    Raises:
        InvalidError: several are.
    """
    if len(found) > 1:
        raise InvalidError(f"A journal is one agent's. Say which: {', '.join(one.full_name for one in found)}")
    return found[0]


def with_sensors(found: Sequence[AgentTold]) -> list[AgentTold]:
    """Ask every agent that is there how its sensors fare."""
    answers = _ask([(one.url, "/sensors") for one in found if one.url is not None])
    told = []
    for one in found:
        answer = None if one.url is None else answers.pop(0)
        if isinstance(answer, ScanflowError):
            told.append(one.model_copy(update={"problem": str(answer)}))
        elif answer is None:
            told.append(one)
        else:
            told.append(AgentTold.model_validate({**one.model_dump(), "sensors": answer}))
    return told


def entries_of(agent: AgentTold, *, also: str = "") -> Iterator[dict[str, Any]]:
    """Yield an agent's journal, the oldest entry first. ``also``: what else can be done where it is not there.

    Raises:
        UnavailableError: it is not there, or does not answer.
    """
    if agent.url is None:
        raise UnavailableError(
            f"The agent {agent.full_name} is {agent.state}, so it cannot be asked for its journal. Start it: scanflow "
            f"agents --start app.py:{agent.name}{also}"
        )
    after, page = 0, PAGE
    while page == PAGE:  # it tells from the oldest on
        asked = (agent.url, f"/journal?after={after}&limit={PAGE}")
        (answer,) = _ask([asked], timeout_s=JOURNAL_TIMEOUT_S)
        if isinstance(answer, Exception):
            raise answer
        yield from answer
        page, after = len(answer), answer[-1]["id"] if answer else after


def _ask(asked: Sequence[tuple[str, str]], *, timeout_s: float = FACE_TIMEOUT_S) -> list[Any]:
    """Ask agents at their own addresses, all at once; an answer, or the error in its place."""

    async def ask(url: str, path: str) -> Any:
        face = async_json.AsyncJson(url, timeout_s=timeout_s)  # without the server's token, which is not theirs to know
        try:
            return await face.ask("GET", path)
        except ScanflowError as error:
            return error
        finally:
            await face.close()

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*(ask(url, path) for url, path in asked))

    return asyncio.run(ask_all()) if asked else []
