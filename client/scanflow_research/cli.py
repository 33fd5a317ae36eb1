"""``scanflow reproduce`` measures the figures of the thesis and the papers; ``scanflow mpi simulate`` simulates its
jobs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from typer import Argument, Option

from scanflow.errors import UsageError
from scanflow_client.cli.command_options import JsonOption, check_choice
from scanflow_client.cli.command_output import choose_progress_stream, name_written, remark, respond


def reproduce(
    names: Annotated[
        list[str] | None, Argument(metavar="[FIGURE...]", help="Figures and tables, such as fig4.2 and table6.3.")
    ] = None,
    every: Annotated[bool, Option("--all", help="Measure all figures, which takes about an hour.")] = False,
    listing: Annotated[bool, Option("--list", help="List the figures, and how long each takes.")] = False,
    out: Annotated[
        Path | None,
        Option("--out", metavar="DIR", help="Write rounds, plots and a page to this folder, or continue from it."),
    ] = None,
    rounds: Annotated[
        int | None, Option("--rounds", metavar="N", min=1, max=100, help="Rounds of each experiment. Default: 2 to 5.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure figures of the thesis and the papers here.

    The result says which of their claims hold on this machine. With --out, Ctrl-C loses no finished round.

    Examples:
        scanflow reproduce --list
        scanflow reproduce fig4.2 table6.3 --out figures
    """
    from scanflow_client.progress import open_output
    from scanflow_client.signals import end_on_signals
    from scanflow_research.figure_catalogue import EXPERIMENTS, load_catalogue, select_named
    from scanflow_research.figure_study import ReproductionStudy
    from scanflow_research.research_text import format_figure_list, format_reproduction

    if listing:
        listed = [{"name": figure.name, "source": figure.source, "title": figure.title} for figure in load_catalogue()]
        respond(listed, as_json, lambda: format_figure_list(load_catalogue(), list(EXPERIMENTS.values())))
        return
    if every == bool(names):
        raise UsageError("Name figures, or give --all. List them: scanflow reproduce --list")
    figures = list(load_catalogue()) if every else select_named(names or [])
    with TemporaryDirectory(prefix="scanflow-reproduce-") as temporary:
        folder = Path(temporary) if out is None else out
        with (
            open_output(choose_progress_stream(as_json)) as output,
            end_on_signals(output.update, "stopping the experiment"),
        ):
            study = ReproductionStudy(
                folder=folder,
                experiments=EXPERIMENTS,
                observe=output.update,
                print=lambda text: output.print(text, ""),
                rounds=rounds,
            )
            reproduction = study.run(figures)
    respond(reproduction.summary(), as_json, lambda: format_reproduction(reproduction))
    if out is not None:
        from scanflow_research.research_page import write_files

        remark(as_json, name_written(write_files(reproduction, out)))
    if reproduction.interrupted:
        if out is not None:
            remark(as_json, f"Continue: scanflow reproduce {'--all' if every else ' '.join(names or [])} --out {out}")
        raise typer.Exit(130)


def simulate(
    scenario: Annotated[
        list[str] | None, Option("--scenario", "-s", metavar="NAME", help="Only this scenario; may be repeated.")
    ] = None,
    seeds: Annotated[
        int, Option("--seeds", min=1, max=10_000, help="Number of simulations, each with another seed.")
    ] = 15,
    seed: Annotated[int, Option("--seed", help="The first seed.")] = 0,
    jobs: Annotated[
        str, Option("--jobs", help="thesis: its 20 jobs; random: similar jobs, drawn for each seed.")
    ] = "thesis",
    log: Annotated[
        Path | None, Option("--log", metavar="FILE", help="Write each job of each simulation as JSON.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate the thesis' 20 jobs on a cluster under each scenario of division and placement.

    Examples:
        scanflow mpi simulate
        scanflow mpi simulate --seeds 100 --jobs random --json
    """
    from scanflow_research.research_text import format_simulations
    from scanflow_research.simulation.event_simulation import simulate as run
    from scanflow_research.simulation.schemes import SCENARIOS
    from scanflow_research.simulation.twenty_jobs import CONTENTION, generate_jobs, generate_thesis_jobs, summarize

    schemes = {scheme.name.lower(): scheme for scheme in SCENARIOS}
    check_choice(jobs, ("thesis", "random"), "--jobs")
    chosen = [schemes[check_choice(name.lower(), tuple(schemes), "--scenario")] for name in scenario or schemes]
    runs = {
        scheme.name: [
            run(
                generate_thesis_jobs() if jobs == "thesis" else generate_jobs(run_seed),
                scheme,
                CONTENTION,
                seed=run_seed,
            )
            for run_seed in range(seed, seed + seeds)
        ]
        for scheme in chosen
    }
    if log is not None:
        log.write_text(
            json.dumps([asdict(simulation) for simulations in runs.values() for simulation in simulations], indent=1)
        )
    summaries = [summarize(simulations) for simulations in runs.values()]
    respond(
        [asdict(summary) for summary in summaries],
        as_json,
        lambda: format_simulations(summaries, published=jobs == "thesis"),
    )
