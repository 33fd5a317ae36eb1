"""The thesis' experiment with 20 jobs (6.4.3, 6.4.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import median

from scanflow_research.simulation.contention import Contention
from scanflow_research.simulation.event_simulation import Simulation
from scanflow_research.simulation.programs import ProgramModel, SubmittedJob

__all__ = ["generate_thesis_jobs"]

# Fitted to the running times of Fig. 6.6a-e: each program's seconds, the memory shares of STREAM and MiniFE, MiniFE's
# rate; migration, floating_compute, floating_mpi. Fitted to those of RandomRing and FFT under Volcano (Fig. 6.8): the
# share of 1 Gbit/s that the pod network gives, and FFT's MPI rate. Taken from what the thesis' authors measured: the
# rates of STREAM, alone and with 16 ranks on a socket, and of RandomRing; the MPI shares (3.3.4: 87 % and 15 % of the
# time); that FFT is a third faster on two sockets than on one (3.3.4), which is its memory share if 8 ranks just fill a
# socket. docs/mpi.md has the residuals, and ``python -m tests.science.mpi_fit`` makes them.
DGEMM = ProgramModel(name="DGEMM", profile="cpu", seconds=1046.0)
STREAM = ProgramModel(name="STREAM", profile="memory", seconds=194.0, memory_share=0.642, memory_gb_per_s=7.94)
MINIFE = ProgramModel(name="MiniFE", profile="memory", seconds=800.0, memory_share=0.636, memory_gb_per_s=4.56)
RANDOM_RING = ProgramModel(name="RandomRing", profile="network", seconds=434.5, mpi_share=0.87, mpi_gb_per_s=1.89)
FFT = ProgramModel(
    name="FFT",
    profile="network",
    seconds=167.0,
    memory_share=0.34,
    memory_gb_per_s=5.54,
    mpi_share=0.15,
    mpi_gb_per_s=0.91,
)
PROGRAMS = (DGEMM, STREAM, MINIFE, RANDOM_RING, FFT)

CONTENTION = Contention(
    socket_gb_per_s=44.3, network_gb_per_s=0.125 * 0.636, migration=0.15, floating_compute=0.521, floating_mpi=0.709
)

_SUBMITTED = (
    (0, RANDOM_RING), (42, DGEMM), (154, STREAM), (195, MINIFE), (255, FFT), (272, MINIFE), (385, STREAM),
    (472, RANDOM_RING), (498, FFT), (553, DGEMM), (584, STREAM), (612, RANDOM_RING), (651, DGEMM), (684, FFT),
    (708, MINIFE), (747, RANDOM_RING), (810, MINIFE), (853, STREAM), (896, DGEMM), (1167, FFT),
)  # fmt: skip


MAKESPANS_S = {
    "NONE": 3398,
    "CM": 2529,
    "CM_S": 2535,
    "CM_G": 2290,
    "CM_S_TG": 2498,
    "CM_G_TG": 2258,
    "Kubeflow": 2520,
    "Volcano": 123_055,
}
"""The thesis' measurements: Table 6.3, and Fig. 6.7 for the three that are not in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeSummary:
    """A scenario under several seeds: medians, in seconds."""

    scenario: str
    waiting_s: float
    running_s: float
    response_s: float
    makespan_s: float
    shortest_makespan_s: float
    longest_makespan_s: float


def generate_thesis_jobs() -> tuple[SubmittedJob, ...]:
    """Return the jobs of the thesis, at the times published by its authors."""
    return tuple(_build_job(place, program, at) for place, (at, program) in enumerate(_SUBMITTED))


def generate_jobs(seed: int) -> tuple[SubmittedJob, ...]:
    """Return random jobs, drawn as in 6.4.3: each program four times, within 1200 seconds."""
    random = Random(seed)  # noqa: S311  to draw, not to hide
    programs = [program for program in PROGRAMS for _ in range(4)]
    random.shuffle(programs)
    times = sorted(random.uniform(0, 1200) for _ in programs)
    return tuple(
        _build_job(place, program, at) for place, (at, program) in enumerate(zip(times, programs, strict=True))
    )


def generate_dgemm_jobs() -> tuple[SubmittedJob, ...]:
    """Return the ten jobs of 6.4.2, one each minute."""
    return tuple(_build_job(place, DGEMM, 60 * place) for place in range(10))


def summarize(runs: Sequence[Simulation]) -> SchemeSummary:
    """Return the medians of one scenario's simulations."""
    makespans = [run.makespan_s for run in runs]
    return SchemeSummary(
        scenario=runs[0].scenario,
        waiting_s=median(run.waiting_s for run in runs),
        running_s=median(run.running_s for run in runs),
        response_s=median(run.response_s for run in runs),
        makespan_s=median(makespans),
        shortest_makespan_s=min(makespans),
        longest_makespan_s=max(makespans),
    )


def _build_job(place: int, program: ProgramModel, at: float) -> SubmittedJob:
    return SubmittedJob(name=f"{program.name.lower()}-{place}", program=program, submitted_s=at)
