"""What an instance looks at from time to time: how its components say they are, and how busy it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

from scanflow_serving.components import Component, raised
from scanflow_serving.engine import Engine
from scanflow_serving.meters import Meters
from scanflow_serving.revisions import Loaded

__all__ = ["Watch"]

EVERY_S: Final = 5.0
_log = logging.getLogger(__name__)


class Watch:
    """Asks components for their ``health_status``, and publishes how many requests are here."""

    def __init__(self, loop: asyncio.AbstractEventLoop, engine: Engine, meters: Meters) -> None:
        self._loop = loop
        self._engine = engine
        self._meters = meters
        self._asked: list[Component] = []
        self._pending: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._published = -1
        self.unwell: dict[str, str] = {}
        """The nodes whose ``health_status`` raises, and what it says."""

    def look_after(self, revisions: Iterable[Loaded]) -> None:
        """Watch the components of these revisions from now on; they were asked when they were loaded."""
        self._asked = [
            component
            for loaded in revisions
            if not loaded.shadow
            for component in loaded.components.values()
            if component.health is not None
        ]
        self.unwell = {}
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(EVERY_S, self._look) if self._asked else None

    def publish(self) -> None:
        """Publish how many requests wait or run, if that has changed."""
        if self._engine.in_flight != self._published:
            self._published = self._engine.in_flight
            self._meters.in_flight(self._published)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._asked = []

    def ask(self) -> list[asyncio.Future[object]]:
        """Ask all of them now, each in its turn; return what to wait for."""
        asked: list[asyncio.Future[object]] = []
        for component in self._asked:
            if component.health is None or component.name in self._pending:
                continue
            self._pending.add(component.name)
            answer = self._engine.hop(component.health)
            answer.add_done_callback(partial(self._told, component))
            asked.append(answer)
        return asked

    def _look(self) -> None:
        self._timer = self._loop.call_later(EVERY_S, self._look)
        self.ask()

    def _told(self, component: Component, answer: asyncio.Future[object]) -> None:
        self._pending.discard(component.name)
        if answer.cancelled():
            return
        error = answer.exception()
        if error is None:
            self.unwell.pop(component.name, None)
        elif component in self._asked:
            self.unwell[component.name] = raised(f"The node {component.name!r}", error).detail
            _log.warning("not ready: %s", self.unwell[component.name])
