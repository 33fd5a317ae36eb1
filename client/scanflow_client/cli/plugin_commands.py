"""Commands of other packages: functions for typer, in the group ``scanflow.commands`` of entry points.

An entry point ``reproduce`` is the command ``scanflow reproduce``, and ``mpi.simulate`` is ``scanflow mpi simulate``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from scanflow.errors import UsageError
from scanflow.plugins import list_plugins, load_plugin
from scanflow_client.cli.command_help import DocumentedCommand


class PluginGroup(TyperGroup):
    """A group of commands and, after them, those of other packages, which are imported when one is used or listed.

    ``ctx`` is typer's own context, of a module that is private to it.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        prefix = self._get_prefix(ctx)
        added = (name.removeprefix(prefix) for name in list_plugins("commands") if name.startswith(prefix))
        return [*own, *(name for name in added if "." not in name and name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        name = f"{self._get_prefix(ctx)}{cmd_name}"
        if own is not None or name not in list_plugins("commands"):
            return own
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        single.command(name=cmd_name, cls=DocumentedCommand)(_load(name))
        return typer.main.get_command(single)

    def _get_prefix(self, ctx: Any) -> str:
        return "" if ctx.parent is None else f"{self.name}."


def _load(name: str) -> Callable[..., object]:
    """Return a command's function; for one that cannot be imported, a function that says so, also in its help: the
    other commands go on working."""
    try:
        return load_plugin("commands", name)  # type: ignore[no-any-return]
    except UsageError as error:
        return _build_failing(error)


def _build_failing(error: UsageError) -> Callable[..., object]:
    def fail() -> None:
        raise error

    fail.__doc__ = str(error)
    return fail
