"""The schedulers of MPI jobs, by the simulator (thesis chapter 6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scanflow_research.experiment import Experiment, MeasureRound, Observe
from scanflow_research.figure import Round

if TYPE_CHECKING:
    from scanflow_research.simulation.event_simulation import Simulation


@contextmanager
def open_rounds(observe: Observe) -> Iterator[MeasureRound]:
    from scanflow_research.simulation.event_simulation import simulate
    from scanflow_research.simulation.schemes import SCENARIOS
    from scanflow_research.simulation.twenty_jobs import CONTENTION, generate_dgemm_jobs, generate_thesis_jobs

    def measure_round(number: int) -> Round:
        arms = {}
        for scheme in SCENARIOS:
            observe(scheme.name)
            ten = simulate(generate_dgemm_jobs(), scheme, CONTENTION, seed=number)
            twenty = simulate(generate_thesis_jobs(), scheme, CONTENTION, seed=number)
            arms[scheme.name] = collect_metrics(ten, twenty)
        return Round(arms=arms)

    yield measure_round


def collect_metrics(ten: Simulation, twenty: Simulation) -> dict[str, float]:
    """Return the metrics of section 6.4.1 for both experiments, in seconds."""
    network = [job.running_s for job in twenty.jobs if job.program in {"RandomRing", "FFT"}]
    return {
        "ten_running_s": ten.running_s / len(ten.jobs),
        "ten_response_s": ten.response_s,
        "response_s": twenty.response_s,
        "makespan_s": twenty.makespan_s,
        "running_s": twenty.running_s / len(twenty.jobs),
        "network_running_s": sum(network) / len(network),
        "worst_response_s": max(job.waiting_s + job.running_s for job in twenty.jobs),
        **{f"{program}_s": seconds for program, seconds in twenty.compute_running_times().items()},
    }


EXPERIMENT = Experiment(
    name="scheduling",
    method=(
        "Simulated: four nodes of two sockets with 16 cores each, the thesis' jobs at the times that its authors "
        "published, programs whose speeds were fitted to Fig. 6.6 (docs/mpi.md). Each round has another seed."
    ),
    rounds=5,
    round_s=1.0,
    find_problem=lambda: None,
    open=open_rounds,
    simulated=True,
)
