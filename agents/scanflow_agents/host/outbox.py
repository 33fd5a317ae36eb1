"""Deliver the intents and calls of strategies: stored until delivered, in order for each strategy.

A delivery is sent after it is committed and deleted after it was answered; it may be sent more than once, with the same
idempotency key.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import stamina

from scanflow.agent.actions import Call
from scanflow.agent.agent_records import Intent
from scanflow.errors import AccessDeniedError, ForbiddenError, InternalError, ScanflowError, UnavailableError
from scanflow_agents.host.agent_state import AgentStore

MAX_BATCH = 16
MAX_DELIVERIES = 10_000
MAX_DEFECTS = 8
"""The most attempts of a delivery that makes its receiver fail; then it is dropped to unblock the next ones."""

MAX_PAUSE_S = 5.0
RETENTION_S = 24 * 3600.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    queue: str
    """The strategy, whose deliveries are sent in order."""

    kind: Literal["intent", "call"]
    key: str
    at: float
    body: str
    """JSON: an intent; or the agent, the sensor, ``args`` and ``kwargs`` of a call."""

    @classmethod
    def build(cls, queue: str, action: Intent | Call, *, at: float) -> Delivery:
        if isinstance(action, Intent):
            return cls(queue=queue, kind="intent", key=action.key, at=at, body=action.model_dump_json())
        body = json.dumps({"agent": action.agent, "sensor": action.sensor, **action.payload()})
        return cls(queue=queue, kind="call", key=action.key, at=at, body=body)


class DeliveryTransport(Protocol):
    async def deliver(self, delivery: Delivery) -> Any:
        """Send a delivery and return the answer; only ``UnavailableError``, ``InternalError`` and a refused token are
        retried."""
        ...


class Outbox:
    def __init__(self, *, state: AgentStore, post: DeliveryTransport, clock: Callable[[], float]) -> None:
        self._state, self._post, self._clock = state, post, clock
        self._queues: dict[str, deque[tuple[int, Delivery]]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._at_once = asyncio.Semaphore(MAX_BATCH)
        self.count = 0
        self.refused = 0

    def start(self) -> None:
        for number, queue, kind, key, at, body in self._state.load_deliveries():
            delivery = Delivery(queue=queue, kind="call" if kind == "call" else "intent", key=key, at=at, body=body)
            self._put(number, delivery)

    def send(self, deliveries: Iterable[Delivery]) -> None:
        """Store deliveries, and send them once they are committed."""
        for delivery in deliveries:
            if self.count >= MAX_DELIVERIES:
                self._give_up(
                    delivery, UnavailableError(f"{self.count} deliveries are already queued, so no more are accepted.")
                )
                continue
            number = self._state.add_delivery(delivery.queue, delivery.kind, delivery.key, delivery.at, delivery.body)
            self._put(number, delivery)

    async def deliver(self, delivery: Delivery, *, patience_s: float) -> Any:
        """Send a delivery and return its answer, or raise the error of its refusal; None: still undelivered."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[delivery.key] = future
        self.send([delivery])
        try:
            return await asyncio.wait_for(future, patience_s)
        except TimeoutError:
            return None
        finally:
            self._answers.pop(delivery.key, None)

    def list_waiting(self, queues: Iterable[str]) -> list[Delivery]:
        return [delivery for queue in queues for _, delivery in self._queues.get(queue, ())]

    async def stop(self, *, patience_s: float) -> None:
        """Stop sending; wait at most ``patience_s`` for deliveries in progress."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=patience_s)

    def _put(self, number: int, delivery: Delivery) -> None:
        self.count += 1
        self._queues.setdefault(delivery.queue, deque()).append((number, delivery))
        if delivery.queue not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._run(delivery.queue))
            self._tasks[delivery.queue] = task

    async def _run(self, queue: str) -> None:
        deliveries = self._queues[queue]
        try:
            while deliveries:
                await self._state.writer.flush()
                number, delivery = deliveries[0]
                await self._deliver(delivery)
                deliveries.popleft()
                self.count -= 1
                self._state.delete_delivery(number)
        finally:
            del self._tasks[queue], self._queues[queue]

    async def _deliver(self, delivery: Delivery) -> None:
        defects = 0

        def may_pass(error: Exception) -> bool:
            nonlocal defects
            defects += isinstance(error, InternalError)
            _log.info("%s %s is not delivered yet: %s", delivery.kind, delivery.key, error)
            is_kept = defects < MAX_DEFECTS and self._clock() - delivery.at <= RETENTION_S
            # A token is refused while the agent is being stopped; it has another one at its next start.
            is_token_refused = isinstance(error, AccessDeniedError) and not isinstance(error, ForbiddenError)
            return is_kept and (is_token_refused or isinstance(error, UnavailableError | InternalError))

        answer = None
        try:
            async for attempt in stamina.retry_context(
                on=may_pass, attempts=None, timeout=None, wait_max=MAX_PAUSE_S, wait_jitter=0.1
            ):
                with attempt:
                    async with self._at_once:
                        answer = await self._post.deliver(delivery)
        except ScanflowError as error:
            self._give_up(delivery, error)
            return
        if delivery.kind == "intent" and _is_refused(answer):  # it takes nothing from its strategy's budget
            self._state.delete_acted(delivery.queue, delivery.key)
        body = json.dumps({"key": delivery.key, "answer": answer})
        self._state.note("decision", delivery.queue, self._clock(), body)
        self._complete_delivery(delivery, answer, None)

    def _give_up(self, delivery: Delivery, error: ScanflowError) -> None:
        self.refused += 1
        self._state.delete_acted(delivery.queue, delivery.key)
        _log.warning("%s %s was dropped: %s", delivery.kind, delivery.key, error)
        body = {"key": delivery.key, "error": str(error), "type": type(error).__name__}
        self._state.note("refused", delivery.queue, self._clock(), json.dumps(body))
        self._complete_delivery(delivery, None, error)

    def _complete_delivery(self, delivery: Delivery, answer: Any, error: ScanflowError | None) -> None:
        future = self._answers.pop(delivery.key, None)
        if future is not None and not future.done():
            if error is None:
                future.set_result(answer)
            else:
                future.set_exception(error)


def _is_refused(answer: Any) -> bool:
    return isinstance(answer, dict) and answer.get("verdict") in {"refuse", "observe", "suggest"}
