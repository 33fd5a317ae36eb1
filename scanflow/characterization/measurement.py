"""What was measured: a program's run, its placement and the resources it used; a service or an MPI job at one size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["succeeded", "failed", "out of memory", "timed out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """The resources that a run used, over all its processes; None: this machine does not count it."""

    outcome: Outcome
    seconds: float
    cpu_s: float
    peak_bytes: int
    """Of its memory control group, else of its largest process."""

    voluntary_switches: int
    """Context switches because it waited."""

    involuntary_switches: int
    """Context switches because it was preempted."""

    minor_faults: int
    major_faults: int
    """Page faults that read from a disk."""

    read_blocks: int
    written_blocks: int
    """Blocks of 512 bytes, from and to a disk."""

    migrations: int | None = None
    """Migrations from one CPU to another."""

    cache_misses: int | None = None
    others: float = 0.0
    """Cores that other processes used meanwhile."""

    exit_code: int | None = None
    last_lines: str = ""
    """Its last output, if it failed."""

    @property
    def cores(self) -> float:
        """The average number of cores used."""
        return self.cpu_s / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedRun:
    """Measurement of a service under load at one size, or of a run of a job with one number of ranks."""

    seconds: float
    """Duration of a run, or of a request."""

    cores: float
    """Cores used on average."""

    peak_bytes: int
    """Peak memory of an instance, or of all ranks together."""

    gpu_bytes: int | None = None
    """Peak memory of GPUs, of all instances together; None: it has none, or it was not seen."""

    others: float = 0.0
    """Cores that other processes used meanwhile; 0 for a job's run, where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The CPUs that a program runs on."""

    cpus: tuple[int, ...]
    caches: Literal["", "shared", "separate"] = ""
    """Whether its cores share a last-level cache; empty: there is only one choice."""
