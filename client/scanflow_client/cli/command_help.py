"""A command: its help, which is its function's docstring, and advice where an option of ``scanflow`` follows it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from typer.core import TyperCommand

from scanflow.errors import InvalidError

_EXAMPLES = re.compile(r"^Examples:\n((?:[ \t]+\S.*(?:\n|\Z))+)", re.MULTILINE)


class DocumentedCommand(TyperCommand):
    """A command whose docstring may end with ``Examples:`` and indented command lines: they become its epilog.

    ``ctx`` and ``formatter`` are typer's own, of modules that are private to it.
    """

    def __init__(self, name: str | None, **options: Any) -> None:
        text, examples = split_examples(options.pop("help", None) or "")
        epilog = options.pop("epilog", None)
        super().__init__(name, help=text or None, epilog=examples or epilog, **options)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words that follow the command.

        Raises:
            InvalidError: among them is an option that stands before the command.
        """
        if not ctx.resilient_parsing:
            self._refuse_root_options(ctx, args)
        return super().parse_args(ctx, args)

    def _refuse_root_options(self, ctx: Any, args: Sequence[str]) -> None:
        root = ctx.find_root()
        own = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        options = {name: option for option in root.command.params for name in option.opts if name not in own}
        for at, word in enumerate(takewhile(lambda word: word != "--", args)):
            name = word.partition("=")[0]
            if name in options:
                end = at + (1 if options[name].is_flag or word != name else 2)
                path = ctx.command_path.removeprefix(f"{root.info_name} ").split()
                words = [str(root.info_name), *args[at:end], *path, *args[:at], *args[end:]]
                raise InvalidError(f"{name} stands before the command. Write: {shlex.join(words)}")

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  called by typer
        """Write the lines as they are, where typer would fill a paragraph with them."""
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.splitlines():
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


def split_examples(text: str) -> tuple[str, str]:
    """Return a docstring without its examples, and the examples, a command a line."""
    match = _EXAMPLES.search(text)
    if match is None:
        return text, ""
    lines = "\n".join(line.strip() for line in match[1].splitlines())
    return f"{text[: match.start()]}{text[match.end() :]}".strip(), lines
