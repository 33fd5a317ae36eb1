"""Commands on applications and on this machine: init, check, plan, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scanflow_client.cli.app import (
    JsonOption,
    ParameterOption,
    TargetArgument,
    app,
    deployer,
    parse_parameters,
    print_json,
    table,
)

__all__: list[str] = []


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where. Default: here.")] = Path(),
    name: Annotated[str | None, typer.Option("--name", help="The application's name. Default: the folder's.")] = None,
) -> None:
    """Write a small application to begin with. Nothing is overwritten."""
    from scanflow_client.scaffold import write_application

    path = write_application(folder, name)
    typer.echo(f"Wrote {path}. Run it: scanflow run {path}")


@app.command()
def check(target: TargetArgument = None, as_json: JsonOption = False) -> None:
    """Check an application without running it: graph, names, amounts, parameters, files."""
    from scanflow.loading import load_application
    from scanflow_client.words import counted

    where = deployer()
    application, path, chosen = load_application(target)
    plans = [
        where.plan(application, workflow.name) for workflow in application.workflows if chosen in {None, workflow.name}
    ]
    if chosen is not None:
        application.workflow(chosen)
    if as_json:
        print_json(plans)
        return
    types = {plan.workflow: application.workflow(plan.workflow).type for plan in plans}
    for plan in plans:
        if types[plan.workflow] == "online":
            size = f"{counted(len(plan.steps), 'node')} in each of {counted(len(plan.instances), 'instance')}"
        else:
            size = f"{counted(len(plan.steps), 'step')} in {counted(plan.waves, 'wave')}"
        typer.echo(f"✓ {application.name}:{plan.workflow}  {size}")
    batch = [name for name, type in types.items() if type == "batch"]
    command = "Run it: scanflow run" if batch or set(types.values()) != {"online"} else "Deploy it: scanflow deploy"
    named = f"{target or path.name}:{batch[0]}" if len(batch) > 1 else target or ""
    typer.echo(f"{path.name} is good. {command} {named}".rstrip())


@app.command()
def plan(target: TargetArgument = None, parameter: ParameterOption = None, as_json: JsonOption = False) -> None:
    """Print what a workflow would run and the resources it would take, without running it."""
    from scanflow.loading import load_application
    from scanflow_client.words import counted, format_bytes, node_rows, plan_rows, seat_rows

    application, _, workflow = load_application(target)
    found = deployer().plan(application, workflow, parameters=parse_parameters(parameter))
    if as_json:
        print_json(found)
        return
    if application.workflow(found.workflow).type == "online":
        table(("node", "runs", "after", "notes"), node_rows(found))
        table(("instance", "cores", "cpus", "memory of", "threads"), seat_rows(found))
        typer.echo(
            f"{counted(len(found.instances), 'instance')} on {found.peak_cores:g} of {found.machine_cores:g} cores. "
            "Nothing was started."
        )
        return
    table(("wave", "step", "runs", "after", "cores", "memory", "notes"), plan_rows(found))
    unsized = f", beside {counted(found.unsized, 'step')} without an amount" if found.unsized else ""
    typer.echo(
        f"At most {found.peak_cores:g} of {found.machine_cores:g} cores and {format_bytes(found.peak_memory_bytes)} of "
        f"{format_bytes(found.machine_memory_bytes)} memory at once{unsized}. Nothing was run."
    )


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Check this machine: Python, cores, memory, disk, the home folder, and what is installed."""
    import json

    from scanflow.settings import Settings
    from scanflow_client.doctor import examine

    findings = examine(Settings.from_environment())
    if as_json:
        typer.echo(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        table(("", "what", "found", "do"), [(one.mark, one.what, one.found, one.advice) for one in findings])
    if any(one.mark == "✗" for one in findings):
        raise typer.Exit(3)
