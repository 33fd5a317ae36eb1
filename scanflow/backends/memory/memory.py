"""This process as a backend. Its state is lost when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from scanflow.app.application import Application
from scanflow.app.workflow import Workflow
from scanflow.backends.environments import EnvironmentBackend, ObjectChange
from scanflow.backends.findings import Finding
from scanflow.backends.memory.agents import MemoryAgents
from scanflow.backends.memory.batch import MemoryBatch
from scanflow.backends.memory.lease import MemoryLease
from scanflow.backends.memory.online import MemoryOnline
from scanflow.backends.port import HostedProgram, OpenModels, RunBackend
from scanflow.errors import UnsupportedError
from scanflow.settings import Settings


class Memory:
    """See :class:`~scanflow.backends.port.Backend`.

    Batch workflows run in the thread that drives them, one task after the other; steps are functions. Requests to
    online workflows are answered in the caller's thread. Limits (cores, memory, time-outs, affinity) are not enforced.
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

    def mpi(self) -> RunBackend:
        raise UnsupportedError("The backend 'memory' cannot run MPI jobs: it starts no processes.")

    def agents(self, *, ended: Callable[[], None]) -> MemoryAgents:
        self._agents.listeners.append(ended)
        return self._agents

    def lease(self, name: str, *, holder: str, duration_s: float) -> MemoryLease:
        return MemoryLease(self._leases, name, holder, duration_s, self._clock)

    def objects(self, app: Application, workflow: Workflow) -> list[ObjectChange]:  # noqa: ARG002
        return []

    def tracker(self, app: Application) -> None:  # noqa: ARG002
        return None

    def environments(self) -> EnvironmentBackend:
        raise UnsupportedError(
            "The backend 'memory' has no environments: a run needs no preparation. Name a cluster: --backend kubernetes"
        )

    def program(
        self,
        command: Sequence[str],  # noqa: ARG002
        environment: Mapping[str, str],  # noqa: ARG002
    ) -> AbstractContextManager[HostedProgram]:
        raise UnsupportedError("The backend 'memory' does not host programs: start them on this machine.")

    def doctor(self, *, thorough: bool = False) -> list[Finding]:  # noqa: ARG002
        return []
