"""Columns of text as the values that they are written for: numbers, date-times, truth values. Pure.

A file says nothing of types, and people write one number in many ways: ``1234.5``, ``1,234.50``, ``1.234,5``.
Each column is read by its own values; where those fit two ways (``1,234``), by what the file's other columns show.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from scanflow.arrays import EXACT_MAX
from scanflow.errors import InvalidError
from scanflow.tables.columns import ColumnKind, Spelling, format_number

Texts: TypeAlias = NDArray[np.object_]
"""(rows,): text, or None where a value is missing."""

Mark: TypeAlias = Literal[".", ","]

MISSING: Final = ("", "#N/A", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null", "<NA>", "NaT")
"""Texts that mean a missing value, in files of every kind."""

MAX_WORDS: Final = 3
"""Different words that a column may have which is of numbers for the most part."""

MAX_CATEGORIES: Final = 10
"""Different numbers that may be categories, as in ``1``, ``2``, ``X``."""

_LEAST_NUMBERS: Final = 0.8
"""The share of numbers in a column of numbers that has more words."""

_SPACES: Final = " '\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}\N{RIGHT SINGLE QUOTATION MARK}"
_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity)", re.IGNORECASE)
_MARKS: Final[tuple[tuple[Mark, Mark], ...]] = ((".", ","), (",", "."))
_GROUPED: Mapping[Mark, re.Pattern[str]] = {
    mark: re.compile(
        rf"[+-]?\d{{1,3}}(([{re.escape(other)}{_SPACES}])\d{{3}}(\2\d{{3}})*)?({re.escape(mark)}\d*)?([eE][+-]?\d+)?"
    )
    for mark, other in _MARKS
}
_SIMPLE: Mapping[Mark, re.Pattern[str]] = {
    mark: re.compile(rf"[+-]?(\d+{re.escape(mark)}?\d*|{re.escape(mark)}\d+)([eE][+-]?\d+)?") for mark in (".", ",")
}
_CODE = re.compile(r"[+-]?0\d+")
"""Zeros in front are of a code, as of a postcode."""

_BLOCK: Final = 1 << 18
_TRUTHS: Final = {"true": 1.0, "false": 0.0}
_DAY = re.compile(r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4}|\d{2})(?:[ T](\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?))?")
_HALF_DAY = re.compile(r"(.*[ T])(\d{1,2})((?::\d{2}){1,2}(?:\.\d+)?) ?([ap])\.?m\.?", re.IGNORECASE)
_ZONE = re.compile(r":\d\d(\.\d+)? ?(Z|[+-]\d\d(:?\d\d)?)$", re.IGNORECASE)
_YEAR_FIRST = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:[ T].*)?")


def check_mark(text: str) -> Mark | None:
    if text == ".":
        return "."
    if text == ",":
        return ","
    if text:
        raise InvalidError(f"--decimal is {text!r}. Give . or ,")
    return None


def find_decimal_mark(texts: Texts) -> Mark | None:
    """Return the decimal mark that a column's numbers have; None: its values fit both marks, or neither."""
    values = pd.unique(texts[texts != np.array(None)])
    points = sum(_is_number(text, ".") and not _is_number(text, ",") for text in values)
    commas = sum(_is_number(text, ",") and not _is_number(text, ".") for text in values)
    if points == commas:
        return None
    return "." if points > commas else ","


def is_ambiguous(texts: Texts) -> bool:
    """Return whether a column's values are numbers of which a comma may be the decimal mark, or between thousands."""
    values = [text for text in pd.unique(texts[texts != np.array(None)]) if "," in text]
    return bool(values) and all(re.fullmatch(r"[+-]?\d{1,3},\d{3}", text) for text in values)


def parse_numbers(levels: Sequence[str], mark: Mark) -> NDArray[np.floating[Any]]:
    """Return the numbers that the different values of a column are, NaN for words. Where none is a number, true and
    false are 1 and 0. Large whole numbers are exact: long doubles."""
    texts = [_write_plain(level, mark) for level in levels]
    numbers = np.array([float(text) for text in texts], np.float64)
    if (np.abs(numbers) >= EXACT_MAX).any():
        exact = np.array([_parse_whole(text) or float(text) for text in texts], object)
        if not all(isinstance(number, float) for number in exact):
            return exact.astype(np.longdouble)
    if np.isnan(numbers).all():
        return np.array([_TRUTHS.get(level.lower(), np.nan) for level in levels], np.float64)
    return numbers


