"""Commands on models: their versions' history, promotion and rejection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from scanflow_client.cli.command_help import DocumentedCommand
from scanflow_client.cli.command_options import (
    PLAIN_HELP,
    JsonOption,
    load_settings,
    open_deployer,
    open_existing_client,
)
from scanflow_client.cli.command_output import choose_progress_stream, respond

if TYPE_CHECKING:
    from scanflow_client.model_client import ModelClient

_LIST = "list"

NameArgument = Annotated[str, Argument(metavar="NAME", help="The model's name.")]
VersionArgument = Annotated[int, Argument(metavar="VERSION", min=1, help="The number of its version.")]
WhyOption = Annotated[str, Option("--why", metavar="TEXT", help="The reason, which is recorded.")]
AliasOption = Annotated[str, Option("--alias", metavar="NAME", help="The alias of the version in use.")]


class _DefaultListGroup(TyperGroup):
    """Runs ``list`` for ``scanflow models NAME``, where NAME is not a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        has_command = bool(args) and args[0] in {*self.commands, *ctx.help_option_names}
        return super().parse_args(ctx, args if has_command else [_LIST, *args])


models = typer.Typer(
    name="models",
    cls=_DefaultListGroup,
    help="List models and versions; promote or reject a version. With a name: scanflow models [NAME].",
    **PLAIN_HELP,
)


@models.command(_LIST, cls=DocumentedCommand)
def list_models(
    name: Annotated[str | None, Argument(metavar="[NAME]", help="A model to show in detail.")] = None,
    alias: AliasOption = "champion",
    as_json: JsonOption = False,
) -> None:
    """List models; with a name, its versions, their comparisons and decisions.

    Examples:
        scanflow models
        scanflow models cnn
    """
    from scanflow_client.formatting.model_text import format_models, format_versions

    histories = open_models().list_histories(name, alias=alias)
    respond(histories, as_json, lambda: (format_models if name is None else format_versions)(histories))


@models.command(cls=DocumentedCommand)
def promote(
    name: NameArgument,
    version: VersionArgument,
    why: WhyOption = "",
    service: Annotated[
        list[str] | None, Option("--service", metavar="NAME", help="The service. Default: the only one with the model.")
    ] = None,
    alias: AliasOption = "champion",
    as_json: JsonOption = False,
) -> None:
    """Serve a version and name it the champion. No request fails.

    If an agent's pending action would serve the version, that action is approved instead.

    Examples:
        scanflow models promote cnn 3 --why 'better on the newest labels'
    """
    from scanflow_client.model_client import format_model_change
    from scanflow_client.progress import show_service_changes

    with show_service_changes(choose_progress_stream(as_json)) as observe:
        change = open_models().promote(name, version, why=why, services=service or (), alias=alias, observe=observe)
    respond(change, as_json, lambda: format_model_change(change))


@models.command(cls=DocumentedCommand)
def reject(
    name: NameArgument,
    version: VersionArgument,
    why: WhyOption = "",
    alias: AliasOption = "champion",
    as_json: JsonOption = False,
) -> None:
    """Reject a version. If it is in use, the previous version is served again.

    Examples:
        scanflow models reject cnn 3 --why 'wrong on sevens'
    """
    from scanflow_client.model_client import format_model_change
    from scanflow_client.progress import show_service_changes

    with show_service_changes(choose_progress_stream(as_json)) as observe:
        change = open_models().reject(name, version, why=why, alias=alias, observe=observe)
    respond(change, as_json, lambda: format_model_change(change))


def open_models() -> ModelClient:
    from scanflow_client.model_client import ModelClient, open_server_knowledge

    control = open_existing_client()
    return ModelClient(open_server_knowledge(load_settings(), control), open_deployer(), control)
