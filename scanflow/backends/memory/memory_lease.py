"""A lease among the threads of this process."""

from __future__ import annotations

from collections.abc import Callable


class MemoryLease:
    """See :class:`~scanflow.backends.backend_port.Lease`."""

    def __init__(
        self,
        holders: dict[str, tuple[str, float]],
        name: str,
        holder: str,
        duration_s: float,
        clock: Callable[[], float],
    ) -> None:
        """``holders``: holder and expiry time of each lease by name, shared by all leases of one backend."""
        self._holders, self._name, self._holder = holders, name, holder
        self._duration_s, self._clock = duration_s, clock

    def take(self) -> bool:
        holder, until = self._holders.get(self._name, ("", 0.0))
        if holder not in {"", self._holder} and self._clock() < until:
            return False
        self._holders[self._name] = (self._holder, self._clock() + self._duration_s)
        return True

    def release(self) -> None:
        if self._holders.get(self._name, ("", 0.0))[0] == self._holder:
            del self._holders[self._name]