def is_of_numbers(*spellings: Spelling) -> bool:
    """Return whether a column is of numbers, with words that count as missing, by all files that have it.

    With a few words it is if most of its values are numbers, or more different ones than categories would be; with many
    words, if nearly all are.
    """
    if any(spelling.code for spelling in spellings):
        return False
    words = {word for spelling in spellings for word in spelling.words}
    numbers, word_rows = (sum(getattr(side, rows) for side in spellings) for rows in ("numbers", "word_rows"))
    if len(words) > MAX_WORDS:
        return bool(numbers >= _LEAST_NUMBERS * (numbers + word_rows))
    return numbers > word_rows or max(spelling.different_numbers for spelling in spellings) > MAX_CATEGORIES


def _describe_spelling(levels: Sequence[str], numbers: NDArray[Any], counts: NDArray[np.intp]) -> Spelling:
    are_words = np.isnan(numbers)
    words = sorted(level for level, is_word in zip(levels, are_words, strict=True) if is_word)
    return Spelling(
        numbers=int(counts[~are_words].sum()),
        different_numbers=int((~are_words).sum()),
        words=tuple(words[: MAX_WORDS + 1]),
        word_rows=int(counts[are_words].sum()),
        code=get_code(levels),
    )


def get_code(levels: Iterable[str]) -> str:
    """Return the first of different values that is a number with zeros in front; empty: there is none."""
    return next((level for level in levels if _CODE.fullmatch(level)), "")


def may_have_codes(content: bytes, separator: str) -> bool:
    """Return whether some field of a delimited text, in UTF-8 or so, may have zeros in front of a number, as a code.

    A quick look at the bytes, a block at a time: parsing takes thirty times as long.
    """
    before = np.frombuffer(f'{separator}\n\r" '.encode(), np.uint8)
    read = np.frombuffer(content, np.uint8)
    for start in range(0, len(read), _BLOCK):
        block = read[start : start + _BLOCK + 2]
        are_zeros = (block[1:-1] == ord("0")) & (block[2:] - np.uint8(ord("0")) < 10)
        if np.isin(block[:-2][are_zeros], before).any():
            return True
    return False


def _is_number(text: str, mark: Mark) -> bool:
    return bool(_SIMPLE[mark].fullmatch(text) or _GROUPED[mark].fullmatch(text))


def _write_plain(text: str, mark: Mark) -> str:
    """Return a number as Python writes it, and ``nan`` for a word."""
    text = text.strip()
    if _PLAIN.fullmatch(text) and (mark == "." or "." not in text):
        return text
    if not _is_number(text, mark):
        return "nan"
    return re.sub(rf"[{_SPACES}{'.' if mark == ',' else ','}]", "", text).replace(",", ".")


def _parse_whole(text: str) -> int | None:
    """Return a whole number that is written with all of its digits, if it is too large for a float."""
    digits = re.fullmatch(r"([+-]?\d{16,20})(\.0*)?", text)
    return None if digits is None or abs(int(digits[1])) <= EXACT_MAX else int(digits[1])


def parse_times(name: str, levels: Sequence[str]) -> NDArray[np.datetime64] | None:
    """Return the date-times, in UTC, that the different values of a column are; None: it is not of date-times.

    Raises:
        InvalidError: day and month cannot be told apart.
    """
    levels = [*map(_write_24_hours, levels)]
    if all(map(_YEAR_FIRST.fullmatch, levels)):
        read = _read_times([re.sub(r"^(\d{4})[/.](\d{1,2})[/.]", r"\1-\2-", level) for level in levels], "ISO8601")
        return _read_times([_pad(level) for level in levels], "ISO8601") if read is None else read
    matches = [match for level in levels if (match := _DAY.fullmatch(level)) is not None]
    return _read_days(name, matches) if len(matches) == len(levels) else None


def _write_24_hours(text: str) -> str:
    """Return a date-time with a time of 24 hours instead of one with AM or PM; others as they are."""
    match = _HALF_DAY.fullmatch(text)
    if match is None or not 1 <= int(match[2]) <= 12:
        return text
    hour = int(match[2]) % 12 + (12 if match[4].lower() == "p" else 0)
    return f"{match[1]}{hour:02}{match[3]}"


