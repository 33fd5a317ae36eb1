"""What the server streams, as an agent's host reads it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import cast

import httpx2
import pytest

import scanflow as sf
from scanflow.agent.agent_records import Event, StrategyLimits
from scanflow.errors import (
    AccessDeniedError,
    ForbiddenError,
    InternalError,
    InvalidError,
    NotFoundError,
    ScanflowError,
    UnavailableError,
)
from scanflow.http.body_limits import MAX_BODY_BYTES, MAX_EVENT_BYTES
from scanflow.http.problems import build_problem
from scanflow.transport.async_client import AsyncClient
from scanflow_agents.host.event_subscriber import EventBatch, EventFilter
from scanflow_agents.host.host_clients import MAX_REPORTED, DeliveryClient, EventReporter, ServerEvents
from scanflow_agents.host.outbox import Delivery

URL = "http://127.0.0.1:1"
WANTED = EventFilter.from_triggers([sf.on_event("made"), sf.on_event("sold")], "mnist")
FIRST, SECOND = (Event(id=number, at=1.5, type="made", app="mnist") for number in (4, 5))


def message(event: Event, name: str) -> bytes:
    return f"event: {name}\nid: {event.id}\ndata: {event.model_dump_json()}\n\n".encode()


class Blocks(httpx2.AsyncByteStream):
    def __init__(self, *blocks: bytes, breaks: bool = False) -> None:
        self._blocks, self._breaks = blocks, breaks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for block in self._blocks:
            yield block
        if self._breaks:
            raise httpx2.ReadError("reset")


def collect_batches(
    reply: httpx2.Response, asked: list[httpx2.Request] | None = None
) -> tuple[list[EventBatch], ScanflowError | None]:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if asked is not None:
            asked.append(request)
        return reply

    async def listen() -> tuple[list[EventBatch], ScanflowError | None]:
        transport = httpx2.MockTransport(answer)
        server, events = AsyncClient(URL, transport=transport), AsyncClient(URL, transport=transport)
        batches: list[EventBatch] = []
        try:
            async with aclosing(ServerEvents(server).stream(3, WANTED)) as stream:
                async for batch in stream:
                    batches.append(batch)  # noqa: PERF401  what came before an error counts
        except ScanflowError as error:
            return batches, error
        finally:
            await server.close()
            await events.close()
        return batches, None

    return asyncio.run(listen())


def test_it_asks_for_what_is_wanted_and_tells_events_as_they_come() -> None:
    asked: list[httpx2.Request] = []
    text = message(FIRST, "made") + message(SECOND, "events.seen")
    batches, error = collect_batches(httpx2.Response(200, stream=Blocks(b":ping\n\n", text[:40], text[40:])), asked)
    assert error is None
    assert batches == [EventBatch(), EventBatch(), EventBatch(), EventBatch(events=(FIRST,), seen=SECOND)]
    (request,) = asked
    assert request.headers["accept"] == "text/event-stream"
    assert request.url.params.multi_items() == [
        ("after", "3"),
        ("seen", "true"),
        ("type", "made"),
        ("type", "sold"),
        ("app", "mnist"),
    ]


def test_a_stream_that_breaks_and_an_event_that_cannot_be_read_are_unavailable_and_a_refusal_is_itself() -> None:
    batches, error = collect_batches(httpx2.Response(200, stream=Blocks(message(FIRST, "made"), breaks=True)))
    assert batches == [EventBatch(), EventBatch(events=(FIRST,))]
    assert isinstance(error, UnavailableError)
    new = b'data: {"id": 5, "new": true}\n\n'
    batches, error = collect_batches(httpx2.Response(200, stream=Blocks(message(FIRST, "made") + new)))
    assert batches == [EventBatch(), EventBatch(events=(FIRST,))], "what came before it is heard"
    assert isinstance(error, UnavailableError)
    assert "If the server has another version" in str(error)
    problem = {"type": "urn:scanflow:error:NotFoundError", "detail": "no such route", "status": 404, "title": "x"}
    _, error = collect_batches(httpx2.Response(404, json=problem))
    assert isinstance(error, NotFoundError)


@pytest.mark.parametrize("listed", [[], [FIRST]])
def test_it_asks_for_single_events(listed: list[Event]) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        some = [event.model_dump(mode="json") for event in listed]
        if request.url.path.endswith("/newest"):
            return httpx2.Response(200, text=json.dumps(some[0] if some else None))
        assert dict(request.url.params) == {"after": "3", "limit": "1"}
        return httpx2.Response(200, json=some)

    async def ask() -> None:
        transport = httpx2.MockTransport(answer)
        source = ServerEvents(AsyncClient(URL, transport=transport))
        expected = listed[0] if listed else None
        assert await source.fetch_newest() == expected
        assert await source.from_number(4) == expected

    asyncio.run(ask())


@pytest.mark.parametrize("meanwhile", [0, 1, MAX_REPORTED])
def test_what_cannot_be_reported_is_kept_and_the_newest_first_of_all(meanwhile: int) -> None:
    def make_event(number: int) -> Event:
        return Event(id=number, at=1.5, type="made", app="mnist")

    class Server:
        def __init__(self) -> None:
            self.received: list[Event] | None = None

        async def send_events(self, events: list[Event]) -> None:
            if self.received is None:
                self.received = []
                for number in range(meanwhile):
                    reporter.add(make_event(MAX_REPORTED + number))
                raise UnavailableError("away")
            self.received = events

    server = Server()
    reporter = EventReporter(cast("DeliveryClient", server))

    async def report_many() -> None:
        for number in range(MAX_REPORTED):
            reporter.add(make_event(number))
        await reporter.flush()
        await reporter.flush()

    asyncio.run(report_many())
    assert server.received is not None
    assert [event.id for event in server.received] == list(range(meanwhile, MAX_REPORTED + meanwhile))


def test_events_are_reported_in_requests_that_the_server_accepts_and_one_that_is_too_large_takes_no_others_along(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def make_event(number: int, size: int) -> Event:
        return Event(id=number, at=1.5, type="made", data={"x": "y" * size})

    sent, sizes, failures = list[int](), list[int](), [None, InvalidError("No."), None, UnavailableError("away")]

    def answer(request: httpx2.Request) -> httpx2.Response:
        sizes.append(len(request.content))
        failure = failures.pop(0) if failures else None
        if isinstance(failure, UnavailableError):
            return httpx2.Response(503)
        if failure is not None:
            return httpx2.Response(422, json={"type": "urn:scanflow:error:InvalidError", "detail": str(failure)})
        sent.extend(event["id"] for event in json.loads(request.content))
        return httpx2.Response(201)

    async def report() -> None:
        server = AsyncClient(URL, transport=httpx2.MockTransport(answer))
        reporter = EventReporter(DeliveryClient(app="mnist", agent="tracker", server=server, connect=AsyncClient))
        for number in range(20):
            reporter.add(make_event(number, 200_000 if number != 7 else MAX_EVENT_BYTES))
        await reporter.flush()
        assert sent == [0, 1, 2, 3, 4, *range(11, 16)], "the second request was refused, and the fourth not answered"
        await reporter.flush()
        await server.close()

    asyncio.run(report())
    assert sent == [0, 1, 2, 3, 4, *range(11, 20)]
    assert max(sizes) <= MAX_BODY_BYTES
    dropped, refused = (record.getMessage() for record in caplog.records)
    assert dropped.startswith("The event 'made' has 262")
    assert refused == "5 events were rejected by the server: No."


def reply_with(error: ScanflowError | None) -> httpx2.Response:
    if error is None:
        return httpx2.Response(204)
    status, problem = build_problem(error)
    return httpx2.Response(status, json=problem)


def deliver_intents(*reports: ScanflowError | None) -> tuple[list[str], list[str]]:
    """Deliver two intents, where reports of strategies are answered so; return what was asked, and how it failed."""
    replies = list(reports)
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(f"{request.method} {request.url.path.removeprefix('/api/v1')} {len(json.loads(request.content))}")
        return httpx2.Response(200, json={}) if request.method == "POST" else reply_with(replies.pop(0))

    async def send() -> list[str]:
        server = AsyncClient(URL, transport=httpx2.MockTransport(answer))
        strategies = [StrategyLimits(name="a"), StrategyLimits(name="b"), StrategyLimits(name="c")]
        client = DeliveryClient(app="mnist", agent="tracker", server=server, connect=AsyncClient, strategies=strategies)
        failed = []
        for key in "xy":
            try:
                await client.deliver(Delivery(queue="a", kind="intent", key=key, at=1.0, body="{}"))
            except ScanflowError as error:
                failed.append(type(error).__name__)
        await server.close()
        return failed

    return asked, asyncio.run(send())


REPORT, WANT = "PUT /agents/mnist/tracker/strategies 3", "POST /intents 0"


def test_the_strategies_are_reported_once_and_before_the_first_intent() -> None:
    assert deliver_intents(None) == ([REPORT, WANT, WANT], [])


@pytest.mark.parametrize("error", [UnavailableError("away"), AccessDeniedError("The token is invalid.")])
def test_no_intent_goes_before_the_strategies_where_the_server_is_away_or_the_token_is_gone(
    error: ScanflowError,
) -> None:
    assert deliver_intents(error, None) == ([REPORT, REPORT, WANT], [type(error).__name__])


@pytest.mark.parametrize(
    "error", [NotFoundError("no such agent"), ForbiddenError("made by hand"), InternalError("a defect")]
)
def test_where_the_strategies_are_not_saved_intents_are_sent_to_wait_for_approval(error: ScanflowError) -> None:
    assert deliver_intents(error) == ([REPORT, WANT, WANT], [])
