"""Commands on runs: run, runs, show, logs, stop, resume, spin."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scanflow_client.cli.app import (
    JsonOption,
    ParameterOption,
    RunArgument,
    TargetArgument,
    app,
    deployer,
    parse_parameters,
    print_json,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from scanflow.backends.records import Observer, RunRecord

__all__: list[str] = []


@app.command()
def run(target: TargetArgument = None, parameter: ParameterOption = None, as_json: JsonOption = False) -> None:
    """Run a workflow: one line a step, then where to look."""
    from scanflow.loading import load_application

    where = deployer()
    application, path, workflow = load_application(target)
    parameters = parse_parameters(parameter)
    watch(
        lambda observe: where.run(application, workflow, parameters=parameters, source=path, observe=observe), as_json
    )


@app.command()
def resume(name: RunArgument = "@latest", as_json: JsonOption = False) -> None:
    """Go on with a run: finished steps are kept, running ones adopted, failed ones run again."""
    where = deployer()
    watch(lambda observe: where.resume(name, observe=observe), as_json)


@app.command()
def spin(
    step: Annotated[str, typer.Argument(help="The step to run again.")],
    on: Annotated[str, typer.Option("--run", metavar="RUN", help="The run whose inputs it gets.")] = "@latest",
    parameter: ParameterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run one step again, as its file is now, on the inputs it had in a past run."""
    where = deployer()
    parameters = parse_parameters(parameter)
    watch(lambda observe: where.spin(step, run=on, parameters=parameters, observe=observe), as_json)


@app.command()
def runs(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many.")] = 20, as_json: JsonOption = False
) -> None:
    """List runs, the newest first."""
    from scanflow_client.words import run_rows

    records = deployer().runs(limit=limit)
    if as_json:
        print_json(records)
    elif records:
        table(("run", "workflow", "state", "started", "took"), run_rows(records))
    else:
        typer.echo("There is no run yet. Start one: scanflow run app.py")


@app.command()
def show(name: RunArgument = "@latest", as_json: JsonOption = False) -> None:
    """Show a run: its steps, how they went, what they used, where its files are."""
    from scanflow.app.quantities import format_duration
    from scanflow_client.words import MARKS, ago, failure_block, next_command, step_rows

    record = deployer().show(name)
    if as_json:
        print_json(record)
        return
    took = "" if record.seconds is None else f" in {format_duration(record.seconds)}"
    typer.echo(
        f"{MARKS[record.state]} {record.name}  {record.app}:{record.workflow}  "
        f"{record.state}{took}, {ago(record.created)}"
    )
    table(("step", "state", "tries", "took", "cpu", "peak memory"), step_rows(record))
    typer.echo(f"Outputs: {record.folder}/outputs")
    if record.state == "failed":
        typer.echo("\n".join(failure_block(record)))
    elif record.state != "succeeded":
        typer.echo(next_command(record))


@app.command()
def logs(
    name: Annotated[
        str, typer.Argument(metavar="[RUN|SERVICE]", help="A run's name; @latest is the newest. Or a service's.")
    ] = "@latest",
    task: Annotated[
        str | None, typer.Argument(metavar="[TASK|INSTANCE]", help="A step, train.3, or an instance. Default: all.")
    ] = None,
    instance: Annotated[str | None, typer.Option("--instance", help="The same, of a service.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the task or service has ended.")] = False,
    stream: Annotated[str, typer.Option("--stream", help="stdout, stderr or both.")] = "both",
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="Which try. Default: the last.")] = None,
) -> None:
    """Print what steps, or a service's instances, wrote, from the first byte."""
    from scanflow.errors import InvalidError, NotFoundError, did_you_mean
    from scanflow_client.cli.services import print_service_logs

    if stream not in {"stdout", "stderr", "both"}:
        raise InvalidError(f"--stream {stream!r} is not known.{did_you_mean(stream, ['stdout', 'stderr', 'both'])}")
    where = deployer()
    try:
        record = where.show(name)
    except NotFoundError:
        if not (known := [one.name for one in where.services()]):
            raise
        if name not in known:
            raise NotFoundError(f"There is no run and no service {name!r}.{did_you_mean(name, known)}") from None
        print_service_logs(where, name, instance=instance or task, follow=follow)
        return
    tasks = [task] if task else [one.task for one in record.tasks if one.attempts]
    if not tasks:
        raise NotFoundError(f"No step of the run {record.name!r} has begun. See: scanflow show {record.name}")
    streams: list[Literal["stdout", "stderr"]] = ["stdout", "stderr"] if stream == "both" else [stream]  # type: ignore[list-item]
    for one in tasks:
        if len(tasks) > 1:
            typer.echo(f"── {one}")
        for each in streams:
            # Following standard output ends with the task; standard error is then complete.
            for block in where.logs(record.name, one, stream=each, attempt=attempt, follow=follow):
                sys.stdout.buffer.write(block)
                sys.stdout.buffer.flush()


@app.command()
def stop(name: RunArgument = "@latest", as_json: JsonOption = False) -> None:
    """Stop a run: its steps are asked to end. It can be resumed."""
    record = deployer().stop(name)
    if as_json:
        print_json(record)
    elif record.state == "stopped":
        typer.echo(f"Stopped {record.name}. Go on with it: scanflow resume {record.name}")
    else:
        typer.echo(f"Asked {record.name} to stop. Watch it: scanflow show {record.name}")


def watch(start: Callable[[Observer], RunRecord], as_json: bool, *, last: bool = True) -> RunRecord:
    """Show a run as it happens, tell how it ended, and exit with 1 or 130 where it did not go well.

    ``last``: nothing comes after it, so that JSON ends with its record.
    """
    from scanflow.app.quantities import format_duration
    from scanflow.errors import StepFailedError
    from scanflow_client.progress import progress_for
    from scanflow_client.words import failure_block, next_command

    if as_json:
        record = start(lambda _event: None)
        if last or record.state != "succeeded":
            print_json(record)
    else:
        with progress_for(sys.stdout) as observe:
            record = start(observe)
        took = format_duration(record.seconds or 0.0)
        typer.echo(f"{record.state} in {took}. {next_command(record) if record.state != 'failed' else ''}".rstrip())
    if record.state == "failed":
        if as_json:
            raise typer.Exit(1)
        raise StepFailedError("\n".join(failure_block(record)))
    if record.state == "stopped":
        raise typer.Exit(130)
    return record
