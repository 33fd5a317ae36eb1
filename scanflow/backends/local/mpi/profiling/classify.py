"""From what was measured of a program to what bounds it: cpu, memory or network (thesis 6.3.1 and 6.4.1). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scanflow.app.mpi import MPIProfile

LATENCY_S: Final = 50e-6
BANDWIDTH_BYTES: Final = 117e6
"""Of the network that a job would use if it were cut: gigabit Ethernet, as the clusters of thesis 6.4.1 have."""

NETWORK_SHARE: Final = 0.2
"""From this share of a task's time on, the network bounds it. The thesis' applications lie far to both sides."""

MPI_SHARE: Final = 0.5
"""The same of the CPU time inside MPI, where nothing else is known; it has waiting in it."""

MEMORY_BYTES: Final = 1e9
"""From this traffic beyond the caches on, for each second of CPU, memory bounds it: a tenth of what a core can do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was seen of the ranks of a program, together."""

    how: str
    """What measured it, for people."""

    seconds: float
    cpu_s: float = 0.0
    """CPU time outside MPI."""

    messages: int = 0
    """Those that a rank waits for one after the other."""

    bytes: int = 0
    """Sent to other ranks."""

    share_in_mpi: float | None = None
    """Of its CPU time, where messages were not seen."""

    memory_bytes: float | None = None
    """Traffic with memory for each second of CPU, at least. None: it could not be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What bounds a program, and why that is thought."""

    profile: MPIProfile | None
    """None: it could not be found out, so that the job is not cut."""

    reason: str

    def __str__(self) -> str:
        said = "what bounds it is not known" if self.profile is None else f"the {self.profile} bounds it"
        return f"{said}: {self.reason}"


def classify(seen: Measured) -> Profile:
    """Return what bounds a program.

    The network, if sending what it sends over gigabit Ethernet would take a fifth of its time or more; else memory, if
    it moves a gigabyte or more for each second of CPU that no cache holds; else the CPU. Time inside MPI alone would
    not do: where tasks share cores, most of it is waiting for others, however little is sent (thesis Table 3.1).
    """
    memory = seen.memory_bytes
    traffic = "unknown (too little was seen of /proc/PID/clear_refs)" if memory is None else f"{memory / 1e9:.1f} GB"
    if seen.share_in_mpi is None:
        sending = seen.messages * LATENCY_S + seen.bytes / BANDWIDTH_BYTES
        share = sending / (sending + seen.cpu_s) if sending + seen.cpu_s > 0 else 0.0
        sends = share >= NETWORK_SHARE
        told = (
            f"{share:.0%} of its time would go to gigabit Ethernet ({seen.messages:,} messages, "
            f"{seen.bytes / 1e6:,.1f} MB; {seen.cpu_s:.1f} s of CPU outside MPI)"
        )
    else:
        sends = seen.share_in_mpi >= MPI_SHARE
        told = f"{seen.share_in_mpi:.0%} of its CPU time is MPI's"
    reason = f"{told}, and memory traffic is {traffic} for each second of CPU; {seen.how}, {seen.seconds:.1f} s"
    found: MPIProfile = "cpu"
    if sends:
        found = "network"
    elif memory is not None and memory >= MEMORY_BYTES:
        found = "memory"
    return Profile(profile=found, reason=reason)
