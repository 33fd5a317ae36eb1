"""What is done every so many seconds, in a loop that comes by more often."""

from __future__ import annotations


class IntervalGate:
    """When each thing was done last."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def due(self, what: str, every_s: float, now: float) -> bool:
        """Say whether it is time for it again, and take it as done."""
        if now - self._last.get(what, float("-inf")) < every_s:
            return False
        self._last[what] = now
        return True
