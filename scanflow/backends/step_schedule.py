"""Scheduling of steps by their graph and a budget of cores and memory. Pure: no clock, no processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Literal

Outcome = Literal["ran", "skipped"]


class StepProgress:
    """Tracks which steps are ready. Linear in nodes and edges over a whole run."""

    def __init__(self, parents: Mapping[str, Sequence[str]]) -> None:
        self._parents, self._outcomes = parents, dict[str, Outcome]()
        self._sorter = TopologicalSorter(parents)
        self._sorter.prepare()
        self._ready: deque[str] = deque()

    def take_next_ready(self) -> str | None:
        self._ready.extend(self._sorter.get_ready())
        return self._ready.popleft() if self._ready else None

    def end(self, step: str, outcome: Outcome) -> None:
        self._outcomes[step] = outcome
        self._sorter.done(step)

    def should_skip(self, step: str) -> bool:
        """Return whether all parents of a ready step were skipped, so that it is skipped too."""
        before = self._parents[step]
        return bool(before) and all(self._outcomes.get(parent) == "skipped" for parent in before)

    @property
    def finished(self) -> bool:
        return len(self._outcomes) == len(self._parents)


@dataclass(frozen=True, slots=True)
class Share:
    """The cores and memory of one running task."""

    cores: float = 1.0
    memory_bytes: int = 0


class Budget:
    """The cores and memory available to tasks. A task that runs alone always fits, so that none waits forever."""

    def __init__(self, cores: float, memory_bytes: int) -> None:
        self._cores = cores
        self._memory = memory_bytes
        self._held = 0

    def take(self, share: Share) -> bool:
        """Reserve a share if it is free or no other is reserved; return whether it was reserved."""
        fits = share.cores <= self._cores + 1e-9 and share.memory_bytes <= self._memory
        if not fits and self._held:
            return False
        self.hold(share)
        return True

    def hold(self, share: Share) -> None:
        """Reserve a share unconditionally: its task is already running."""
        self._cores -= share.cores
        self._memory -= share.memory_bytes
        self._held += 1

    def release(self, share: Share) -> None:
        self._cores += share.cores
        self._memory += share.memory_bytes
        self._held -= 1
