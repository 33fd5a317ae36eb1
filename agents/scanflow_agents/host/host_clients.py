"""Clients of the server and of other agents, for the host."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from scanflow.agent.agent_records import Event, SensorReport, StrategyLimits
from scanflow.errors import AccessDeniedError, ForbiddenError, NotFoundError, ScanflowError, UnavailableError
from scanflow.http.body_limits import MAX_EVENT_BYTES, split_batches
from scanflow.transport.async_client import AsyncClient
from scanflow_agents.host.event_subscriber import EventBatch, EventFilter
from scanflow_agents.host.outbox import Delivery

BASE = "/api/v1"
EVENTS_SEEN = "events.seen"
MAX_REPORTED = 500
"""The most events in the reporter's queue; the oldest are dropped, as they are only for people to watch."""

_log = logging.getLogger(__name__)


class DeliveryClient:
    """Sends deliveries: intents to the server, and calls to the agents that the server lists."""

    def __init__(
        self,
        *,
        app: str,
        agent: str,
        server: AsyncClient | None,
        connect: Callable[[str], AsyncClient],
        strategies: Sequence[StrategyLimits] = (),
    ) -> None:
        """``strategies``: what the agent's may do, which the server stores before their first intent."""
        self._app, self._agent, self._server = app, agent, server
        self._connect = connect
        self._strategies: Sequence[StrategyLimits] | None = strategies
        self.call_self: Callable[[str, Mapping[str, Any], str], Any] | None = None
        """Accepts a call to this agent: the sensor's name, the body and the key."""

        self._agents: dict[str, AsyncClient] = {}

    async def deliver(self, delivery: Delivery) -> Any:
        if delivery.kind == "intent":
            await self.report_strategies()
            return await self._connected.ask("POST", f"{BASE}/intents", delivery.body, key=delivery.key)
        body = json.loads(delivery.body)
        agent, sensor = body.pop("agent"), body.pop("sensor")
        if agent == self._agent and self.call_self is not None:
            return self.call_self(sensor, body, delivery.key)
        client = await self._connect_agent(agent)
        try:
            return await client.ask("POST", f"/sensors/{quote(sensor, safe='')}", body, key=delivery.key)
        except UnavailableError:
            # It may have been restarted on another port.
            self._agents.pop(agent, None)
            await client.close()
            raise

    async def report_strategies(self) -> None:
        """Report what the agent's strategies may do, once. Without a server that stores it, all of their intents wait
        for approval."""
        if self._strategies is None:
            return
        body = [strategy.model_dump(mode="json") for strategy in self._strategies]
        try:
            await self._connected.ask("PUT", f"{self._build_path(self._agent)}/strategies", body)
        except UnavailableError:
            raise
        except ScanflowError as error:
            if isinstance(error, AccessDeniedError) and not isinstance(error, ForbiddenError):
                raise  # the token is not valid any more: the agent is being stopped
            _log.warning("The server did not store the strategies, so that their intents wait for approval: %s", error)
        self._strategies = None

    async def send_heartbeat(self, url: str, pid: int, sensors: Sequence[SensorReport]) -> bool:
        """Report where the agent is and how its sensors fare, and return whether somebody looks at that."""
        reports = [report.model_dump(mode="json") for report in sensors]
        body = {"url": url, "pid": pid, "sensors": reports}
        reply = await self._connected.ask("POST", f"{self._build_path(self._agent)}/heartbeat", body)
        return isinstance(reply, dict) and reply.get("watched") is True

    async def send_events(self, events: list[Event]) -> None:
        await self._connected.ask("POST", f"{BASE}/events", [event.model_dump(mode="json") for event in events])

    async def close(self) -> None:
        for connection in self._agents.values():
            await connection.close()

    @property
    def _connected(self) -> AsyncClient:
        if self._server is None:
            raise UnavailableError("The agent was started without a server. Start it with one: scanflow up")
        return self._server

    def _build_path(self, agent: str) -> str:
        return f"{BASE}/agents/{quote(self._app, safe='')}/{quote(agent, safe='')}"

    async def _connect_agent(self, agent: str) -> AsyncClient:
        client = self._agents.get(agent)
        if client is not None:
            return client
        try:
            record = await self._connected.ask("GET", self._build_path(agent))
        except NotFoundError as error:
            raise UnavailableError(f"The server does not know the agent {agent!r} yet: {error}") from error
        url = record.get("url") if isinstance(record, dict) else None
        if not isinstance(url, str) or not url:
            raise UnavailableError(f"The agent {agent!r} has not reported its address yet.")
        return self._agents.setdefault(agent, self._connect(url))


class ServerEvents:
    """See :class:`~scanflow_agents.host.event_subscriber.EventSource`."""

    def __init__(self, server: AsyncClient) -> None:
        self._server = server

    async def fetch_newest(self) -> Event | None:
        document = await self._server.ask("GET", f"{BASE}/events/newest")
        return None if document is None else _parse_event(json.dumps(document))

    async def from_number(self, number: int) -> Event | None:
        documents = await self._server.ask("GET", f"{BASE}/events?after={number - 1}&limit=1")
        return _parse_event(json.dumps(documents[0])) if documents else None

    async def stream(self, after: int, event_filter: EventFilter) -> AsyncGenerator[EventBatch, None]:
        parameters: dict[str, str | int | Sequence[str]] = {"after": after, "seen": "true", "type": event_filter.types}
        if event_filter.app is not None:
            parameters["app"] = event_filter.app
        async with aclosing(self._server.stream(f"{BASE}/events", parameters)) as blocks:
            async for messages in blocks:
                events: list[Event] = []
                seen: Event | None = None
                try:
                    for message in messages:
                        if message.event == EVENTS_SEEN:
                            seen = _parse_event(message.data)
                        else:
                            events.append(_parse_event(message.data))
                except UnavailableError:
                    yield EventBatch(events=tuple(events))  # those before the one that cannot be parsed
                    raise
                yield EventBatch(events=tuple(events), seen=seen)


def _parse_event(text: str) -> Event:
    try:
        return Event.model_validate_json(text)
    except ValidationError as error:
        raise UnavailableError(
            f"The server sent an event that this agent cannot parse ({error.errors(include_url=False)[0]['msg']}): "
            f"{text:.200}. If the server has another version, install that version here, and restart the agent."
        ) from error


def _measure_event(event: Event) -> int:
    return len(json.dumps(event.model_dump(mode="json")))


class EventReporter:
    """Reports events to the server while it is reachable, for people to watch; nothing depends on them."""

    def __init__(self, client: DeliveryClient) -> None:
        self._client = client
        self._events: deque[Event] = deque(maxlen=MAX_REPORTED)

    def add(self, event: Event) -> None:
        if (size := len(event.model_dump_json().encode())) > MAX_EVENT_BYTES:
            _log.warning(
                "The event %r has %d bytes, more than the server accepts (%d), and was dropped. Report less of it.",
                event.type,
                size,
                MAX_EVENT_BYTES,
            )
            return
        self._events.append(event)

    async def flush(self) -> None:
        """Send the queued events, in batches that the server accepts. Those that cannot be sent stay queued, as far as
        there is room."""
        batches = list(split_batches(self._events, _measure_event, max_items=MAX_REPORTED))
        self._events.clear()
        for number, batch in enumerate(batches):
            try:
                await self._client.send_events(batch)
            except UnavailableError:
                unsent = [event for later in batches[number:] for event in later]
                self._events = deque([*unsent, *self._events], maxlen=MAX_REPORTED)
                return
            except ScanflowError as error:
                _log.warning("%d events were rejected by the server: %s", len(batch), error)
