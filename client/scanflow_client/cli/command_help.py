"""The help of a command: what its function's docstring says, and below the options the docstring's examples."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

_EXAMPLES = re.compile(r"^Examples:\n((?:[ \t]+\S.*(?:\n|\Z))+)", re.MULTILINE)


class DocumentedCommand(TyperCommand):
    """A command whose docstring may end with ``Examples:`` and indented command lines: they become its epilog.

    ``ctx`` and ``formatter`` are typer's own, of modules that are private to it.
    """

    def __init__(self, name: str | None, **options: Any) -> None:
        text, examples = split_examples(options.pop("help", None) or "")
        epilog = options.pop("epilog", None)
        super().__init__(name, help=text or None, epilog=examples or epilog, **options)

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
