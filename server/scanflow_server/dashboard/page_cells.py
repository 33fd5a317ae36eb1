"""The cells of tables on pages: values that a template renders by their kind, and plain texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from scanflow.drawing.states import get_state_look
from scanflow.text.printable import make_one_line

MAX_LENGTH = 300

FIRST_RUN: Final = "scanflow init example && scanflow run example/app.py"
"""The command that makes the first run, with nothing prepared."""


class LinkCell(NamedTuple):
    text: str
    address: str


class StateCell(NamedTuple):
    """A state, with its mark and its colour."""

    state: str
    more: str | LinkCell = ""
    """What follows it, such as how long it took."""

    @property
    def mark(self) -> str:
        return get_state_look(self.state).mark

    @property
    def colour(self) -> str:
        return get_state_look(self.state).colour


class Moment(NamedTuple):
    """A time, which is shown in the reader's zone."""

    at: float | None
    goes_on: bool = False
    """Whether it is since when something goes on: only the hour is shown."""


class FoldedCell(NamedTuple):
    """A line, and a longer text below it that is folded until it is wanted."""

    line: str
    more: str
    id: str
    """Of the element, unique on its page: it stays open when the page changes."""


Cell: TypeAlias = str | int | float | LinkCell | list[LinkCell] | StateCell | Moment | FoldedCell | None

CellRow: TypeAlias = Mapping[str, Cell]
"""A row of a table: cells by their columns."""


class CellTable(NamedTuple):
    """A table of a page; ``empty`` stands for no rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    empty: str = "None."
    command: str = ""
    """The command that makes the first row, where there is one."""

    @classmethod
    def make(cls, rows: Iterable[CellRow], empty: str = "None.", command: str = "") -> CellTable:
        """Return a table of rows that have the same columns."""
        shown = list(rows)
        return cls(tuple(shown[0]) if shown else (), [list(row.values()) for row in shown], empty, command)


_KINDS: Final[Mapping[type, str]] = {
    LinkCell: "link",
    list: "links",
    StateCell: "state",
    Moment: "time",
    FoldedCell: "folded",
}
_EMPTY: Final[tuple[Cell, ...]] = (None, "", Moment(None), [])


def list_filled_columns(table: CellTable) -> list[int]:
    """Return the places of a table's columns in which some row has a value."""
    places = range(len(table.columns))
    return [place for place in places if any(row[place] not in _EMPTY for row in table.rows)]


def classify_cell(cell: Cell) -> str:
    """Return how a cell is rendered: the name of its kind."""
    return _KINDS.get(type(cell), "text")


def format_cell(cell: object) -> str:
    """Return a text of one line; of None an empty one."""
    return "" if cell is None else make_one_line(str(cell), MAX_LENGTH)


def format_latency(seconds: float | None) -> str | None:
    """Return a latency for people; of None nothing."""
    return None if seconds is None else f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"
