"""When each agent was last heard of. Kept in memory: each says again and again that it is there, and the store is
written only when that is news."""

from __future__ import annotations

import threading
from typing import Any

from scanflow_server.store.agents import AgentRow

SILENT_S = 45.0
"""After so long without a word, in seconds, an agent is silent; it says at least every 20 s that it is there."""


class Heartbeats:
    """Thread-safe."""

    def __init__(self, since: float) -> None:
        """``since``: when the server began, in seconds since the epoch. Until it has heard of an agent, it counts from
        then how long it has not."""
        self._since = since
        self._lock = threading.Lock()
        self._latest: dict[tuple[str, str], AgentRow] = {}

    def note(self, one: AgentRow, *, at: float, sensors: list[dict[str, Any]] | None) -> None:
        with self._lock:
            self._latest[one.app, one.name] = one.model_copy(update={"seen": at, "sensors": sensors})

    def known(self, app: str, name: str) -> AgentRow | None:
        """Return the agent as it was when it was last noted."""
        with self._lock:
            return self._latest.get((app, name))

    def latest(self, one: AgentRow) -> AgentRow:
        """Return a row with when its agent was last heard of, and how its sensors fared then."""
        if one.seen is None:
            return one
        heard = self.known(one.app, one.name)
        if heard is None or (heard.pid, heard.url) != (one.pid, one.url):
            return one.model_copy(update={"seen": max(one.seen, self._since)})
        return one.model_copy(update={"seen": heard.seen, "sensors": heard.sensors})

    def heard(self, one: AgentRow, now: float) -> bool:
        """Whether an agent was heard of lately."""
        seen = self.latest(one).seen
        return seen is not None and now - seen <= SILENT_S
