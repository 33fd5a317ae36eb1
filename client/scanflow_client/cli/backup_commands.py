"""Commands that save a home and restore it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from scanflow_client.cli.command_options import JsonOption, load_settings
from scanflow_client.cli.command_output import respond


def backup(
    file: Annotated[Path, Argument(metavar="FILE", help="The archive to write, such as scanflow.tar.gz.")],
    as_json: JsonOption = False,
) -> None:
    """Save the home into one archive, running or not: runs, outputs, models, labels, tokens.

    Examples:
        scanflow backup scanflow.tar.gz
    """
    from scanflow_client.backup.save import save_home
    from scanflow_client.formatting.backup_text import format_backup

    result = save_home(load_settings(), file)
    respond(result, as_json, lambda: format_backup(result))


def restore(
    file: Annotated[Path, Argument(metavar="FILE", help="An archive that scanflow backup wrote.")],
    to: Annotated[
        Path | None, Option("--to", metavar="HOME", help="The folder to make. Default: SCANFLOW_HOME, ~/.scanflow.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a home of a backup, in a folder that is empty or not there.

    Examples:
        scanflow restore scanflow.tar.gz --to restored
    """
    from scanflow_client.backup.restore import restore_home
    from scanflow_client.formatting.backup_text import format_restore

    result = restore_home(file, load_settings().home if to is None else to)
    respond(result, as_json, lambda: format_restore(result))
