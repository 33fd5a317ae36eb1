"""What strategies want, on its way to who acts on it: kept until it is delivered, in order for each strategy.

A letter is sent only after it is committed, and forgotten only after it was answered; in between it may be sent more
than once, each time with the same key, by which the receiver knows it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from scanflow.errors import InternalError, ScanflowError, UnavailableError
from scanflow_agents.state import AgentState

__all__ = ["Letter", "Outbox", "Post"]

MOST_AT_ONCE = 16
MOST_LETTERS = 10_000
MOST_DEFECTS = 8
"""How often a letter is sent that its receiver breaks over, before it is given up so that those behind it go on."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0
KEPT_S = 24 * 3600.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One thing to be delivered."""

    lane: str
    """The strategy it is of: its letters are delivered in their order."""

    kind: Literal["intent", "call"]
    key: str
    at: float
    body: str
    """JSON: an intent; or the agent, the sensor, ``args`` and ``kwargs`` of a call."""


class Post(Protocol):
    """Delivers."""

    async def deliver(self, letter: Letter) -> Any:
        """Deliver a letter, and return the answer.

        Raises:
            UnavailableError, InternalError: it may be delivered later.
            ScanflowError: it will never be.
        """
        ...


class Outbox:
    """The letters of one agent."""

    def __init__(
        self,
        *,
        state: AgentState,
        post: Post,
        clock: Callable[[], float],
        chance: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        """``chance`` returns a number from 0 to 1, to spread tries; ``pause`` waits, unless :meth:`hurry` is called."""
        self._state, self._post, self._clock, self._chance = state, post, clock, chance
        self._pause = pause or self._wait
        self._lanes: dict[str, deque[tuple[int, Letter]]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._at_once = asyncio.Semaphore(MOST_AT_ONCE)
        self._news = asyncio.Event()
        self.count = 0
        """How many letters are not delivered."""

        self.refused = 0
        """How many were given up since the start."""

    def start(self) -> None:
        """Take up what was not delivered."""
        for number, lane, kind, key, at, body in self._state.letters():
            letter = Letter(lane=lane, kind="call" if kind == "call" else "intent", key=key, at=at, body=body)
            self._put(number, letter)

    def send(self, letters: Iterable[Letter]) -> None:
        """Keep letters, and deliver them when they are committed."""
        for letter in letters:
            if self.count >= MOST_LETTERS:
                self._give_up(letter, UnavailableError(f"{self.count} letters wait already, so no more are kept."))
                continue
            number = self._state.add_letter(letter.lane, letter.kind, letter.key, letter.at, letter.body)
            self._put(number, letter)

    async def deliver(self, letter: Letter, *, patience_s: float) -> Any:
        """Send a letter and return its answer; None if it is still on its way after ``patience_s``.

        Raises:
            ScanflowError: it was refused.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[letter.key] = future
        self.send([letter])
        try:
            return await asyncio.wait_for(future, patience_s)
        except TimeoutError:
            return None
        finally:
            self._answers.pop(letter.key, None)

    def waiting(self, lanes: Iterable[str]) -> list[Letter]:
        """Return what is kept of these strategies and not answered, in the order of each."""
        return [letter for lane in lanes for _, letter in self._lanes.get(lane, ())]

    def hurry(self) -> None:
        """Try everything again now: a receiver is there again."""
        self._news.set()
        self._news = asyncio.Event()

    async def stop(self, *, patience_s: float) -> None:
        """Give what is being sent ``patience_s`` to be answered."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=patience_s)

    def _put(self, number: int, letter: Letter) -> None:
        self.count += 1
        self._lanes.setdefault(letter.lane, deque()).append((number, letter))
        if letter.lane not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._run(letter.lane))
            self._tasks[letter.lane] = task

    async def _run(self, lane: str) -> None:
        letters = self._lanes[lane]
        try:
            while letters:
                await self._state.writer.settled()
                number, letter = letters[0]
                await self._deliver(letter)
                letters.popleft()
                self.count -= 1
                self._state.letter_done(number)
        finally:
            del self._tasks[lane], self._lanes[lane]

    async def _deliver(self, letter: Letter) -> None:
        pause_s, defects = FIRST_PAUSE_S, 0
        while True:
            try:
                async with self._at_once:
                    answer = await self._post.deliver(letter)
            except (UnavailableError, InternalError) as error:
                defects += isinstance(error, InternalError)
                if defects >= MOST_DEFECTS or self._clock() - letter.at > KEPT_S:
                    self._give_up(letter, error)
                    return
                _log.info("%s %s is not delivered yet: %s", letter.kind, letter.key, error)
                await self._pause(pause_s * (0.5 + self._chance()))
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            except ScanflowError as error:
                self._give_up(letter, error)
                return
            else:
                body = json.dumps({"key": letter.key, "answer": answer})
                self._state.note("decision", letter.lane, self._clock(), body)
                self._answer(letter, answer, None)
                return

    def _give_up(self, letter: Letter, error: ScanflowError) -> None:
        self.refused += 1
        _log.warning("%s %s was given up: %s", letter.kind, letter.key, error)
        body = {"key": letter.key, "error": str(error), "type": type(error).__name__}
        self._state.note("refused", letter.lane, self._clock(), json.dumps(body))
        self._answer(letter, None, error)

    def _answer(self, letter: Letter, answer: Any, error: ScanflowError | None) -> None:
        future = self._answers.pop(letter.key, None)
        if future is not None and not future.done():
            if error is None:
                future.set_result(answer)
            else:
                future.set_exception(error)

    async def _wait(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._news.wait(), seconds)
        except TimeoutError:
            return
