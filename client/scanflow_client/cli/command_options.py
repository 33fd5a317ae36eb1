"""Options shared by commands, and the deployer and client that commands use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from scanflow.errors import InvalidError, ScanflowError, did_you_mean

if TYPE_CHECKING:
    from scanflow.deployer import Deployer
    from scanflow.settings import Settings
    from scanflow.transport import ServerClient
    from scanflow_client.control_client import ControlClient

PLAIN_HELP: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": None,  # halves the time of --help
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


def _complete_runs(incomplete: str) -> list[str]:
    return _complete(incomplete, lambda deployer: ["@latest", *(record.name for record in deployer.runs(limit=50))])


def _complete_services(incomplete: str) -> list[str]:
    return _complete(incomplete, lambda deployer: [service.name for service in deployer.services(instances=False)])


def _complete(incomplete: str, names: Any) -> list[str]:
    try:
        return [name for name in names(open_deployer()) if name.startswith(incomplete)]
    except ScanflowError:  # shell completion shows no errors
        return []


TargetArgument = Annotated[
    str | None,
    Argument(metavar="[APP[:WORKFLOW]]", help="A Python or YAML file. Default: app.py or scanflow.yaml here."),
]
RunArgument = Annotated[
    str, Argument(metavar="[RUN]", help="A run's name; @latest is the newest.", autocompletion=_complete_runs)
]
ServiceArgument = Annotated[
    str, Argument(metavar="NAME", help="The service: its workflow's name.", autocompletion=_complete_services)
]
JsonOption = Annotated[bool, Option("--json", help="Print JSON for programs.")]
GraphOption = Annotated[bool, Option("--graph", help="Draw the steps as a graph.")]
LimitOption = Annotated[int, Option("--limit", "-n", min=1, max=1000, help="List at most this many.")]
SeparatorOption = Annotated[str, Option(help="What separates the columns of text files: , ; | or a tab.")]
EncodingOption = Annotated[str, Option(help="The encoding of text files, such as cp1252.")]
DecimalOption = Annotated[str, Option(help="The decimal mark of numbers in text files: . or ,")]
ParameterOption = Annotated[
    list[str] | None,
    Option("--parameter", "-p", metavar="NAME=VALUE", help="Set a parameter: epochs=3, or train.epochs=3."),
]


def load_settings() -> Settings:
    from scanflow.settings import Settings

    return Settings.from_environment()


def open_deployer() -> Deployer:
    """Return the deployer for commands: of the configured or running server, else of this process."""
    from scanflow.deployer.remote_home import find_server_address

    settings = load_settings()
    if (url := find_server_address(settings)) is not None:
        from scanflow.deployer import RemoteDeployer

        return RemoteDeployer(url, settings.find_token(url))
    from scanflow.deployer import EmbeddedDeployer

    return EmbeddedDeployer(settings)


def open_client() -> ControlClient:
    """Return a client of the configured or running server."""
    from scanflow_client.control_client import ControlClient

    return ControlClient(connect_server)


def open_existing_client() -> ControlClient | None:
    """Return a client of the configured or running server; None: there is none."""
    from scanflow.deployer.remote_home import find_server_address

    return None if find_server_address(load_settings()) is None else open_client()


def connect_server() -> ServerClient:
    from scanflow.deployer.remote_home import get_server_address
    from scanflow.transport import ServerClient

    settings = load_settings()
    url = get_server_address(settings)
    return ServerClient(url, token=settings.find_token(url))


def split_parameters(words: Sequence[str] | None) -> dict[str, str]:
    """Return ``["epochs=3", "name=cnn"]`` as a mapping of names to texts; the application says their types."""
    texts: dict[str, str] = {}
    for word in words or ():
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise InvalidError(f"The parameter {word!r} cannot be read. Write it as name=value, such as epochs=3.")
        texts[name] = text
    return texts


def check_choice(value: str, choices: Sequence[str], option: str) -> Any:
    """Return ``value`` if it is one of the choices, else raise an error that suggests the nearest one."""
    if value not in choices:
        raise InvalidError(f"{option} {value!r:.200} is not known.{did_you_mean(value, choices)}")
    return value


def parse_counts(text: str, option: str, *, what: str, example: str) -> list[int]:
    """Return ``4,16`` as sorted, distinct numbers above zero."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and int(part) > 0 for part in parts):
        raise InvalidError(f"{option} {text!r} cannot be read. Write {what}: {option} {example}")
    return sorted({int(part) for part in parts})
