"""What happened: listed, streamed, and told by others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Query, Request
from fastapi.responses import Response
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool

from scanflow.agent.records import Event
from scanflow.errors import InvalidError
from scanflow_server.bodies import check_text
from scanflow_server.context import Context, Given
from scanflow_server.problems import PROBLEMS
from scanflow_server.store import events as stored
from scanflow_server.streams import event, events_response

__all__ = ["router"]

router = APIRouter(prefix="/events", tags=["events"], responses=PROBLEMS)

_LISTED: TypeAdapter[list[Event]] = TypeAdapter(list[Event])
_MOST = 10_000
_LONGEST = 128
_BLOCK = 500
_QUIET_S = 5.0
"""How long to wait for a ring: another server may have written to the same database, and rings nothing here."""

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
}

Number = Annotated[int, Query(ge=0, le=2**53)]
Word = Annotated[str | None, Query(max_length=_LONGEST, pattern=r"^[!-~]+$")]


@router.get("", responses=_STREAM, response_model=list[Event])
async def events(
    context: Given,
    request: Request,
    after: Number = 0,
    type: Word = None,
    app: Word = None,
    limit: Annotated[int, Query(ge=1, le=_MOST)] = 100,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID")] = None,
) -> Response:
    """List what happened after the event of that number, or stream it to who accepts ``text/event-stream``.

    ``type`` may end in ``*``: all types that begin so.
    """
    if "text/event-stream" in request.headers.get("accept", ""):
        known = int(last_event_id) if last_event_id is not None and last_event_id.isdecimal() else 0
        return events_response(_stream(context, max(after, min(known, 2**53)), type, app))

    def listed() -> bytes:
        with context.store.read() as connection:
            return _LISTED.dump_json(stored.after(connection, after, type=type, app=app, limit=limit))

    return Response(await run_in_threadpool(listed), media_type="application/json")


@router.post("", status_code=201)
def tell(context: Given, happened: Annotated[list[Event], Body(max_length=_MOST)]) -> list[Event]:
    """Tell what happened; the answer has the numbers under which it is listed."""
    for one in happened:
        check_text([one.type, one.app, one.subject, one.data])
        if not one.type or len(one.type) > _LONGEST or len(one.app) > _LONGEST:
            raise InvalidError(f"The type {one.type!r:.60} of an event has to have 1 to {_LONGEST} characters.")
    with context.store.write() as connection:
        return stored.append(connection, happened)


async def _stream(context: Context, after: int, type: str | None, app: str | None) -> AsyncIterator[bytes]:
    def look(number: int) -> list[Event]:
        with context.store.read() as connection:
            return stored.after(connection, number, type=type, app=app, limit=_BLOCK)

    while True:
        rang = context.news.rang
        found = await run_in_threadpool(look, after)
        for one in found:
            after = one.id
            yield event(one.model_dump_json(), name=one.type, id=str(one.id))
        if not found:
            await context.news.heard(rang, _QUIET_S)
