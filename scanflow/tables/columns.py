"""What is read of a file of a table: its columns, and their single values."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


DELIMITED: Final = (".csv", ".tsv", ".psv")
PARQUET: Final = (".parquet", ".pq")
FEATHER: Final = (".feather", ".arrow")
JSON_LINES: Final = (".jsonl", ".ndjson")
PACKED: Final = (".gz", ".bz2", ".xz", ".zip", ".zst")
TABLES: Final = frozenset({*DELIMITED, *PARQUET, *FEATHER, *JSON_LINES})
FORMATS: Final = "CSV, Parquet, Feather or JSON lines, also packed as .gz, .bz2, .xz, .zip or .zst"
_SHOWN_WORDS: Final = 3


def get_format(path: Path) -> str:
    """Return the ending that names a file's format, before that of a compression; of a zip else its one file's."""
    ending = next((suffix for suffix in map(str.lower, reversed(path.suffixes)) if suffix not in PACKED), "")
    if ending not in TABLES and path.suffix.lower() == ".zip":
        with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            members = list_members(archive)
            return Path(members[0]).suffix.lower() if len(members) == 1 else ending
    return ending


def replace_columns(frame: Any, columns: Mapping[Any, Any]) -> Any:
    """Return a DataFrame with other values in some columns: a copy, unless there are none.

    ``DataFrame.assign`` takes them as arguments by name, and so no column ``self``.
    """
    changed = frame.copy(deep=False) if columns else frame
    for name, values in columns.items():
        changed[name] = values
    return changed


def list_members(archive: zipfile.ZipFile) -> list[str]:
    """Return the names of the files in an archive, without those that a Mac adds."""
    return [name for name in archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")]


def is_table(path: Path) -> bool:
    """Return whether a file is one of a table, by its name, or that of the one file in a zip."""
    return get_format(path) in TABLES


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a person says of a file; empty: it is guessed."""

    separator: str = ""
    encoding: str = ""
    decimal: str = ""


ColumnKind: TypeAlias = Literal["number", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """What a column that a file has as text consists of: numbers, and words (values that are none)."""

    numbers: int
    """Rows with a number."""

    different_numbers: int
    words: tuple[str, ...] = ()
    """The different words, the first few by the alphabet: one more than numbers may have, if there are so many."""

    word_rows: int = 0
    code: str = ""
    """A number with zeros in front, if there is one: it is a code."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a file, each of numbers, date-times, text or vectors."""

    values: Mapping[str, NDArray[Any]]
    note: str = ""
    """What was assumed of the file."""

    left_out: Mapping[str, str] = field(default_factory=dict)
    """Columns that are no values, each with what it has."""

    missing: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    """Which rows of these have nothing: (rows,) each, where the file says so."""

    words: Mapping[str, NDArray[np.object_]] = field(default_factory=dict)
    """Columns of numbers in which words count as missing, each with these: (rows,), None where there is none."""

    from_texts: Collection[str] = ()
    """Columns that the file has as text, whatever they are read as."""

    zoned: Collection[str] = ()
    """Columns of date-times with a time zone, which are in UTC."""

    spellings: Mapping[str, Spelling] = field(default_factory=dict)
    """What columns of text, or of numbers and words, consist of."""

    def list_notes(self) -> list[str]:
        """Return what a person should know of how the file was read."""
        notes = [
            f"{name!r} is of numbers, and has {_join_texts(words)} too: counted as missing."
            for name, words in self.words.items()
        ]
        return [*filter(None, [self.note]), *notes]


def _join_texts(words: NDArray[np.object_]) -> str:
    different = sorted(set(words) - {None})
    more = f" and {len(different) - _SHOWN_WORDS} other words" if len(different) > _SHOWN_WORDS else ""
    return ", ".join(map(repr, different[:_SHOWN_WORDS])) + more


def format_number(number: float) -> str:
    """Return one text for a number, however it was written: ``1`` for 1.0."""
    return str(int(number)) if float(number).is_integer() and abs(number) < 1e15 else repr(float(number))
