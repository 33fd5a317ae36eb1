"""Commands on the control plane: up, down, status, events."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from scanflow.errors import UsageError
from scanflow_client.cli.app import JsonOption, server, table
from scanflow_client.cli.app import app as commands

__all__: list[str] = []

NOT_UP = 3
"""The exit code of ``status`` when nothing is up, or it does not answer."""

NOT_DOWN = 3
"""The exit code of ``down`` when an agent that was to end runs on."""

LOOKED_AT = 10_000
"""``events`` looks through so many of the last."""


@commands.command()
def up(
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="P", min=1, max=65535, help="Of the server. Default: 46666, or the next free."),
    ] = None,
    no_tracker: Annotated[bool, typer.Option("--no-tracker", help="Start no MLflow server beside it.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Start the server and MLflow's beside it, on this machine only. What is up already is left as it is."""
    from scanflow.settings import Settings
    from scanflow_client.control_words import raised_lines
    from scanflow_client.plane import up as raise_up

    settings = Settings.from_environment()
    raised = raise_up(settings, port=port, tracker=not no_tracker)
    if as_json:
        typer.echo(raised.up.model_dump_json(indent=2))
        return
    typer.echo("\n".join(raised_lines(raised, elsewhere=settings.url)))


@commands.command()
def down(as_json: JsonOption = False) -> None:
    """Stop what scanflow up started, and nothing else: the agents, the server, the tracker."""
    from scanflow.settings import Settings
    from scanflow_client.control_words import down_lines
    from scanflow_client.plane import down as take_down

    done = take_down(Settings.from_environment(), tell=lambda text: typer.echo(text, err=True))
    if as_json:
        typer.echo(json.dumps({"stopped": done.stopped, "left": done.left, "running": done.running}, indent=2))
    else:
        typer.echo("\n".join(down_lines(done)))
    if done.running:
        raise typer.Exit(NOT_DOWN)


@commands.command()
def status(as_json: JsonOption = False) -> None:
    """Say what is up: the server, the tracker, the agents."""
    from scanflow.settings import Settings
    from scanflow_client.control_words import agent_rows, status_lines
    from scanflow_client.plane import look

    told = look(Settings.from_environment())
    if as_json:
        typer.echo(json.dumps(told, indent=2))
    else:
        typer.echo("\n".join(status_lines(told)))
        if rows := agent_rows(told):
            table(("agent", "application", "state", "since", "restarts"), rows)
    if not told["up"] or not told["server"]["ready"]:
        raise typer.Exit(NOT_UP)


@commands.command()
def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they happen.")] = False,
    type: Annotated[
        str | None, typer.Option("--type", "-t", metavar="TYPE", help="Only these: run.failed, service.changed.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many of the last.")] = 50,
    app: Annotated[str | None, typer.Option("--app", metavar="NAME", help="Only of this application.")] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write a page instead: what the agents did, and the road map of the model.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print what happened: runs, services, samples, intents and actions. With --json, one object a line."""
    from scanflow.agent.records import Event
    from scanflow.transport import path_of
    from scanflow_client.control_words import event_line

    where = server()
    if report:
        if follow or type is not None:
            raise UsageError("A report is of all that was told so far. Leave out --follow and --type.")
        from scanflow.settings import Settings
        from scanflow_client.story_page import write_story

        path = write_story(where, app, Settings.from_environment().home.expanduser().absolute() / "reports")
        typer.echo(json.dumps({"report": str(path)}) if as_json else f"Written: {path}")
        return
    # The server lists from an event on; the last of a type are somewhere in the last of all.
    newest = where.get(path_of("status"))["counts"].get("events", 0)
    listed = where.get(path_of("events"), after=max(0, newest - LOOKED_AT), type=type, app=app, limit=LOOKED_AT)
    past = [Event.model_validate(one) for one in listed[-limit:]]
    for one in past:
        typer.echo(one.model_dump_json() if as_json else event_line(one))
    if not follow:
        if not past and not as_json:
            typer.echo("Nothing has happened yet. Watch for it: scanflow events --follow")
        return
    last = str(max([newest, *(one.id for one in past)]))
    for message in where.events(path_of("events"), after=last, type=type, app=app):
        found = Event.model_validate_json(message.data)
        typer.echo(found.model_dump_json() if as_json else event_line(found))
