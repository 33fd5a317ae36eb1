"""Models of simulated programs: how they spend their time. The thesis' five are in ``experiment``."""

from __future__ import annotations

from dataclasses import dataclass

from scanflow.app.mpi import MPIProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramModel:
    """An MPI program, as the contention model knows it: it computes, waits for memory, and is in MPI."""

    name: str
    profile: MPIProfile
    seconds: float
    """Its running time where nothing slows it: each rank alone on a CPU, with all the bandwidth it can use."""

    memory_share: float = 0.0
    """The share of that time in which it waits for memory."""

    memory_gb_per_s: float = 0.0
    """What one rank reads and writes then, undisturbed."""

    mpi_share: float = 0.0
    """The share of that time in which it is in MPI."""

    mpi_gb_per_s: float = 0.0
    """What one rank sends then, to ranks on its own node."""

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
