"""Routes of events: list, stream and record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Query, Request
from fastapi.responses import Response
from pydantic import Field, TypeAdapter
from starlette.concurrency import run_in_threadpool

from scanflow.agent.agent_records import Event
from scanflow.errors import InvalidError, TooLargeError
from scanflow.http.body_limits import MAX_EVENT_BYTES, format_size
from scanflow_server.api_route import ApiRoute
from scanflow_server.auth import Proposer, Reader
from scanflow_server.bodies import check_line, check_text, check_time
from scanflow_server.progress_events import parse_event_number
from scanflow_server.request_problems import PROBLEMS
from scanflow_server.server_context import ContextDep, ServerContext
from scanflow_server.store import event_store, pruning
from scanflow_server.streams import format_event, make_events_response
from scanflow_server.token_roles import TokenHolder

router = APIRouter(prefix="/events", tags=["events"], responses=PROBLEMS, route_class=ApiRoute)

_EVENT_LIST: TypeAdapter[list[Event]] = TypeAdapter(list[Event])
_MAX_EVENTS = 10_000
_MAX_LENGTH = 128
_BLOCK = 100
_MAX_TYPES = 50
_QUIET_S, _PING_INTERVALS_S = 5.0, 60.0
"""How long to wait for a change, in seconds: if other servers use the database, whose changes are not notified here;
and if only this server uses it."""

EVENTS_GONE_HEADER = "Scanflow-Events-Gone"
"""The header with the number up to which events are deleted, in a list that would begin before it."""

EVENTS_SEEN = "events.seen"
"""The name of stream messages with the newest event of any type, sent while no matching one comes."""

SEEN_INTERVAL_S = 5.0

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
        "headers": {
            EVENTS_GONE_HEADER: {"description": "Events up to this number are deleted.", "schema": {"type": "integer"}}
        },
    }
}

Number = Annotated[int, Query(ge=0, le=2**53)]
Word = Annotated[str | None, Query(max_length=_MAX_LENGTH, pattern=r"^[!-~]+$")]
Words = Annotated[
    list[Annotated[str, Field(max_length=_MAX_LENGTH, pattern=r"^[!-~]+$")]] | None, Query(max_length=_MAX_TYPES)
]


@router.get("", responses=_STREAM, response_model=list[Event])
async def events(
    context: ContextDep,
    caller: Reader,
    request: Request,
    after: Number = 0,
    type: Words = None,
    app: Word = None,
    limit: Annotated[int, Query(ge=1, le=_MAX_EVENTS)] = 100,
    seen: bool = False,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
) -> Response:
    """List the events after that number, or stream them to a client that accepts ``text/event-stream``.

    ``type`` may end in ``*``: all types that begin so; given several times, an event is of one of them. With ``seen`` a
    stream tells now and then, as ``events.seen``, the newest event of all, where none of those up to it was wanted.

    Old events are forgotten. Whoever asks for what came after one of those is told up to which number they are gone: by
    the header ``Scanflow-Events-Gone``, or in a stream, whatever the ``type``, by an event ``events.gone`` of that
    number.
    """
    if "text/event-stream" in request.headers.get("accept", ""):
        last_seen = min(parse_event_number(last_event_id), 2**53)
        return make_events_response(
            context.streams, _stream(context, caller, max(after, last_seen), type, app, seen=seen)
        )

    def load() -> tuple[bytes, int]:
        with context.store.read() as connection:
            page = event_store.list_after(connection, after, type=type, app=app, team=caller.team, limit=limit)
            return _EVENT_LIST.dump_json(page), pruning.get_last_forgotten_event(connection)

    text, gone = await run_in_threadpool(load)
    return Response(
        text, media_type="application/json", headers={EVENTS_GONE_HEADER: str(gone)} if after < gone else None
    )


@router.get("/newest")
def newest(context: ContextDep, caller: Reader) -> Event | None:
    """Show the newest event; null: there is none."""
    with context.store.read() as connection:
        return event_store.find_newest_event(connection, team=caller.team)


@router.post("", status_code=201)
def tell(
    context: ContextDep, caller: Proposer, happened: Annotated[list[Event], Body(max_length=_MAX_EVENTS)]
) -> list[Event]:
    """Record events; the response has their numbers.

    It is the team's whose the token is, else the team's that alone has an application of that name; else only who sees
    all teams' things sees it. An agent's own token records events of that agent's application alone, and none that
    names another agent as its source.
    """
    for number, event in enumerate(happened, 1):
        _check_source(caller, event)
        check_text([event.type, event.app, event.subject, event.data])
        _check_shown(event)
        if (size := len(event.model_dump_json().encode())) > MAX_EVENT_BYTES:
            raise TooLargeError(
                f"Event {number} of the body, of type {event.type!r:.60}, has {size:,} bytes, but an event has at most "
                f"{format_size(MAX_EVENT_BYTES)}. Store what is large elsewhere, and send its address. No event of "
                "this request was recorded."
            )
        if not event.type or len(event.type) > _MAX_LENGTH or len(event.app) > _MAX_LENGTH:
            raise InvalidError(f"The event type {event.type!r:.60} must have 1 to {_MAX_LENGTH} characters.")
    if caller.agent is None:
        happened = [_name_person(event, caller.name) for event in happened]
    with context.store.write() as connection:
        return event_store.append(connection, happened, team=caller.team, max_mib=context.settings.max_team_mib)


def _check_shown(event: Event) -> None:
    """Refuse an event that a list or a report could not show as it is."""
    check_time(f"The time of the event {event.type!r:.60}", event.at)
    for what, text in (("type", event.type), ("application", event.app), ("subject", event.subject)):
        check_line(f"The event's {what}", text)


def _name_person(event: Event, person: str) -> Event:
    """Return a person's decision on a model with the name of the token that it came with."""
    if event.data.get("agent") != "person" or not event.type.startswith("model."):
        return event
    return event.model_copy(update={"data": {**event.data, "by": person}})


