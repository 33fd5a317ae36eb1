"""Classification of a program's bottleneck: cpu, memory or network (thesis 6.3.1 and 6.4.1). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scanflow.app.mpi import MPIProfile

LATENCY_S: Final = 50e-6
BANDWIDTH_BYTES: Final = 117e6
"""The network between workers of a split job: gigabit Ethernet, as in the clusters of thesis 6.4.1."""

NETWORK_SHARE: Final = 0.2
"""A task with at least this share of its time is network-bound. The thesis' applications lie far above or below it."""

MPI_SHARE: Final = 0.5
"""The same for the share of CPU time inside MPI, if nothing else is known; it includes waiting."""

MEMORY_BYTES: Final = 1e9
"""A program with at least this traffic beyond the caches per CPU second is memory-bound: a tenth of a core's limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTotals:
    """Total measurements of a program over its ranks."""

    how: str
    """The measuring method, for people."""

    seconds: float
    cpu_s: float = 0.0
    """CPU time outside MPI."""

    messages: int = 0
    """Messages that a rank waits for one after the other."""

    bytes: int = 0
    """Bytes sent to other ranks."""

    share_in_mpi: float | None = None
    """The share of CPU time in MPI, if messages could not be counted."""

    memory_bytes: float | None = None
    """Memory traffic per CPU second, a lower bound. None: it could not be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A program's bottleneck and the evidence for it."""

    profile: MPIProfile | None
    """None: unknown, so that the job is not split."""

    reason: str

    def __str__(self) -> str:
        conclusion = "bottleneck unknown" if self.profile is None else f"{self.profile}-bound"
        return f"{conclusion}: {self.reason}"


def classify(seen: MeasuredTotals) -> Profile:
    """Classify a program's bottleneck.

    The network, if its messages over gigabit Ethernet would take a fifth of its time or more; else memory, if its
    traffic beyond the caches is a gigabyte or more per CPU second; else the CPU. Time inside MPI alone is not
    sufficient: where tasks share cores, most of it is waiting, however little is sent (thesis Table 3.1).
    """
    memory = seen.memory_bytes
    traffic = "unknown (too few samples of /proc/PID/clear_refs)" if memory is None else f"{memory / 1e9:.1f} GB"
    if seen.share_in_mpi is None:
        sending = seen.messages * LATENCY_S + seen.bytes / BANDWIDTH_BYTES
        share = sending / (sending + seen.cpu_s) if sending + seen.cpu_s > 0 else 0.0
        sends = share >= NETWORK_SHARE
        evidence = (
            f"{share:.0%} of its time would be spent on gigabit Ethernet ({seen.messages:,} messages, "
            f"{seen.bytes / 1e6:,.1f} MB; {seen.cpu_s:.1f} s of CPU outside MPI)"
        )
    else:
        sends = seen.share_in_mpi >= MPI_SHARE
        evidence = f"{seen.share_in_mpi:.0%} of its CPU time is spent in MPI"
    reason = f"{evidence}, and memory traffic is {traffic} per CPU second; {seen.how}, {seen.seconds:.1f} s"
    profile: MPIProfile = "cpu"
    if sends:
        profile = "network"
    elif memory is not None and memory >= MEMORY_BYTES:
        profile = "memory"
    return Profile(profile=profile, reason=reason)
