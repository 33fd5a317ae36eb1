"""The tree of commands, in the order of the help."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from typer import Option

from scanflow_client.cli import (
    agent_commands,
    backup_commands,
    build_command,
    characterize_command,
    dashboard_command,
    demo_command,
    drift_commands,
    environment_commands,
    load_command,
    machine_commands,
    model_commands,
    mpi_commands,
    pki_commands,
    project_commands,
    run_commands,
    server_commands,
    service_commands,
    strategy_commands,
    top_command,
    tune_command,
)
from scanflow_client.cli.command_help import DocumentedCommand
from scanflow_client.cli.command_options import PLAIN_HELP
from scanflow_client.cli.exit_codes import format_exit_codes
from scanflow_client.cli.plugin_commands import PluginGroup

app = typer.Typer(
    name="scanflow",
    cls=PluginGroup,
    help=(
        "Run machine-learning workflows, serve models, and let agents watch over them.\n\n"
        "Get started: scanflow demo, or scanflow init."
    ),
    epilog=format_exit_codes(),
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
    *(
        demo_command.demo,
        project_commands.init,
        project_commands.check,
        project_commands.schema,
        project_commands.plan,
        build_command.build,
        project_commands.doctor,
    ),
    *(environment_commands.apply, environment_commands.clean),
    *(server_commands.up, server_commands.down, server_commands.status, dashboard_command.dashboard),
    *(server_commands.events, server_commands.audit),
    *(backup_commands.backup, backup_commands.restore),
    *(
        run_commands.run,
        run_commands.resume,
        run_commands.spin,
        run_commands.runs,
        run_commands.show,
        run_commands.output,
        run_commands.logs,
        run_commands.stop,
    ),
    *(
        service_commands.deploy,
        service_commands.services,
        service_commands.scale,
        service_commands.traffic,
        service_commands.promote,
        service_commands.rollback,
    ),
    *(service_commands.delete, service_commands.predict, load_command.load, tune_command.tune),
    *(
        agent_commands.agents,
        agent_commands.why,
        agent_commands.approve,
        agent_commands.labels,
        strategy_commands.strategies,
        strategy_commands.replay,
    ),
    *(top_command.top, machine_commands.topology),
    characterize_command.characterize,
):
    app.command(cls=DocumentedCommand)(_command)
app.add_typer(model_commands.models, name="models")
app.add_typer(drift_commands.drift, name="drift")
app.add_typer(mpi_commands.mpi, name="mpi")
app.add_typer(server_commands.tokens, name="token")
app.add_typer(pki_commands.pki, name="pki")
