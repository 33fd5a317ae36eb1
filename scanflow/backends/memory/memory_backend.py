"""This process as a backend. Its state is lost when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from scanflow.backends.backend_base import BackendBase
from scanflow.backends.backend_port import OpenModels
from scanflow.backends.memory.memory_agents import MemoryAgents
from scanflow.backends.memory.memory_batch import MemoryBatch
from scanflow.backends.memory.memory_lease import MemoryLease
from scanflow.backends.memory.memory_online import MemoryOnline
from scanflow.settings import Settings


class Memory(BackendBase):
    """See :class:`~scanflow.backends.backend_port.Backend`.

    Batch workflows run in the thread that drives them, one task after the other; steps are functions. Requests to
    online workflows are answered in the caller's thread. Limits (cores, memory, time-outs, affinity) are not enforced.
    """

    name = "memory"

    def __init__(
        self,
        settings: Settings | None = None,
        open_models: OpenModels | None = None,  # noqa: ARG002  registered models are given as objects
        *,
        models: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Create an empty backend.

        Args:
            settings: Only the widest fan-out is used.
            open_models: Not used.
            models: Objects with a method ``predict``, by their address: ``{"models:/cnn/3": Stub()}``.
            clock: Seconds since the epoch.
            sleep: Waits before a retry; tests may advance their clock instead.
        """
        self._batch = MemoryBatch(settings or Settings(), clock=clock, sleep=sleep)
        self._online = MemoryOnline(models or {}, clock=clock)
        self._agents = MemoryAgents()
        self._leases: dict[str, tuple[str, float]] = {}
        self._clock = clock

    def batch(self) -> MemoryBatch:
        return self._batch

    def online(self, tracker: str | None = None) -> MemoryOnline:  # noqa: ARG002
        return self._online

    def agents(self, *, ended: Callable[[], None]) -> MemoryAgents:
        self._agents.listeners.append(ended)
        return self._agents

    def lease(self, name: str, *, holder: str, duration_s: float) -> MemoryLease:
        return MemoryLease(self._leases, name, holder, duration_s, self._clock)
