"""A machine on which candidates are measured without one: what each is worth is said, and noise is drawn."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from scanflow.tuning.candidates import Candidate
from scanflow.tuning.goals import Measurement


@dataclass
class SimulatedBench:
    """Requests a second as ``worth`` says, times noise and a drift that goes on while time passes."""

    worth: Callable[[Candidate], float]
    noise: float = 0.0
    """Standard deviation of a measurement, as a share."""

    drift: float = 0.0
    """By which share the machine becomes slower with each measurement."""

    seed: int = 0
    p99_s: Callable[[Candidate], float] = lambda _one: 0.02
    took_s: float = 5.0
    now: float = 0.0
    measured: list[Candidate] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def clock(self) -> float:
        return self.now

    def measure(self, candidate: Candidate) -> Measurement:
        self.now += self.took_s
        slower = (1 - self.drift) ** len(self.measured)
        self.measured.append(candidate)
        rate = max(0.01, self.worth(candidate) * slower * (1 + self._random.gauss(0, self.noise)))
        p99_s = self.p99_s(candidate)
        return Measurement(rate=rate, p50_s=p99_s / 3, p90_s=1 / rate, p99_s=p99_s, requests=100)
