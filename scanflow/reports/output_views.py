"""How an output or a file is shown by what it is: a table, a picture, a text, or a line. Pure: it loads no pickle."""

from __future__ import annotations

import csv
import json
import mimetypes
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from scanflow.text.printable import make_printable

MAX_ROWS, MAX_COLUMNS, MAX_LENGTH, MAX_LINE_LENGTH = 10, 12, 4000, 120
PICTURES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml")
"""The media types of files that browsers show as pictures."""

_SEPARATORS: Final = {".csv": ",", ".tsv": "\t"}
_TEXTS: Final = (".txt", ".md", ".log", ".json", ".yaml", ".yml", ".toml", ".ini")


class OutputView(NamedTuple):
    """What is shown of a value: a line, a long text, or a table."""

    name: str
    line: str = ""
    text: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str | None]] = ()
    note: str = ""
    """How much of it is shown, unless it is all."""


def build_output_view(name: str, value: Any) -> OutputView:
    """Return what is shown of a value of JSON."""
    if _is_table(value):
        columns = list(dict.fromkeys(str(key) for row in value[:MAX_ROWS] for key in row))
        rows = [[_format_cell(row.get(column)) for column in columns] for row in value[:MAX_ROWS]]
        return _build_table_view(name, columns, rows, f"{MAX_ROWS} of {len(value):,} rows" * (len(value) > MAX_ROWS))
    text = value if isinstance(value, str) else _write_json(value, MAX_LINE_LENGTH)
    if "\n" not in text and len(text) <= MAX_LINE_LENGTH:
        return OutputView(name, line=text)
    return _build_text_view(name, text if isinstance(value, str) else _write_json(value, MAX_LENGTH, indent=2))


def _write_json(value: Any, most: int, indent: int | None = None) -> str:
    """Return a value as JSON; of more than ``most`` characters, the beginning, which is longer than that."""
    text = ""
    for part in json.JSONEncoder(ensure_ascii=False, indent=indent).iterencode(value):
        text += part
        if len(text) > most:
            break
    return text


def build_file_view(name: str, content: str, *, is_whole: bool) -> OutputView | None:
    """Return what is shown of the beginning of a file, by its name; None: nothing."""
    suffix = PurePath(name).suffix.lower()
    if suffix in _TEXTS:
        return _build_text_view(name, content)
    if suffix not in _SEPARATORS:
        return None
    try:
        rows = list(islice(csv.reader(content.splitlines(), delimiter=_SEPARATORS[suffix]), MAX_ROWS + 2))
    except csv.Error:
        return _build_text_view(name, content)
    note = "" if is_whole and len(rows) <= MAX_ROWS + 1 else "the first rows"
    return _build_table_view(name, rows[0] if rows else [], rows[1 : MAX_ROWS + 1], note)


def has_file_view(name: str) -> bool:
    """Return whether something is shown of a file of that name, beside pictures."""
    return PurePath(name).suffix.lower() in {*_TEXTS, *_SEPARATORS}


def guess_media_type(name: str) -> str:
    return mimetypes.guess_type(name, strict=False)[0] or "application/octet-stream"


def _is_table(value: Any) -> bool:
    """Return whether a value is a list of mappings of names to plain values."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(row, Mapping) and row and not any(isinstance(cell, Mapping | list) for cell in row.values())
            for row in value
        )
    )


def _format_cell(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _build_table_view(name: str, columns: Sequence[str], rows: Sequence[Sequence[str | None]], note: str) -> OutputView:
    notes = [note] if note else []
    notes += [f"{MAX_COLUMNS} of {len(columns)} columns"] if len(columns) > MAX_COLUMNS else []
    return OutputView(
        name, columns=columns[:MAX_COLUMNS], rows=[row[:MAX_COLUMNS] for row in rows], note=", ".join(notes)
    )


def _build_text_view(name: str, text: str) -> OutputView:
    return OutputView(name, text=make_printable(text[:MAX_LENGTH]), note="the beginning" * (len(text) > MAX_LENGTH))
