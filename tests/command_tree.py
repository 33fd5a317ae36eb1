"""The commands of ``scanflow``, those that packages add among them, as the command line shows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer import Context
from typer.main import get_command

from scanflow_client.cli.command_tree import app


def load_command_tree() -> Any:
    """Return the root group. Its ``commands``, and those of its groups, are complete."""
    root: Any = get_command(app)
    _load(root, Context(root, info_name="scanflow"))
    return root


def iterate_commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the words of each command and the command, groups before their members."""
    yield " ".join(path), group
    for name, command in group.commands.items():
        if is_group(command):
            yield from iterate_commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def is_group(command: Any) -> bool:
    return hasattr(command, "commands")


def _load(group: Any, context: Context) -> None:
    for name in group.list_commands(context):
        command = group.commands[name] = group.get_command(context, name)
        if is_group(command):
            _load(command, Context(command, info_name=name, parent=context))
