"""The simulator's contention model beside the thesis' figures: ``python -m tests.science.mpi_fit [fit]``.

Fig. 6.6a-e has 30 running times, and eleven parameters are fitted to them; two more, of the network, to the two running
times that the network decides under Volcano (Fig. 6.8). All else that is printed is predicted. ``fit`` fits the eleven
again, which takes minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, log
from statistics import fmean, median
from typing import Any

from scanflow_research.simulation.contention import Contention
from scanflow_research.simulation.event_simulation import Simulation, simulate
from scanflow_research.simulation.programs import ProgramModel, SubmittedJob
from scanflow_research.simulation.schemes import CM, CM_G, CM_G_TG, CM_S, CM_S_TG, NONE, SCENARIOS, DeploymentScheme
from scanflow_research.simulation.twenty_jobs import (
    CONTENTION,
    MAKESPANS_S,
    PROGRAMS,
    generate_dgemm_jobs,
    generate_thesis_jobs,
)

FITTED_SCENARIOS = (NONE, CM, CM_S, CM_G, CM_S_TG, CM_G_TG)
RUNNING_S: dict[str, Sequence[float]] = {
    "DGEMM": (1768, 1183.75, 1156.25, 1043.5, 1175.25, 1017.5),
    "STREAM": (364.75, 441, 376.5, 282.25, 251, 251.25),
    "MiniFE": (1060.75, 1137.5, 1013.5, 989.75, 851.5, 859),
    "RandomRing": (736, 432, 439, 459.25, 439.25, 439),
    "FFT": (230.75, 236.25, 257.25, 238, 235, 236.75),
}
"""Fig. 6.6a-e, in the order of ``FITTED_SCENARIOS``: mean running times, as their authors published them."""

RESPONSE_S = {"NONE": 20_876, "CM": 16_949, "CM_S": 16_216, "CM_G": 15_172, "CM_S_TG": 14_239, "CM_G_TG": 13_652}
"""Fig. 6.6f."""

DGEMM_RUNNING_S = (1521.4, 1180.5, 1139.1, 1019.8, 1130.5, 998.5)
DGEMM_RESPONSE_S = (17_312, 13_312, 12_823, 11_472, 12_710, 11_220)
"""Fig. 6.4 and 6.5, in the order of ``FITTED_SCENARIOS``."""

VOLCANO_RUNNING_S = {"DGEMM": 975, "STREAM": 260, "MiniFE": 1029, "RandomRing": 121_300, "FFT": 5427}
"""Fig. 6.8."""

Fitted = Mapping[str, float]


def list_parameters(programs: Sequence[ProgramModel], contention: Contention) -> dict[str, float]:
    """Return what is fitted, by name."""
    metrics = {f"{program.name}.seconds": program.seconds for program in programs}
    memory = {program.name: program for program in programs}
    metrics["STREAM.memory_share"] = memory["STREAM"].memory_share
    metrics["MiniFE.memory_share"] = memory["MiniFE"].memory_share
    metrics["MiniFE.memory_gb_per_s"] = memory["MiniFE"].memory_gb_per_s
    return metrics | {name: getattr(contention, name) for name in ("migration", "floating_compute", "floating_mpi")}


def with_parameters(fitted: Fitted) -> tuple[dict[str, ProgramModel], Contention]:
    programs = {program.name: program for program in PROGRAMS}
    contention = CONTENTION
    for name, value in fitted.items():
        program, _, attribute = name.rpartition(".")
        if program:
            changed: dict[str, Any] = {attribute: value}
            programs[program] = replace(programs[program], **changed)
        else:
            contention = replace(contention, **{name: value})
    return programs, contention


def simulate_figure(fitted: Fitted, *, seeds: int) -> dict[str, list[float]]:
    """Return the figure as simulated."""
    programs, contention = with_parameters(fitted)
    jobs = [replace(job, program=programs[job.program.name]) for job in generate_thesis_jobs()]
    durations: dict[str, list[float]] = {name: [] for name in RUNNING_S}
    for scenario in FITTED_SCENARIOS:
        runs = [simulate(jobs, scenario, contention, seed=seed).compute_running_times() for seed in range(seeds)]
        for name, times in durations.items():
            times.append(fmean(run[name] for run in runs))
    return durations


def misfit(fitted: Fitted, *, seeds: int) -> float:
    """Return the mean square of the logarithms of simulated to measured."""
    simulation = simulate_figure(fitted, seeds=seeds)
    return fmean(
        log(ours / theirs) ** 2
        for name, measured in RUNNING_S.items()
        for ours, theirs in zip(simulation[name], measured, strict=True)
    )


def fit(*, seeds: int = 6, evaluations: int = 500) -> dict[str, float]:
    """Return the parameters with the smallest misfit that was found, beginning with the ones in use."""
    from scipy.optimize import minimize

    start = list_parameters(PROGRAMS, CONTENTION)

    def cost(logarithms: Sequence[float]) -> float:
        fitted = {name: exp(value) for name, value in zip(start, logarithms, strict=True)}
        programs, _ = with_parameters(fitted)
        if any(program.compute_share < 0 for program in programs.values()):
            return 1.0
        return misfit(fitted, seeds=seeds)

    at = [log(value) for value in start.values()]
    corners = [at, *([value + 0.1 * (place == moved) for place, value in enumerate(at)] for moved in range(len(at)))]
    best = minimize(
        cost,
        at,
        method="Nelder-Mead",
        options={"maxfev": evaluations, "adaptive": True, "xatol": 1e-3, "fatol": 1e-7, "initial_simplex": corners},
    )
    return {name: exp(value) for name, value in zip(start, best.x, strict=True)}


def row(name: str, ours: Sequence[float], theirs: Sequence[float]) -> str:
    both = (
        f"{first:,.0f} ({other:,.0f}, {100 * (first / other - 1):+.1f} %)"
        for first, other in zip(ours, theirs, strict=True)
    )
    return f"| {' | '.join([name, *both])} |"


def show(fitted: Fitted, *, seeds: int = 15) -> None:
    """Print the figures as simulated, with the measured ones: first what was fitted, then what is predicted."""
    print(*(f"{name:24} {value:.4g}" for name, value in fitted.items()), sep="\n")
    print(f"\nFig. 6.6a-e, fitted: root mean square of residuals {100 * misfit(fitted, seeds=seeds) ** 0.5:.1f} %")
    for name, times in simulate_figure(fitted, seeds=seeds).items():
        print(row(name, times, RUNNING_S[name]))
    programs, contention = with_parameters(fitted)

    def runs(jobs: Sequence[SubmittedJob], scenario: DeploymentScheme) -> list[Simulation]:
        own = [replace(job, program=programs[job.program.name]) for job in jobs]
        return [simulate(own, scenario, contention, seed=seed) for seed in range(seeds)]

    run_times = {mpi_scenario.name: runs(generate_thesis_jobs(), mpi_scenario) for mpi_scenario in SCENARIOS}
    ours = [median(run.makespan_s for run in some) for some in run_times.values()]
    print("\nMakespans, predicted")
    print(row("makespan", ours, [MAKESPANS_S[name] for name in run_times]))
    base = list(run_times).index("Kubeflow")
    theirs = list(MAKESPANS_S.values())
    for name, simulated_s, other in zip(run_times, ours, theirs, strict=True):
        simulated_, measured = simulated_s / ours[base], other / theirs[base]
        print(f"{name:9} {simulated_:.3f} ({measured:.3f}, {100 * (simulated_ / measured - 1):+.1f} %)")
    print("\nFig. 6.6f, predicted")
    responses = [median(run.response_s for run in run_times[name]) for name in RESPONSE_S]
    print(row("response", responses, list(RESPONSE_S.values())))
    print("\nFig. 6.4 and 6.5, ten DGEMM jobs, predicted")
    alone = [runs(generate_dgemm_jobs(), mpi_scenario) for mpi_scenario in FITTED_SCENARIOS]
    print(row("running", [median(run.running_s / 10 for run in some) for some in alone], DGEMM_RUNNING_S))
    print(row("response", [median(run.response_s for run in some) for some in alone], DGEMM_RESPONSE_S))
    volcano = [run_times["Volcano"][seed].compute_running_times() for seed in range(seeds)]
    print("\nFig. 6.8, Volcano: RandomRing and FFT fitted, the others predicted")
    for name, measured_s in VOLCANO_RUNNING_S.items():
        print(row(name, [fmean(run[name] for run in volcano)], [measured_s]))


if __name__ == "__main__":
    show(fit() if "fit" in sys.argv else list_parameters(PROGRAMS, CONTENTION))
