"""``scanflow token``: show, make, list and revoke the tokens of the control plane."""

from __future__ import annotations

from typing import Annotated

import typer

from scanflow import transport
from scanflow_client.cli.options import JsonOption, server
from scanflow_client.cli.output import respond, say

tokens = typer.Typer(
    help="Show, make, list or revoke the tokens that the control plane accepts.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Its holder: small letters, digits and -.")]


@tokens.command()
def show() -> None:
    """Print the token of the home folder, for SCANFLOW_TOKEN; made if there is none."""
    from scanflow.home_token import ensure_home_token
    from scanflow.settings import Settings

    say(ensure_home_token(Settings.from_environment().home))


@tokens.command()
def make(name: NameArgument, as_json: JsonOption = False) -> None:
    """Make a token and print it this once; what its holder approves and labels is recorded under its name."""

    made = server().post(transport.path_of("tokens"), {"name": name})
    respond(made, as_json, lambda: [made["token"]])


@tokens.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the names of tokens, when each was made and revoked."""
    from scanflow_client.formatting.control_plane import tokens_table

    found = server().get(transport.path_of("tokens"))
    respond(found, as_json, lambda: [tokens_table(found)])


@tokens.command()
def revoke(name: NameArgument, as_json: JsonOption = False) -> None:
    """Revoke a token: it is refused from now on."""

    revoked = server().delete(transport.path_of("tokens", name))
    respond(revoked, as_json, lambda: [f"Revoked: {name}"])
