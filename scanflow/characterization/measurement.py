"""The records of a program's run: its placement and the resources it used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["succeeded", "failed", "out of memory", "timed out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """The resources that a run used, all its processes together; None: this machine does not count it."""

    outcome: Outcome
    seconds: float
    cpu_s: float
    peak_bytes: int
    """Of its memory group, else of its largest process."""

    voluntary_switches: int
    """Context switches in which it waited for something."""

    involuntary_switches: int
    """Context switches in which it was made to wait for a CPU."""

    minor_faults: int
    major_faults: int
    """Page faults that had to read a disk."""

    read_blocks: int
    written_blocks: int
    """Of 512 bytes, from and to a disk."""

    migrations: int | None = None
    """From one CPU to another."""

    cache_misses: int | None = None
    exit_code: int | None = None
    last_lines: str = ""
    """Of what it wrote, where it failed."""

    @property
    def cores(self) -> float:
        """How many it used, on average."""
        return self.cpu_s / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The CPUs that a program runs on."""

    cpus: tuple[int, ...]
    caches: Literal["", "shared", "separate"] = ""
    """Whether its cores have a last cache together; empty: there is one choice only."""
