"""Commands on the control plane: up, down, status, events, token."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from scanflow.errors import UsageError, did_you_mean
from scanflow.http.home_token import Role
from scanflow_client.cli.command_help import DocumentedCommand
from scanflow_client.cli.command_options import PLAIN_HELP, JsonOption, LimitOption, load_settings, open_client
from scanflow_client.cli.command_output import print_json, respond, say
from scanflow_client.cli.exit_codes import UNAVAILABLE

tokens = typer.Typer(help="Show, make, list or revoke tokens of the control plane.", **PLAIN_HELP)
NameArgument = Annotated[str, Argument(metavar="NAME", help="The holder's name: lower-case letters, digits and -.")]


def up(
    port: Annotated[
        int | None,
        Option(
            "--port", metavar="P", min=1, max=65535, help="The server's port. Default: 46666, or the next free one."
        ),
    ] = None,
    no_tracker: Annotated[bool, Option("--no-tracker", help="Do not start an MLflow server.")] = False,
    tls: Annotated[
        bool, Option("--tls", help="Serve over TLS, with a certificate of the home's own authority.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Start the control plane: our server and MLflow's server. Servers that already run are kept.

    Examples:
        scanflow up
        scanflow up --port 8080 --tls
    """
    from scanflow_client.control_plane import start_control_plane
    from scanflow_client.formatting.control_plane_text import format_up

    settings = load_settings()
    result = start_control_plane(settings, port=port, tracker=not no_tracker, tls=tls)
    respond(result.up, as_json, lambda: format_up(result, server_url=settings.url))


def down(as_json: JsonOption = False) -> None:
    """Stop what scanflow up started: agents, server and tracker.

    Examples:
        scanflow down
    """
    from scanflow_client.control_plane import stop_control_plane
    from scanflow_client.formatting.control_plane_text import format_down

    done = stop_control_plane(load_settings(), tell=lambda text: say(text, err=True))
    respond(done, as_json, lambda: format_down(done))
    if done.running:
        raise typer.Exit(UNAVAILABLE.code)


def status(as_json: JsonOption = False) -> None:
    """Print the status of the server, the tracker and the agents.

    Examples:
        scanflow status
        scanflow status --json
    """
    from scanflow_client.control_plane import read_status
    from scanflow_client.formatting.control_plane_text import format_status

    state = read_status(load_settings())
    respond(state, as_json, lambda: format_status(state))
    if not state["up"] or not state["server"]["ready"]:
        raise typer.Exit(UNAVAILABLE.code)


def _complete_event_types(incomplete: str) -> list[str]:
    from scanflow.agent.event_types import EVENT_TYPES

    return [name for name in EVENT_TYPES if name.startswith(incomplete)]


def _describe_unknown_type(type: str) -> str | None:
    """Return a note on a type that Scanflow does not record, or a pattern that matches none; agents may record any."""
    from fnmatch import fnmatchcase

    from scanflow.agent.event_types import EVENT_TYPES

    if any(fnmatchcase(name, type) for name in EVENT_TYPES):
        return None
    near = did_you_mean(type, EVENT_TYPES).partition(" Known")[0]
    return f"Scanflow records no event of type {type!r}; agents of your own may.{near}"


def events(
    follow: Annotated[bool, Option("--follow", "-f", help="Keep printing new events.")] = False,
    type: Annotated[
        str | None,
        Option(
            "--type",
            "-t",
            metavar="TYPE",
            help="Only events of this type, such as run.failed, or of types that begin alike: 'run.*'.",
            autocompletion=_complete_event_types,
        ),
    ] = None,
    limit: LimitOption = 50,
    app: Annotated[str | None, Option("--app", metavar="NAME", help="Only events of this application.")] = None,
    report: Annotated[
        bool, Option("--report", help="Write a report as a page: the agents' actions and the model's history.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print events: runs, services, samples, intents and actions. With --json, one object a line.

    Examples:
        scanflow events --follow
        scanflow events --type run.failed -n 10
        scanflow events --report --app mnist
    """
    from scanflow.agent.agent_records import Event
    from scanflow_client.formatting.control_plane_text import format_event

    def show(event: Event) -> None:
        if as_json:
            print_json(event, indent=None)
        else:
            say(format_event(event))

    client = open_client()
    if report:
        if follow or type is not None:
            raise UsageError("A report covers all events so far. Leave out --follow and --type.")
        from scanflow_client.report import save_report

        written = save_report(client, app)
        respond({"report": str(written)}, as_json, lambda: [f"Wrote {written}."])
        return
    if type is not None and (hint := _describe_unknown_type(type)) is not None:
        typer.echo(hint, err=True)
    if follow:
        for event in client.events(type=type, app=app, limit=limit, follow=True):
            show(event)
        return
    for event in (past := client.events(type=type, app=app, limit=limit)):
        show(event)
    if not past and not as_json:
        chosen = "".join([f" of type {type!r}" if type else "", f" of {app!r}" if app else ""])
        say(f"There is no event{chosen} yet. Watch: scanflow events --follow")


def audit(
    limit: LimitOption = 100,
    who: Annotated[str | None, Option("--who", metavar="NAME", help="Only what this token's holder did.")] = None,
    refused: Annotated[bool, Option("--refused", help="Only what was refused or failed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List who changed or was refused what, from where. For admins. --json prints an entry a line.

    Examples:
        scanflow audit --refused
        scanflow audit --who ann -n 20
    """
    from scanflow_client.formatting.control_plane_text import format_audit

    entries = open_client().audit(limit=limit, who=who, refused=refused)
    if as_json:
        for entry in entries:
            print_json(entry, indent=None)
    else:
        say(format_audit(entries))


@tokens.command("show", cls=DocumentedCommand)
def show_token() -> None:
    """Print the token of the home folder, for SCANFLOW_TOKEN. A missing token is created.

    Examples:
        export SCANFLOW_TOKEN=$(scanflow token show)
    """
    from scanflow.http.home_token import ensure_home_token

    say(ensure_home_token(load_settings().home))


@tokens.command("make", cls=DocumentedCommand)
def make_token(
    name: NameArgument,
    team: Annotated[
        str | None,
        Option("--team", metavar="TEAM", help="Limit the token to this team. Default: the scope of your token."),
    ] = None,
    role: Annotated[
        Role, Option("--role", help="viewer reads, editor also changes and approves, admin also makes tokens.")
    ] = "editor",
    expires: Annotated[
        str | None, Option("--expires", metavar="TIME", help="Lifetime: 12h, 30d. Default: until revoked.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token and print it once. Its holder's approvals and labels are recorded under its name.

    Examples:
        scanflow token make ann
        scanflow token make nightly --team vision --role viewer --expires 30d
    """
    token = open_client().make_token(name, role=role, team=team, expires=expires)
    respond(token, as_json, lambda: [token["token"]], mask=False)


@tokens.command("list", cls=DocumentedCommand)
def list_tokens(as_json: JsonOption = False) -> None:
    """List tokens by name: role, team, and when each was made, expires or was revoked.

    Examples:
        scanflow token list
    """
    from scanflow_client.formatting.control_plane_text import format_tokens

    listed = open_client().tokens()
    respond(listed, as_json, lambda: [format_tokens(listed)])


@tokens.command("revoke", cls=DocumentedCommand)
def revoke_token(name: NameArgument, as_json: JsonOption = False) -> None:
    """Revoke a token: it is refused from now on.

    Examples:
        scanflow token revoke ann
    """
    revoked = open_client().revoke_token(name)
    respond(revoked, as_json, lambda: [f"Revoked: {name}"])