def _check_source(caller: TokenHolder, event: Event) -> None:
    """Refuse an event that an agent's own token records for another application or another agent."""
    if caller.agent is None:
        return
    app, own = caller.agent
    caller.check_agent(event.app or app)
    kind, _, name = event.subject.partition("/")
    for agent in (name if kind == "agent" else own, event.data.get("agent", own)):
        caller.check_agent(app, str(agent))


async def _stream(
    context: ServerContext, caller: TokenHolder, after: int, types: list[str] | None, app: str | None, *, seen: bool
) -> AsyncIterator[bytes]:
    team = caller.team

    def look(number: int) -> tuple[int, list[Event], int]:
        with context.store.read() as connection:
            # The newest is read first: events added in between are then found now, or come after it.
            newest = event_store.get_newest_id(connection, team=team)
            if newest <= number:
                return number, [], 0  # the change was of something else, as most are
            batch = event_store.list_after(connection, number, type=types, app=app, team=team, limit=_BLOCK)
            return newest, batch, pruning.get_last_forgotten_event(connection)

    def load_numbered(number: int) -> list[Event]:
        with context.store.read() as connection:
            return [
                event
                for event in event_store.list_after(connection, number - 1, team=team, limit=1)
                if event.id == number
            ]

    loop, quiet_s = asyncio.get_running_loop(), _QUIET_S if context.store.file is None else _PING_INTERVALS_S
    announced, announced_at = after, loop.time()
    while True:
        since = context.store_notifier.changes
        newest, batch, gone = await run_in_threadpool(look, after)
        if after < gone:
            lost = Event(id=gone, at=context.clock(), type="events.gone", data={"after": after, "until": gone})
            after, batch = gone, [event for event in batch if event.id > gone]
            yield format_event(lost.model_dump_json(), name=lost.type, id=str(gone))
        for event in batch:
            after = announced = event.id
            yield format_event(event.model_dump_json(), name=event.type, id=str(event.id))
        if batch:
            continue
        after = max(after, newest)  # so that events already read are not reported as gone when they are deleted
        if seen and after > announced and loop.time() - announced_at >= SEEN_INTERVAL_S:
            announced, announced_at = after, loop.time()
            for event in await run_in_threadpool(load_numbered, after):
                yield format_event(event.model_dump_json(), name=EVENTS_SEEN, id=str(event.id))
        await context.store_notifier.wait_async(since, SEEN_INTERVAL_S if seen and after > announced else quiet_s)
