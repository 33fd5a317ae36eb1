"""How a delimited text file is written: its encoding and separator. Guessed from its first lines, or refused. Pure."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from scanflow.errors import InvalidError

TAB: Final = "\t"
SEPARATORS: Final = (",", ";", TAB, "|")
NO_SEPARATOR: Final = "\x1f"
"""The separator of a file of one column: a character that text has not."""

FALLBACK_ENCODING: Final = "cp1252"
"""Of text that is not in UTF-8: what spreadsheets of Western Europe write."""

HEAD_BYTES: Final = 1 << 18
_HEAD_LINES: Final = 500
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks; those of UTF-32 begin as those of UTF-16 do."""


_BINARY: Final = {
    b"PAR1": "a Parquet file",
    b"ARROW1": "a Feather file",
    b"\x1f\x8b": "a gzip file",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ": "an xz file",
    b"PK\x03\x04": "a zip archive, as spreadsheets (.xlsx) are,",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"\xd0\xcf\x11\xe0": "a spreadsheet (.xls)",
    b"\x93NUMPY": "an array of NumPy",
}
"""How files begin that are no text."""

_CONTROLS: Final = frozenset(range(9))
"""Bytes that no text has in UTF-8."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a file is written."""

    encoding: str
    separator: str
    header: tuple[str, ...]
    """The names in its first line."""

    note: str = ""
    """What was assumed."""


def guess_dialect(head: bytes, name: str, *, encoding: str = "", separator: str = "") -> Dialect:
    """Return how a file that begins with ``head`` is written; what is given is not guessed.

    Raises:
        InvalidError: it is no text, or may be read in two ways; it names what fits and the option that says it.
    """
    if binary := get_binary_format(head):
        raise InvalidError(
            f"{name} is {binary}, and no text of columns. Give it the ending of what it is (.parquet, .csv.gz), or "
            "save it as CSV."
        )
    is_whole = len(head) < HEAD_BYTES
    encoding, note = (encoding, "") if encoding else _guess_encoding(head, name, is_whole=is_whole)
    try:
        decoder = codecs.getincrementaldecoder(encoding)()
        text = decoder.decode(head, final=is_whole)
    except LookupError as error:
        raise InvalidError(f"There is no encoding {encoding!r}. Give one such as --encoding cp1252.") from error
    except UnicodeError as error:
        other = "cp1252" if encoding.lower() != FALLBACK_ENCODING else "cp1250 or utf-16"
        raise InvalidError(
            f"{name} is not in {encoding} (byte {getattr(error, 'start', 0)}). If it is text, say its encoding, such "
            f"as --encoding {other}."
        ) from error
    if "\0" in text:
        raise InvalidError(f"{name} has characters that no text has. Give a text file, or say its encoding: --encoding")
    lines = text if is_whole else text[: text.rfind("\n") + 1]
    separator = separator or _guess_separator(lines, name)
    rows = _split(lines, separator)
    if not rows:
        raise InvalidError(f"{name} is empty. Give a file with a line of names and a line for each row.")
    return Dialect(encoding, separator, tuple(rows[0]), note)


def get_binary_format(head: bytes) -> str:
    """Return what a file that begins so is, as people say it; empty: it may be text."""
    if not any(byte in _CONTROLS for byte in head):  # a column of text may be called PAR1
        return ""
    return next((name for start, name in _BINARY.items() if head.startswith(start)), "")


def describe_fallback(name: str) -> str:
    return f"{name} is not in UTF-8, and was read as {FALLBACK_ENCODING} (Western Europe). Another: --encoding"


def _guess_encoding(head: bytes, name: str, *, is_whole: bool) -> tuple[str, str]:
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding, ""
    if head[:200].count(0) > len(head[:200]) // 4:  # UTF-16 without a mark: every other byte of ASCII is zero
        return ("utf-16-le" if head[1:2] == b"\0" else "utf-16-be"), ""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(head, final=is_whole)
    except UnicodeDecodeError:
        return FALLBACK_ENCODING, describe_fallback(name)
    return "utf-8", ""


def _guess_separator(lines: str, name: str) -> str:
    """Return the separator by which all lines have as many fields as the first.

    Raises:
        InvalidError: several separators do, or none of those in the first line does.
    """
    first = lines.lstrip().partition("\n")[0]
    fitting = {one: width for one in SEPARATORS if (width := _count_fields(_split(lines, one))) > 1}
    if len(fitting) == 1:
        return next(iter(fitting))
    if fitting:
        named = " or ".join(
            f"{'tabs' if one == TAB else repr(one)} ({width} columns)" for one, width in fitting.items()
        )
        raise InvalidError(f"The columns of {name} may be separated by {named}. Say which: --separator ','")
    if used := [one for one in SEPARATORS if one in first]:
        separator = max(used, key=first.count)
        rows = _split(lines, separator)
        at = next((place for place, row in enumerate(rows, 1) if len(row) != len(rows[0])), None)
        if at is None:  # one column: it is between quotes in the first line
            return separator
        raise InvalidError(
            f"Line {at} of {name} has {len(rows[at - 1])} fields and its first line {len(rows[0])}. Mend the file, or "
            "say its separator: --separator ';'"
        )
    return NO_SEPARATOR


def _split(lines: str, separator: str) -> list[list[str]]:
    rows = csv.reader(io.StringIO(lines, newline=""), delimiter=separator)
    try:
        return [row for row, _ in zip((row for row in rows if row), range(_HEAD_LINES), strict=False)]
    except csv.Error:
        return []


def _count_fields(rows: Sequence[Sequence[str]]) -> int:
    """Return how many fields all rows have, those of an empty last one left out; 0: not as many each."""
    if not rows:
        return 0
    width = len(rows[0])
    fits = all(len(row) == width or (len(row) == width + 1 and not row[-1].strip()) for row in rows)
    return width if fits else 0
