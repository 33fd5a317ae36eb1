"""This process as a backend. What it knows is gone with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from scanflow.backends.memory.batch import MemoryBatch
from scanflow.backends.memory.online import MemoryOnline
from scanflow.backends.port import OpenModels, RunBackend
from scanflow.errors import UnsupportedError
from scanflow.settings import Settings


class Memory:
    """See :class:`~scanflow.backends.port.Backend`.

    Batch workflows run in the thread that drives them, one task after the other; steps are functions. Online workflows
    are answered in the thread that asks. Limits (cores, memory, time-outs, affinity) are not enforced.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        open_models: OpenModels | None = None,  # noqa: ARG002  registered models are given as objects
        *,
        models: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Make an empty backend.

        Args:
            settings: Of them the widest fan-out is used.
            open_models: Not used.
            models: Objects with a method ``predict``, by their address: ``{"models:/cnn/3": Stub()}``.
            clock: Seconds since the epoch.
            sleep: Waits before a retry; a test may advance its clock instead.
        """
        self._batch = MemoryBatch(settings or Settings(), clock=clock, sleep=sleep)
        self._online = MemoryOnline(models or {}, clock=clock)

    def batch(self) -> MemoryBatch:
        return self._batch

    def online(self, tracker: str | None = None) -> MemoryOnline:  # noqa: ARG002
        return self._online

    def mpi(self) -> RunBackend:
        raise UnsupportedError("The backend 'memory' cannot run MPI jobs: it starts no processes.")
