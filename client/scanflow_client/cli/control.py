"""Commands on the control plane: up, down, status, events."""

from __future__ import annotations

from typing import Annotated

import typer

from scanflow import transport
from scanflow.errors import UsageError
from scanflow_client.cli.options import JsonOption, LimitOption, server
from scanflow_client.cli.output import print_json, respond, say

NOT_UP = 3
"""The exit code of ``status`` when nothing is up, or it does not answer."""

NOT_DOWN = 3
"""The exit code of ``down`` when an agent still runs."""

SEARCHED = 10_000
"""``events`` searches so many of the newest."""


def up(
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="P", min=1, max=65535, help="Of the server. Default: 46666, or the next free."),
    ] = None,
    no_tracker: Annotated[bool, typer.Option("--no-tracker", help="Start no MLflow server beside it.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Start the control plane on this machine: the server, and MLflow's beside it. What is up already stays."""
    from scanflow.settings import Settings
    from scanflow_client.control_plane import up as start
    from scanflow_client.formatting.control_plane import up_lines

    settings = Settings.from_environment()
    raised = start(settings, port=port, tracker=not no_tracker)
    respond(raised.up, as_json, lambda: up_lines(raised, elsewhere=settings.url))


def down(as_json: JsonOption = False) -> None:
    """Stop what scanflow up started, and nothing else: the agents, the server, the tracker."""
    from scanflow.settings import Settings
    from scanflow_client.control_plane import down as stop
    from scanflow_client.formatting.control_plane import down_lines

    done = stop(Settings.from_environment(), tell=lambda text: say(text, err=True))
    told = {"stopped": done.stopped, "left": done.left, "running": done.running}
    respond(told, as_json, lambda: down_lines(done))
    if done.running:
        raise typer.Exit(NOT_DOWN)


def status(as_json: JsonOption = False) -> None:
    """Print what is up: the server, the tracker, the agents."""
    from scanflow.settings import Settings
    from scanflow_client.control_plane import look
    from scanflow_client.formatting.control_plane import status_screen

    found = look(Settings.from_environment())
    respond(found, as_json, lambda: status_screen(found))
    if not found["up"] or not found["server"]["ready"]:
        raise typer.Exit(NOT_UP)


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they happen.")] = False,
    type: Annotated[
        str | None, typer.Option("--type", "-t", metavar="TYPE", help="Only these: run.failed, service.changed.")
    ] = None,
    limit: LimitOption = 50,
    app: Annotated[str | None, typer.Option("--app", metavar="NAME", help="Only of this application.")] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write a page instead: what the agents did, and the model's history.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print events: runs, services, samples, intents and actions. With --json, one object a line."""
    from scanflow.agent.records import Event
    from scanflow_client.formatting.control_plane import event_line

    def show(event: Event) -> None:
        if as_json:
            print_json(event, indent=None)
        else:
            say(event_line(event))

    where = server()
    if report:
        if follow or type is not None:
            raise UsageError("A report is of all events so far. Leave out --follow and --type.")
        from scanflow.settings import Settings
        from scanflow_client.report import write_report

        path = write_report(where, app, Settings.from_environment().home.expanduser().absolute() / "reports")
        respond({"report": str(path)}, as_json, lambda: [f"Written: {path}"])
        return
    # The server lists from an event on; the last of a type are somewhere in the last of all.
    newest = where.get(transport.path_of("status"))["counts"].get("events", 0)
    listed = where.get(transport.path_of("events"), after=max(0, newest - SEARCHED), type=type, app=app, limit=SEARCHED)
    past = [Event.model_validate(one) for one in listed[-limit:]]
    for one in past:
        show(one)
    if not follow:
        if not past and not as_json:
            say("Nothing has happened yet. Watch: scanflow events --follow")
        return
    last = str(max([newest, *(one.id for one in past)]))
    for message in where.events(transport.path_of("events"), after=last, type=type, app=app):
        show(Event.model_validate_json(message.data))
