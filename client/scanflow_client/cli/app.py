"""The tree of commands, in the order of the help."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from typer import Option

from scanflow_client.cli import (
    agents,
    certificates,
    characterize,
    control,
    demo,
    drift,
    environments,
    images,
    load,
    machine,
    models,
    mpi,
    projects,
    recovery,
    runs,
    services,
    strategies,
    tune,
)
from scanflow_client.cli.options import PLAIN_HELP
from scanflow_client.cli.plugin_commands import PluginGroup

EXIT_CODES = """\
Exit codes: 0 done; 1 a step, or a component of a service, failed, or a replay differs;
2 your input needs a change; 3 something is unavailable, try again; 4 a defect of scanflow; 130 stopped.
"""

app = typer.Typer(
    name="scanflow",
    cls=PluginGroup,
    help=(
        "Run machine-learning workflows, serve models, and let agents watch over them.\n\n"
        "Get started: scanflow demo, or scanflow init."
    ),
    epilog=EXIT_CODES,
    pretty_exceptions_enable=False,
    **PLAIN_HELP,
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, Option("--version", help="Print the version.")] = False,
    backend: Annotated[
        str | None,
        Option(
            "--backend", metavar="NAME", help="Where to run and serve: local, kubernetes, or one that a package adds."
        ),
    ] = None,
) -> None:
    if backend is not None:
        os.environ["SCANFLOW_BACKEND"] = backend  # for this command, and for the server that `up` starts
    if version:
        import scanflow

        typer.echo(f"scanflow {scanflow.__version__}")
        raise typer.Exit


for _command in (
    *(demo.demo, projects.init, projects.check, projects.plan, images.build, projects.doctor),
    *(environments.apply, environments.clean),
    *(control.up, control.down, control.status, control.events, control.audit),
    *(recovery.backup, recovery.restore),
    *(runs.run, runs.resume, runs.spin, runs.runs, runs.show, runs.output, runs.logs, runs.stop),
    *(services.deploy, services.services, services.scale, services.traffic, services.promote, services.rollback),
    *(services.delete, services.predict, load.load, tune.tune),
    *(agents.agents, agents.why, agents.approve, agents.labels, strategies.strategies, strategies.replay),
    machine.topology,
    characterize.characterize,
):
    app.command()(_command)
app.add_typer(models.models, name="models")
app.add_typer(drift.drift, name="drift")
app.add_typer(mpi.mpi, name="mpi")
app.add_typer(control.tokens, name="token")
app.add_typer(certificates.pki, name="pki")
