"""Models of simulated programs: how their time is spent. The thesis' five programs are in ``experiment``."""

from __future__ import annotations

from dataclasses import dataclass

from scanflow.app.mpi import MPIProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramModel:
    """An MPI program as the contention model describes it: it computes, waits for memory, and communicates by MPI."""

    name: str
    profile: MPIProfile
    seconds: float
    """Its running time without any slowdown: each rank alone on a CPU, with all the bandwidth it can use."""

    memory_share: float = 0.0
    """The share of that time spent waiting for memory."""

    memory_gb_per_s: float = 0.0
    """Memory traffic of one rank during that share, undisturbed."""

    mpi_share: float = 0.0
    """The share of that time spent in MPI."""

    mpi_gb_per_s: float = 0.0
    """Data rate of one rank to ranks on its own node during that share."""

    @property
    def compute_share(self) -> float:
        return 1.0 - self.memory_share - self.mpi_share


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJob:
    """One job of an experiment."""

    name: str
    program: ProgramModel
    submitted_s: float
    n_tasks: int = 16
    n_nodes: int = 4
