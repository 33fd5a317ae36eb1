"""The command ``demo``: train, serve, and watch the agents close the loop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scanflow_client.cli.options import JsonOption, ParameterOption, deployer, parse_parameters, server
from scanflow_client.cli.output import observer, print_json, say


def demo(
    data: Annotated[
        str,
        typer.Option("--data", metavar="NAME|FILE", help="digits (comes with scikit-learn), mnist, or an .npz file."),
    ] = "digits",
    drifted: Annotated[
        Path | None,
        typer.Option("--drifted", metavar="FILE", help="Drifted digits, such as MNIST-C's. Default: they are made."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Where the report goes. Default: the home folder.")
    ] = None,
    parameter: ParameterOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the service and the agents running at the end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train on handwritten digits, serve the model, then send drifted data, and watch agents retrain and promote."""
    from scanflow.settings import Settings
    from scanflow_client.cli.runs import watch
    from scanflow_client.demo.application import load_demo, next_commands, report_path
    from scanflow_client.demo.loop import SERVICE, loop_lines, report_of
    from scanflow_client.demo.preflight import check_free
    from scanflow_client.demo.session import close_the_loop, temporary_control_plane

    def report_progress(text: str) -> None:
        say(text, err=as_json)

    application, path, parameters, corrupted = load_demo(data, drifted)
    parameters |= parse_parameters(parameter)
    report_progress(f"The demo is an application like yours: {path}")
    with temporary_control_plane(Settings.from_environment(), server, report_progress, keep=keep):
        where = deployer()
        check_free(where, server(), application, SERVICE)  # before the training, which takes longest
        record = watch(
            where,
            lambda observe: where.run(application, "mnist-wf", parameters=parameters, source=path, observe=observe),
            as_json,
            last=False,
        )
        loop = close_the_loop(
            where,
            server(),
            application,
            path,
            corrupted,
            keep=keep,
            observer=observer(as_json),
            say=report_progress,
            quiet=as_json,
        )
        written = report_path(report, record)
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(report_of(application, loop), encoding="utf-8")
        if as_json:
            print_json({"run": record, "loop": loop.as_json(), "report": str(written)})
        else:
            say(*loop_lines(loop, written), *next_commands(record, path, kept=keep))
