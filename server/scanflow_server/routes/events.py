"""What happened: listed, streamed, and told by others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Query, Request
from fastapi.responses import Response
from pydantic import Field, TypeAdapter
from starlette.concurrency import run_in_threadpool

from scanflow.agent.records import Event
from scanflow.errors import InvalidError
from scanflow_server.access import TokenHolder
from scanflow_server.auth import Proposer, Reader
from scanflow_server.bodies import check_text
from scanflow_server.context import Given, ServerContext
from scanflow_server.problems import PROBLEMS
from scanflow_server.progress_events import number_of
from scanflow_server.store import events as event_store
from scanflow_server.store import pruning
from scanflow_server.streams import event, events_response

router = APIRouter(prefix="/events", tags=["events"], responses=PROBLEMS)

_LISTED: TypeAdapter[list[Event]] = TypeAdapter(list[Event])
_MOST = 10_000
_LONGEST = 128
_BLOCK = 100
_MOST_TYPES = 50
_QUIET_S, _OWN_QUIET_S = 5.0, 60.0
"""How long to wait for a change: one that another server makes in the same database is not notified here. And the same
where the database is this server's own."""

GONE = "Scanflow-Events-Gone"
"""The header of a list that says up to which number events are gone, where the list should begin before it."""

SEEN = "events.seen"
"""The name under which a stream tells the newest event of all where none of the wanted kind came for a while."""

_SEEN_S = 5.0

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
        "headers": {GONE: {"description": "Events up to this number are gone.", "schema": {"type": "integer"}}},
    }
}

Number = Annotated[int, Query(ge=0, le=2**53)]
Word = Annotated[str | None, Query(max_length=_LONGEST, pattern=r"^[!-~]+$")]
Words = Annotated[
    list[Annotated[str, Field(max_length=_LONGEST, pattern=r"^[!-~]+$")]] | None, Query(max_length=_MOST_TYPES)
]


@router.get("", responses=_STREAM, response_model=list[Event])
async def events(
    context: Given,
    caller: Reader,
    request: Request,
    after: Number = 0,
    type: Words = None,
    app: Word = None,
    limit: Annotated[int, Query(ge=1, le=_MOST)] = 100,
    seen: bool = False,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
) -> Response:
    """List what happened after the event of that number, or stream it to who accepts ``text/event-stream``.

    ``type`` may end in ``*``: all types that begin so; given several times, an event is of one of them. With ``seen`` a
    stream tells now and then, as ``events.seen``, the newest event of all, where none of those up to it was wanted.

    Old events are forgotten. Whoever asks for what came after one of those is told up to which number they are gone: by
    the header ``Scanflow-Events-Gone``, or in a stream, whatever the ``type``, by an event ``events.gone`` of that
    number.
    """
    if "text/event-stream" in request.headers.get("accept", ""):
        known = min(number_of(last_event_id), 2**53)
        return events_response(context.streams, _stream(context, caller, max(after, known), type, app, seen=seen))

    def listed() -> tuple[bytes, int]:
        with context.store.read() as connection:
            found = event_store.list_after(connection, after, type=type, app=app, team=caller.team, limit=limit)
            return _LISTED.dump_json(found), pruning.get_last_forgotten_event(connection)

    text, gone = await run_in_threadpool(listed)
    return Response(text, media_type="application/json", headers={GONE: str(gone)} if after < gone else None)


@router.get("/newest")
def newest(context: Given, caller: Reader) -> Event | None:
    """Show the newest event; null where there is none."""
    with context.store.read() as connection:
        return event_store.get_newest_event(connection, team=caller.team)


@router.post("", status_code=201)
def tell(context: Given, caller: Proposer, happened: Annotated[list[Event], Body(max_length=_MOST)]) -> list[Event]:
    """Tell what happened; the answer has the numbers under which it is listed.

    It is the team's whose the token is, else the team's that alone has an application of that name; else only who sees
    all teams' things sees it.
    """
    for one in happened:
        check_text([one.type, one.app, one.subject, one.data])
        if not one.type or len(one.type) > _LONGEST or len(one.app) > _LONGEST:
            raise InvalidError(f"The type {one.type!r:.60} of an event has to have 1 to {_LONGEST} characters.")
    with context.store.write() as connection:
        return event_store.append(connection, happened, team=caller.team)


async def _stream(
    context: ServerContext, caller: TokenHolder, after: int, types: list[str] | None, app: str | None, *, seen: bool
) -> AsyncIterator[bytes]:
    team = caller.team

    def look(number: int) -> tuple[int, list[Event], int]:
        with context.store.read() as connection:
            # The newest is asked for first: what is listed in between is then found now, or comes after it.
            newest = event_store.get_newest_id(connection, team=team)
            if newest <= number:
                return number, [], 0  # somebody has changed something else, which is what happens most often
            found = event_store.list_after(connection, number, type=types, app=app, team=team, limit=_BLOCK)
            return newest, found, pruning.get_last_forgotten_event(connection)

    def numbered(number: int) -> list[Event]:
        with context.store.read() as connection:
            return [
                one for one in event_store.list_after(connection, number - 1, team=team, limit=1) if one.id == number
            ]

    loop, quiet_s = asyncio.get_running_loop(), _QUIET_S if context.store.file is None else _OWN_QUIET_S
    told, told_at = after, loop.time()
    while True:
        since = context.news.changes
        newest, found, gone = await run_in_threadpool(look, after)
        if after < gone:
            lost = Event(id=gone, at=context.clock(), type="events.gone", data={"after": after, "until": gone})
            after, found = gone, [one for one in found if one.id > gone]
            yield event(lost.model_dump_json(), name=lost.type, id=str(gone))
        for one in found:
            after = told = one.id
            yield event(one.model_dump_json(), name=one.type, id=str(one.id))
        if found:
            continue
        after = max(after, newest)  # so that events which were looked at are not told as gone when they are forgotten
        if seen and after > told and loop.time() - told_at >= _SEEN_S:
            told, told_at = after, loop.time()
            for one in await run_in_threadpool(numbered, after):
                yield event(one.model_dump_json(), name=SEEN, id=str(one.id))
        await context.news.wait_async(since, _SEEN_S if seen and after > told else quiet_s)
