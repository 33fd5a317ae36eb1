"""The latest heartbeat of each agent, in memory: the store is written only when an agent's address changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from scanflow_server.store.agent_store import AgentRow

SILENT_S = 45.0
"""After this many seconds without a heartbeat an agent is silent; it sends one at least every 20 s."""


_WATCHED_S = 5.0
"""For how long somebody counts as looking at the agents after the last look; an open page looks every second."""


class Heartbeats:
    """Thread-safe."""

    def __init__(self, since: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        """``since``: when the server started, in seconds since the epoch: the last heartbeat of agents that have sent
        none yet."""
        self._since, self._monotonic = since, monotonic
        self._lock = threading.Lock()
        self._latest: dict[tuple[str, str], AgentRow] = {}
        self._changes = 0
        self._looked = float("-inf")

    @property
    def changes(self) -> int:
        """How many heartbeats told of something new: an agent's first, and those whose sensors had fired since."""
        return self._changes

    def look(self) -> int:
        """Return :attr:`changes` for a page of agents: while it is open, agents report each firing of their sensors."""
        self._looked = self._monotonic()
        return self._changes

    @property
    def is_watched(self) -> bool:
        return self._monotonic() - self._looked < _WATCHED_S

    def note(self, row: AgentRow, *, at: float, sensors: list[dict[str, Any]] | None) -> None:
        with self._lock:
            before = self._latest.get((row.app, row.name))
            self._changes += before is None or before.sensors != sensors
            self._latest[row.app, row.name] = row.model_copy(update={"seen": at, "sensors": sensors})

    def get(self, app: str, name: str) -> AgentRow | None:
        """Return the agent as of its last heartbeat."""
        with self._lock:
            return self._latest.get((app, name))

    def refresh(self, row: AgentRow) -> AgentRow:
        """Return a row updated with the time and the sensors of its agent's last heartbeat."""
        if row.seen is None:
            return row
        heartbeat = self.get(row.app, row.name)
        if heartbeat is None or (heartbeat.pid, heartbeat.url) != (row.pid, row.url):
            return row.model_copy(update={"seen": max(row.seen, self._since)})
        return row.model_copy(update={"seen": heartbeat.seen, "sensors": heartbeat.sensors})

    def is_alive(self, row: AgentRow, now: float) -> bool:
        """Whether an agent's last heartbeat is recent."""
        seen = self.refresh(row).seen
        return seen is not None and now - seen <= SILENT_S