def _pad(text: str) -> str:
    year, month, rest = re.split(r"[-/.]", text, maxsplit=2)
    day, _, time = rest.partition(" ")
    return f"{year}-{month:>02}-{day:>02}{f' {time}' if time else ''}"


def _read_days(name: str, matches: list[re.Match[str]]) -> NDArray[np.datetime64] | None:
    separators = {match[2] for match in matches}
    if len(separators) > 1:
        return None
    first, second, third = (max(int(match[at]) for match in matches) for at in (1, 3, 4))
    if first > 12 < second:
        return None
    has_year_first = second <= 12 and third <= 31 and all(len(match[1]) == len(match[4]) == 2 for match in matches)
    if first > 31 and not has_year_first:
        return None
    if first > 31:
        texts = [f"{_write_year(match[1])}-{match[3]:>02}-{match[4]} {match[5] or '00:00'}" for match in matches]
        return _read_times(texts, "ISO8601")
    if has_year_first and separators != {"."}:
        raise InvalidError(
            f"{name!r} has dates such as {matches[0][0]!r}, of which the first or the last part may be the year. "
            "Write them as YYYY-MM-DD."
        )
    if first <= 12 and second <= 12 and separators != {"."}:  # with full stops the day is first
        raise InvalidError(
            f"{name!r} has dates such as {matches[0][0]!r}, of which the first part may be the day or the month. "
            "Write them as YYYY-MM-DD."
        )
    day, month = (1, 3) if second <= 12 else (3, 1)
    texts = [f"{_write_year(match[4])}-{match[month]:>02}-{match[day]:>02} {match[5] or '00:00'}" for match in matches]
    return _read_times(texts, "ISO8601")


def _write_year(digits: str) -> str:
    """Return a year in four digits; of two, 69 to 99 are in the 20th century, as POSIX has it for strptime."""
    return digits if len(digits) == 4 else f"{19 if int(digits) >= 69 else 20}{digits}"


def _read_times(texts: list[str], form: str) -> NDArray[np.datetime64] | None:
    try:
        read = pd.to_datetime(pd.Series(texts, dtype=object), utc=True, format=form).dt.tz_localize(None)
    except (ValueError, OverflowError):
        return None
    return np.asarray(read, "datetime64[us]")


def _unify(text: str) -> str:
    """Return a text as it is, but a plain number in one way; zeros in front are no part of a number."""
    if not _PLAIN.fullmatch(text) or _CODE.fullmatch(text):
        return text
    number = float(text)
    return format_number(number) if np.isfinite(number) else text


def make_texts(values: Iterable[Any]) -> Texts:
    """Return an array of objects, also of lists and of no values."""
    return np.array([*values, None], object)[:-1]


@dataclass(frozen=True, slots=True)
class ReadTexts:
    """The values that a column's texts are."""

    values: NDArray[Any]
    words: Texts | None = None
    """(rows,): the words among numbers, None where there is none. None: there are no words."""

    spelling: Spelling | None = None
    """None: it has no values, or is of date-times."""

    has_zone: bool = False
    """Whether a date-time has a time zone."""


def read_texts(name: str, texts: Texts, mark: Mark, kind: ColumnKind | None = None) -> ReadTexts:
    """Read a column's values. ``kind`` says whether it is of numbers or text; None: its own values do."""
    codes, different = pd.factorize(texts)  # -1 where missing, which is the last place below
    levels = list(map(str, different))
    if not levels:
        return ReadTexts(texts)
    numbers = parse_numbers(levels, mark)
    spelling = _describe_spelling(levels, numbers, np.bincount(codes[codes >= 0]))
    if kind is None and {level.lower() for level in levels} <= _TRUTHS.keys():
        truths = make_texts([*(level.lower() == "true" for level in levels), None])[codes]
        return ReadTexts(truths if (codes < 0).any() else truths.astype(bool), None, spelling)
    if kind == "number" or (kind is None and is_of_numbers(spelling)):
        words = make_texts(
            [*(level if gap else None for level, gap in zip(levels, np.isnan(numbers), strict=True)), None]
        )
        return ReadTexts(np.append(numbers, np.nan)[codes], words[codes] if spelling.words else None, spelling)
    times = parse_times(name, levels) if kind is None else None
    if times is not None:
        moments = np.append(times, np.datetime64("NaT", "us"))[codes]
        return ReadTexts(moments, has_zone=any(map(_ZONE.search, levels)))
    return ReadTexts(make_texts([*map(_unify, levels), None])[codes], None, spelling)
