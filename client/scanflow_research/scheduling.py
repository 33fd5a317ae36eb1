"""The schedulers of MPI jobs, by the simulator (thesis chapter 6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scanflow_research.experiment import Experiment, MeasureRound, Observe
from scanflow_research.figure import Claim, Figure, FigurePanel, Round

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


def _claim_less(statement: str, metric: str, arm: str, base: str, published: float) -> Claim:
    return Claim(statement=statement, metric=metric, arm=arm, base=base, expect="less", published=published)


_SIX = ("NONE", "CM", "CM_S", "CM_G", "CM_S_TG", "CM_G_TG")
_FIVE = ("Kubeflow", "Volcano", "CM", "CM_S_TG", "CM_G_TG")

FIGURES = (
    Figure(
        name="fig6.4",
        source="Thesis, Fig. 6.4",
        title="Average running time of ten EP-DGEMM jobs",
        experiment="scheduling",
        claims=(
            _claim_less("CM is quicker than NONE", "ten_running_s", "CM", "NONE", 0.78),
            _claim_less("CM_G is quicker than CM", "ten_running_s", "CM_G", "CM", 0.85),
            _claim_less("CM_S is quicker than CM", "ten_running_s", "CM_S", "CM", 0.95),
        ),
        panels=(FigurePanel(metric="ten_running_s", label="average running time, s", arms=_SIX),),
    ),
    Figure(
        name="fig6.5",
        source="Thesis, Fig. 6.5",
        title="Overall response time of ten EP-DGEMM jobs",
        experiment="scheduling",
        claims=(
            _claim_less("CM_S takes 26 % less than NONE", "ten_response_s", "CM_S", "NONE", 0.74),
            _claim_less("CM_G takes 34 % less than NONE", "ten_response_s", "CM_G", "NONE", 0.66),
            _claim_less("CM_G takes 15 % less than CM", "ten_response_s", "CM_G", "CM", 0.85),
            Claim(
                statement="task groups make no significant difference for them",
                metric="ten_response_s",
                arm="CM_G_TG",
                base="CM_G",
                expect="same",
                published=1.0,
            ),
        ),
        panels=(FigurePanel(metric="ten_response_s", label="overall response time, s", arms=_SIX),),
    ),
    Figure(
        name="fig6.6",
        source="Thesis, Fig. 6.6",
        title="Running time by program, and overall response time, of 20 jobs",
        experiment="scheduling",
        claims=(
            _claim_less("CM_G_TG responds in 35 % less time than NONE", "response_s", "CM_G_TG", "NONE", 0.65),
            _claim_less("CM_S_TG responds in 32 % less time than NONE", "response_s", "CM_S_TG", "NONE", 0.68),
            _claim_less("CM_G_TG responds in 19 % less time than CM", "response_s", "CM_G_TG", "CM", 0.81),
            _claim_less("task groups reduce STREAM's time under CM_S by 33 %", "STREAM_s", "CM_S_TG", "CM_S", 0.67),
            Claim(
                statement="granularity makes no significant difference for RandomRing",
                metric="RandomRing_s",
                arm="CM_G",
                base="CM",
                expect="same",
                published=1.0,
            ),
        ),
        panels=(
            *(
                FigurePanel(metric=f"{name}_s", label=f"{name}: average running time, s", arms=_SIX)
                for name in ("DGEMM", "STREAM", "MiniFE")
            ),
            FigurePanel(metric="response_s", label="overall response time, s", arms=_SIX),
        ),
    ),
    Figure(
        name="fig6.7",
        source="Thesis, Fig. 6.7",
        title="Makespan of 20 jobs",
        experiment="scheduling",
        claims=(
            _claim_less("CM_G_TG takes 34 % less than NONE", "makespan_s", "CM_G_TG", "NONE", 0.66),
            _claim_less("CM_G_TG takes 11 % less than CM", "makespan_s", "CM_G_TG", "CM", 0.89),
            _claim_less("CM_S_TG takes 26 % less than NONE", "makespan_s", "CM_S_TG", "NONE", 0.74),
        ),
        panels=(FigurePanel(metric="makespan_s", label="makespan, s", arms=_SIX),),
    ),
    Figure(
        name="table6.3",
        source="Thesis, Table 6.3",
        title="Makespan under other frameworks",
        experiment="scheduling",
        claims=(
            Claim(
                statement="Kubeflow is like CM (2520 and 2529 s)",
                metric="makespan_s",
                arm="Kubeflow",
                base="CM",
                expect="same",
                published=0.996,
            ),
            _claim_less("CM_G_TG takes less than Kubeflow (2258 s)", "makespan_s", "CM_G_TG", "Kubeflow", 0.896),
            Claim(
                statement="Volcano, one rank a container, takes many times longer (123055 s)",
                metric="makespan_s",
                arm="Volcano",
                base="Kubeflow",
                expect="at least",
                least=10.0,
                published=48.8,
            ),
        ),
        panels=(FigurePanel(metric="makespan_s", label="makespan, s", arms=_FIVE),),
    ),
    Figure(
        name="fig6.8",
        source="Thesis, Fig. 6.8",
        title="Running time of each job under other frameworks",
        experiment="scheduling",
        claims=(
            Claim(
                statement="jobs run as long under Kubeflow as under CM",
                metric="running_s",
                arm="Kubeflow",
                base="CM",
                expect="same",
                published=1.0,
            ),
            Claim(
                statement="under Volcano network-bound jobs are much slower",
                metric="network_running_s",
                arm="Volcano",
                base="Kubeflow",
                expect="at least",
                least=10.0,
            ),
        ),
        panels=(
            FigurePanel(metric="running_s", label="mean running time, s", arms=_FIVE),
            FigurePanel(metric="network_running_s", label="of network-bound jobs, s", arms=_FIVE),
        ),
    ),
    Figure(
        name="fig6.9",
        source="Thesis, Fig. 6.9",
        title="Response time of each job under other frameworks",
        experiment="scheduling",
        claims=(
            _claim_less("CM_G_TG responds sooner than Kubeflow", "response_s", "CM_G_TG", "Kubeflow", 0.81),
            Claim(
                statement="Volcano is the worst",
                metric="response_s",
                arm="Volcano",
                base="NONE",
                expect="at least",
                least=2.0,
            ),
        ),
        panels=(FigurePanel(metric="response_s", label="response times together, s", arms=_FIVE),),
    ),
)
