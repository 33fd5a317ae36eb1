"""What pages show of steps' outputs and files: a table, a picture, a text, JSON, or a link. No pickle is loaded."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from scanflow.app.quantities import format_memory
from scanflow.backends.run_records import StepFile
from scanflow.errors import ScanflowError
from scanflow.text.masking import MaskedStream
from scanflow.text.printable import make_printable
from scanflow_server.dashboard.page_cells import Cell, CellTable, Link
from scanflow_server.dashboard.run_files import PICTURES, guess_type, locate_file
from scanflow_server.dashboard.run_reader import RunReader

_MAX_ROWS, _MAX_COLUMNS, _MAX_LENGTH = 20, 12, 4000
_MAX_PREVIEWS: Final = 6
_MAX_LINE_LENGTH: Final = 120
_BLOCK: Final = 64 * 1024
_MAX_PICTURE_BYTES: Final = 5 * 2**20
_SEPARATORS: Final = {".csv": ",", ".tsv": "\t"}
_TEXTS: Final = (".txt", ".md", ".log", ".json", ".yaml", ".yml", ".toml", ".ini")


class OutputView(NamedTuple):
    """An output or a file: its name, and one of a short text, a long text, a table or the address of a picture."""

    name: str
    short: str = ""
    text: str = ""
    table: CellTable | None = None
    picture: str = ""
    note: str = ""


def build_output_view(name: str, value: Any) -> OutputView:
    """Return what is shown of an output, of which JSON is known. Pure."""
    if _is_table(value):
        columns = list(dict.fromkeys(key for row in islice(value, _MAX_ROWS) for key in row))
        rows = [[_shorten(row.get(column)) for column in columns] for row in islice(value, _MAX_ROWS)]
        return _build_table_view(name, columns, rows, n_rows=len(value))
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if "\n" not in text and len(text) <= _MAX_LINE_LENGTH:
        return OutputView(name, short=text)
    long_text = text if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    return _build_text_view(name, long_text)


def _is_table(value: Any) -> bool:
    """Return whether a value is a list of rows: mappings of names to plain values."""
    if not isinstance(value, list) or not value:
        return False
    return all(
        isinstance(row, Mapping) and row and not any(isinstance(cell, Mapping | list) for cell in row.values())
        for row in islice(value, _MAX_ROWS)
    )


def _shorten(value: Any) -> Cell:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _build_table_view(name: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], n_rows: int) -> OutputView:
    table = CellTable(columns[:_MAX_COLUMNS], [row[:_MAX_COLUMNS] for row in rows], "No rows.")
    hidden = [f"{len(rows)} of {n_rows:,} rows"] if n_rows > len(rows) else []
    hidden += [f"{_MAX_COLUMNS} of {len(columns)} columns"] if len(columns) > _MAX_COLUMNS else []
    return OutputView(name, table=table, note=", ".join(hidden))


def _build_text_view(name: str, text: str) -> OutputView:
    shown = make_printable(text[:_MAX_LENGTH])
    return OutputView(name, text=shown, note="" if len(text) <= _MAX_LENGTH else "the beginning")


def list_file_views(reader: RunReader, files: Sequence[StepFile]) -> list[OutputView]:
    """Return what is shown of the first files of which something can be: pictures, tables and texts."""
    views = (_find_file_view(reader, file) for file in files)
    return list(islice((view for view in views if view is not None), _MAX_PREVIEWS))


def _find_file_view(reader: RunReader, file: StepFile) -> OutputView | None:
    suffix = file.name[file.name.rfind(".") :].lower()
    try:
        if guess_type(file.name) in PICTURES and file.size_bytes <= _MAX_PICTURE_BYTES:
            locate_file(reader, file)
            return OutputView(file.name, picture=build_file_address(reader, file))
        if suffix in _SEPARATORS:
            text, is_whole = _read_beginning(reader, file)
            return _build_csv_view(file.name, text, _SEPARATORS[suffix], is_whole=is_whole)
        if suffix in _TEXTS:
            text, _ = _read_beginning(reader, file)
            return _build_text_view(file.name, text)
    except (ScanflowError, OSError, csv.Error):  # it cannot be shown: its row in the table of files stays
        return None
    return None


def _read_beginning(reader: RunReader, file: StepFile) -> tuple[str, bool]:
    """Return the beginning of a file with the run's secrets masked, and whether it is the whole file."""
    with locate_file(reader, file).open("rb") as opened:
        block, is_whole = opened.read(_BLOCK), not opened.read(1)
    return MaskedStream(reader.masker).feed(block, last=is_whole).decode("utf-8", "replace"), is_whole


def _build_csv_view(name: str, text: str, separator: str, *, is_whole: bool) -> OutputView:
    rows = list(islice(csv.reader(text.splitlines(), delimiter=separator), _MAX_ROWS + 1))
    view = _build_table_view(name, rows[0] if rows else [], rows[1:], n_rows=len(rows) - 1)
    return view if is_whole and len(rows) <= _MAX_ROWS else view._replace(note="the first rows")


def build_file_table(reader: RunReader, files: Sequence[StepFile]) -> CellTable:
    rows: list[list[Cell]] = [
        [Link(file.name, build_file_address(reader, file)), format_memory(file.size_bytes)] for file in files
    ]
    return CellTable(("file", "size"), rows, "It left no files.")


def build_file_address(reader: RunReader, file: StepFile) -> str:
    return f"/runs/{reader.run.name}/files/{quote(file.task)}/{quote(file.name)}"
