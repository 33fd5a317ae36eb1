"""Periodic health checks of components by their ``health_status``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from scanflow_serving.component_threads import Engine
from scanflow_serving.components import Component, make_component_problem
from scanflow_serving.revisions import LoadedRevision

INTERVAL_S: Final = 5.0
_log = logging.getLogger(__name__)


class HealthChecks:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._checked: list[Component] = []
        self._task: asyncio.Task[None] | None = None
        self.failures: dict[str, str] = {}
        """The nodes whose ``health_status`` raises, with the message."""

    def watch(self, revisions: Iterable[LoadedRevision]) -> None:
        """Check the components of these revisions periodically; loading has checked them once."""
        self.close()
        self.failures = {}
        self._checked = [
            component
            for loaded in revisions
            if not loaded.shadow
            for component in loaded.components.values()
            if component.health is not None
        ]
        if self._checked:
            self._task = asyncio.create_task(self._run())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def check(self) -> None:
        for component in self._checked:
            assert component.health is not None
            try:
                async with asyncio.timeout(self._engine.deadline_s):
                    await self._engine.run(component.health)
            except Exception as error:  # noqa: BLE001 - a component may raise anything
                if isinstance(error, TimeoutError):
                    self._engine.check_workers()
                self.failures[component.name] = make_component_problem(f"The node {component.name!r}", error).detail
                _log.warning("not ready: %s", self.failures[component.name])
            else:
                self.failures.pop(component.name, None)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.check()
