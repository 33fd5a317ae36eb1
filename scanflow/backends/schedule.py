"""What may start next: pure bookkeeping over a graph and a budget of cores and memory. No clock, no processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Literal

Outcome = Literal["ran", "skipped"]


class StepProgress:
    """Which steps wait for nothing any more. Linear in nodes and edges over a whole run."""

    def __init__(self, parents: Mapping[str, Sequence[str]]) -> None:
        self._parents, self._outcomes = parents, dict[str, Outcome]()
        self._sorter = TopologicalSorter(parents)
        self._sorter.prepare()
        self._ready: deque[str] = deque()

    def next_ready(self) -> str | None:
        self._ready.extend(self._sorter.get_ready())
        return self._ready.popleft() if self._ready else None

    def end(self, step: str, outcome: Outcome) -> None:
        self._outcomes[step] = outcome
        self._sorter.done(step)

    def must_skip(self, step: str) -> bool:
        """Say whether all that a ready step waited for was skipped, so that it is skipped too."""
        before = self._parents[step]
        return bool(before) and all(self._outcomes.get(parent) == "skipped" for parent in before)

    @property
    def finished(self) -> bool:
        return len(self._outcomes) == len(self._parents)


@dataclass(frozen=True, slots=True)
class Share:
    """What one task takes of the machine while it runs."""

    cores: float = 1.0
    memory_bytes: int = 0


class Budget:
    """Cores and memory to hand out. What runs alone always fits, so that nothing waits for ever."""

    def __init__(self, cores: float, memory_bytes: int) -> None:
        self._cores = cores
        self._memory = memory_bytes
        self._held = 0

    def take(self, share: Share) -> bool:
        """Take a share if it is free, or if nothing else is held; say whether it was taken."""
        fits = share.cores <= self._cores + 1e-9 and share.memory_bytes <= self._memory
        if not fits and self._held:
            return False
        self.hold(share)
        return True

    def hold(self, share: Share) -> None:
        """Take a share whether it is free or not: its task runs already."""
        self._cores -= share.cores
        self._memory -= share.memory_bytes
        self._held += 1

    def give_back(self, share: Share) -> None:
        self._cores += share.cores
        self._memory += share.memory_bytes
        self._held -= 1
