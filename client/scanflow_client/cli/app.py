"""The tree of commands and what they share."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scanflow_client.cli import EXIT_CODES

if TYPE_CHECKING:
    from pydantic import BaseModel

    from scanflow.deployer import Deployer
    from scanflow.settings import Settings
    from scanflow.transport import Server

__all__ = [
    "JsonOption",
    "ParameterOption",
    "RunArgument",
    "TargetArgument",
    "app",
    "deployer",
    "parse_parameters",
    "print_json",
    "server",
    "table",
]

# rich_markup_mode=None: plain help, in half the time.
app = typer.Typer(
    name="scanflow",
    help=(
        "Run machine-learning workflows and serve models on this machine, and look at how they do.\n\n"
        "Begin with: scanflow demo, or scanflow init."
    ),
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

TargetArgument = Annotated[
    str | None,
    typer.Argument(metavar="[APP[:WORKFLOW]]", help="A Python or YAML file. Default: app.py or scanflow.yaml here."),
]
RunArgument = Annotated[str, typer.Argument(metavar="[RUN]", help="A run's name; @latest is the newest.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
ParameterOption = Annotated[
    list[str] | None,
    typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="Set a parameter: epochs=3, or train.epochs=3."),
]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        import scanflow

        typer.echo(f"scanflow {scanflow.__version__}")
        raise typer.Exit


def deployer() -> Deployer:
    """Return where commands do their work: a server, where one is named or up; else this process."""
    from scanflow.settings import Settings

    settings = Settings.from_environment()
    if (url := _address(settings)) is not None:
        from scanflow.deployer import RemoteDeployer

        return RemoteDeployer(url, settings.secret)
    from scanflow.deployer import EmbeddedDeployer

    return EmbeddedDeployer(settings)


def server() -> Server:
    """Return the server that is named or up.

    Raises:
        UnavailableError: there is none.
    """
    from scanflow.errors import UnavailableError
    from scanflow.settings import Settings

    settings = Settings.from_environment()
    url = _address(settings)
    if url is None:
        raise UnavailableError(f"No server is up in {str(settings.home)!r}. Start it: scanflow up")
    from scanflow.transport import Server

    return Server(url, token=settings.secret)


def _address(settings: Settings) -> str | None:
    """Return the address of the server that the settings name, else of the one of the home folder that is up."""
    if settings.url is not None:
        return settings.url
    from scanflow.deployer.remote_home import read_up

    found = read_up(settings.home)
    return found.server.url if found is not None and found.server.is_alive() else None


def parse_parameters(words: Sequence[str] | None) -> dict[str, Any]:
    """Return ``["epochs=3", "name=cnn"]`` as values: JSON where it is JSON, text elsewhere.

    Raises:
        InvalidError: a word has no ``=``.
    """
    from scanflow.errors import InvalidError

    found: dict[str, Any] = {}
    for word in words or ():
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise InvalidError(f"The parameter {word!r} cannot be read. Write it as name=value, such as epochs=3.")
        try:
            found[name] = json.loads(text)
        except json.JSONDecodeError:
            found[name] = text
    return found


def print_json(value: BaseModel | Sequence[BaseModel]) -> None:
    """Print records as JSON."""
    if isinstance(value, Sequence):
        typer.echo(json.dumps([one.model_dump(mode="json") for one in value], indent=2))
    else:
        typer.echo(value.model_dump_json(indent=2))


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below headers: in a terminal as wide as it is, elsewhere one plain line a row, nothing cut."""
    widths = [max(len(row[column]) for row in [headers, *rows]) for column in range(len(headers))]
    if not sys.stdout.isatty():
        for row in [headers, *rows]:
            typer.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for header in headers:
        drawn.add_column(header, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(text) for text in row))
    Console().print(drawn)


# Commands register themselves; the order here is the order of the help.
from scanflow_client.cli import demo, projects, control, runs, services, predictions, agents, strategies, machine  # noqa: E402, I001

__all__ += ["agents", "control", "demo", "machine", "predictions", "projects", "runs", "services", "strategies"]
