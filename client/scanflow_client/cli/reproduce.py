"""``scanflow reproduce``: the tables and figures of the thesis and the papers, measured on this machine."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from typer import Argument, Option

from scanflow.errors import UsageError
from scanflow_client.cli.options import JsonOption
from scanflow_client.cli.output import choose_progress_stream, print_json, say


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
    """
    from scanflow_client.formatting.reproduce import format_figure_list, format_reproduction
    from scanflow_client.progress import open_output
    from scanflow_client.reproduction.catalogue import EXPERIMENTS, FIGURES, select_named
    from scanflow_client.reproduction.study import ReproductionStudy
    from scanflow_client.signals import end_on_signals

    if listing:
        if as_json:
            print_json([{"name": figure.name, "source": figure.source, "title": figure.title} for figure in FIGURES])
        else:
            say(*format_figure_list(FIGURES, list(EXPERIMENTS.values())))
        return
    if every == bool(names):
        raise UsageError("Name figures, or give --all. List them: scanflow reproduce --list")
    figures = list(FIGURES) if every else select_named(names or [])
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
    if as_json:
        print_json(reproduction.summary())
    else:
        say(*format_reproduction(reproduction))
    if out is not None:
        from scanflow_client.reproduction.page import write_files

        files = write_files(reproduction, out)
        if not as_json:
            say(f"Wrote {', '.join(str(file) for file in files)}.")
    if reproduction.interrupted:
        if out is not None and not as_json:
            say(f"Continue: scanflow reproduce {'--all' if every else ' '.join(names or [])} --out {out}")
        raise typer.Exit(130)
