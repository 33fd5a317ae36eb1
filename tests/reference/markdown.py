"""Markdown of the reference's pages, and what an entry without a description is called by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

NOTICE = "<!-- Made from the code by `make reference`. Do not edit: change the code, and run it again. -->\n"


@dataclass
class Page:
    """A page of the reference. ``undescribed`` names each entry that has no description."""

    title: str
    lines: list[str] = field(default_factory=list)
    undescribed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines = [f"# {self.title}\n", NOTICE]

    def add(self, *paragraphs: str) -> None:
        self.lines += [f"{paragraph.strip()}\n" for paragraph in paragraphs if paragraph.strip()]

    def add_table(self, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Add a table. The last cell of each row is its description; the first one is its name."""
        listed = [list(row) for row in rows]
        self.undescribed += [f"{self.title}: {row[0].strip('`')}" for row in listed if not has_text(row[-1])]
        lines = [head, ["---"] * len(head), *([escape_cell(cell) for cell in row] for row in listed)]
        self.add("\n".join(f"| {' | '.join(line)} |" for line in lines))

    def describe(self, name: str, text: str) -> None:
        """Add the description of an entry that has a heading of its own."""
        if not has_text(text):
            self.undescribed.append(f"{self.title}: {name}")
        self.add(text)

    def render(self) -> str:
        return "\n".join(self.lines)


def has_text(text: str) -> bool:
    return len(re.findall(r"\w+", text)) >= 2 or bool(re.search(r"\w\.", text))


def escape_cell(text: str) -> str:
    """Return a text in one line for a table. Its bars are entities: some renderers show a backslash inside code."""
    text = re.sub(r"`([^`]*\|[^`]*)`", lambda match: f"<code>{escape(match[1], quote=False)}</code>", text)
    return " ".join(text.split()).replace("|", "&#124;")


def format_code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`" if text else ""


def format_docstring(text: str) -> str:
    """Return reStructuredText of a docstring as Markdown: literals, roles, and sections as lists."""
    text = re.sub(r":\w+:`~(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    text = re.sub(r":\w+:`([^`]+)`", r"`\1`", text)
    text = text.replace("``", "`")
    return re.sub(r"::\n", ":\n", text)
