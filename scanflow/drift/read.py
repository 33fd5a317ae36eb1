"""Reads pairs of tables for comparison: files of tables, npz, and folders of recorded predictions."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.column_types import convert_to_same_kind, infer_kind, mark_missing
from scanflow.drift.comparable import MISSING_ONLY, NEARLY_UNIQUE, format_left_out, mark_present
from scanflow.drift.table import FEW_VALUES, DataTable, align
from scanflow.errors import InvalidError, NotFoundError
from scanflow.installation import explain_install
from scanflow.tables.columns import ColumnKind, Columns, ReadOptions, Spelling
from scanflow.tables.truths import list_spellings, read_truths

INPUT = "input:"
"""Prefix of the names of recorded inputs in files of recorded predictions."""


_MAX_WORDS_NOTED: Final = 0.9
"""A column of text with a smaller share of numbers is just text."""


class TablePair(NamedTuple):
    reference: DataTable
    current: DataTable
    notes: list[str]
    """On conversions."""

    left_out: dict[str, str]
    """Columns of which no values are compared, each with the reason."""


def read_pair(reference: Path, current: Path, options: ReadOptions | None = None) -> TablePair:
    """Read two tables for comparison, the second with the first one's types.

    Raises:
        NotFoundError: a file is missing, or a folder has no recorded predictions.
        InvalidError: a file is of another kind, cannot be read or in two ways, or has other columns than the other one.
    """
    before, after = _read(reference, options), _read(current, options)
    shared = [name for name in before.values if name in after.values]
    truths = {name: both for name in shared if (both := _unify_truths(name, before, after)) is not None}
    before, after = (
        _replace_values(side, {name: both[at] for name, both in truths.items()})
        for at, side in enumerate((before, after))
    )
    kinds: dict[str, ColumnKind] = {
        name: kind for name in shared if (kind := _choose_kind(name, before, after)) is not None
    }
    before, after = (_read_as(path, side, options, kinds) for path, side in ((reference, before), (current, after)))
    old, new = dict(before.values), dict(after.values)
    notes = list(dict.fromkeys([*before.list_notes(), *after.list_notes()]))
    notes += [note for name, kind in kinds.items() if kind == "text" and (note := _explain_text(name, before, after))]
    left_out = {**before.left_out, **after.left_out}
    for name in shared:
        old[name], new[name], note = convert_to_same_kind(name, old[name], new[name])
        notes += [note] if note else []
        if (name in before.zoned) != (name in after.zoned) and infer_kind(old[name]) == infer_kind(new[name]) != "text":
            zoned, other = ("reference", "current") if name in before.zoned else ("current", "reference")
            notes.append(
                f"{name!r} has a time zone in the {zoned} file; the times of the {other} one were taken as UTC."
            )
    for name in (name for name in shared if name in before.words or name in after.words):
        if f"{name} (words)" not in {*old, *new} and (both := _separate_texts(name, before, after)) is not None:
            old[f"{name} (words)"], new[f"{name} (words)"] = both
    for name in left_out:
        old.pop(name, None)
        new.pop(name, None)
        if (both := _mark_present(name, before, after)) is not None:
            old[name], new[name] = both
            left_out[name] += MISSING_ONLY
    if not old:
        raise InvalidError(f"No column can be compared: {format_left_out(left_out)}. Give a table with others.")
    return TablePair(*align(DataTable.from_data(old), DataTable.from_data(new)), notes, left_out)


def _unify_truths(name: str, before: Columns, after: Columns) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return a column of truth values that two files write in other ways, as numbers; None: it is another, or they
    write it in one way."""
    both = [side.values[name] for side in (before, after)]
    if not any(side.dtype.kind == "O" for side in both):
        return None  # true and false are 1 and 0
    old, new = map(read_truths, both)
    if old is None or new is None or any(mark_missing(side).all() for side in both):
        return None
    written = [list_spellings(side) for side in both]
    if written[0] <= written[1] or written[1] <= written[0]:
        return None
    return old.astype(float), new.astype(float)


def _replace_values(columns: Columns, values: Mapping[str, NDArray[Any]]) -> Columns:
    spellings = {name: spelling for name, spelling in columns.spellings.items() if name not in values}
    words = {name: texts for name, texts in columns.words.items() if name not in values}
    return replace(columns, values={**columns.values, **values}, spellings=spellings, words=words)


def _choose_kind(name: str, before: Columns, after: Columns) -> ColumnKind | None:
    """Return whether a column is of numbers or text, by both files together; None: no file has text in it, or one has
    neither numbers nor text."""
    if name not in before.spellings and name not in after.spellings:
        return None
    old, new = (_describe_column(name, side) for side in (before, after))
    if old is None or new is None:
        return None
    if any(side.code for side in (old, new)):
        rows = sum(side.numbers + side.word_rows for side in (old, new))
        is_unique = old.different_numbers + new.different_numbers > NEARLY_UNIQUE * rows
        return "number" if is_unique else "text"  # unique text would not be compared at all
    from scanflow.tables.texts import is_of_numbers

    return "number" if is_of_numbers(old, new) else "text"


def _describe_column(name: str, columns: Columns) -> Spelling | None:
    if name in columns.spellings:
        return columns.spellings[name]
    values = columns.values[name]
    if infer_kind(values) != "number" or values.ndim > 1:
        return None
    numbers = values[~mark_missing(values)]
    return Spelling(numbers=len(numbers), different_numbers=len(set(numbers.tolist()))) if len(numbers) else None


def _read_as(path: Path, columns: Columns, options: ReadOptions | None, kinds: Mapping[str, ColumnKind]) -> Columns:
    """Return the columns of a file, with those that are of another kind than by themselves read again."""
    others: dict[str, ColumnKind] = {
        name: kind for name, kind in kinds.items() if (infer_kind(columns.values[name]) == "text") != (kind == "text")
    }
    return _read(path, options, kinds=others) if others and not _has_arrays(path) else columns


def _explain_text(name: str, before: Columns, after: Columns) -> str:
    """Return why a column in which there are numbers is compared as text; empty: it has few."""
    sides = [side for columns in (before, after) if (side := _describe_column(name, columns)) is not None]
    if code := next((side.code for side in sides if side.code), ""):
        return f"{name!r} is compared as text: it has numbers with zeros in front, such as {code!r}."
    rows, word_rows = sum(side.numbers + side.word_rows for side in sides), sum(side.word_rows for side in sides)
    is_plain = max(side.different_numbers for side in sides) <= FEW_VALUES or word_rows > _MAX_WORDS_NOTED * rows
    if is_plain and all(side.word_rows for side in sides):
        return ""
    words = next(side.words[0] for side in sides if side.words)
    return f"{name!r} is compared as text: {word_rows / rows:.0%} of its values are no numbers, such as {words!r}."


def _separate_texts(name: str, before: Columns, after: Columns) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return the words among a column's numbers, in both files; None: all values that are no numbers are one word."""
    old, new = (
        columns.words.get(name, np.full(len(columns.values[name]), None, object)) for columns in (before, after)
    )
    gone = np.concatenate([mark_missing(columns.values[name]) for columns in (before, after)])
    return (old, new) if len(set(np.concatenate([old, new])[gone])) > 1 else None


def _mark_present(name: str, before: Columns, after: Columns) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return where a column that is not compared has values, in both files; None: everywhere, or nowhere."""
    old, new = (_find_missing(name, columns) for columns in (before, after))
    if old is None or new is None or not 0 < old.sum() + new.sum() < len(old) + len(new):
        return None
    return mark_present(old), mark_present(new)


def _find_missing(name: str, columns: Columns) -> NDArray[np.bool_] | None:
    if name in columns.missing or name not in columns.values:
        return columns.missing.get(name)
    values = columns.values[name]
    return mark_missing(values) if values.ndim == 1 else np.zeros(len(values), bool)


def read_table(path: Path) -> DataTable:
    return DataTable.from_data(_read(path, None).values)


def _has_arrays(path: Path) -> bool:
    return path.is_dir() or (".npz" in map(str.lower, path.suffixes) and path.is_file())


def _read(path: Path, options: ReadOptions | None, *, kinds: Mapping[str, ColumnKind] | None = None) -> Columns:
    if _has_arrays(path):
        return Columns(_read_recorded(path) if path.is_dir() else _load_arrays(path))
    try:
        from scanflow.tables.table_files import read_columns
    except ModuleNotFoundError as error:
        raise InvalidError(f"Reading {path.name!r} needs {error.name!r}. {explain_install('drift')}") from error
    return read_columns(path, options, kinds=kinds)


def _load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:  # np.load leaves a broken one open
            return {name: file[name] for name in file.files if file[name].ndim}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidError(f"{str(path)!r} cannot be read ({error}). Write it again.") from error


def _read_recorded(folder: Path) -> dict[str, NDArray[Any]]:
    """Read the inputs in all files of a folder of recorded predictions."""
    parts: dict[str, list[NDArray[Any]]] = {}
    for path in sorted(folder.rglob("*.npz")):
        for name, array in _load_arrays(path).items():
            if name.startswith(INPUT) and array.dtype.kind in "biuf":
                parts.setdefault(name.removeprefix(INPUT), []).append(array)
    if not parts:
        raise NotFoundError(f"The folder {str(folder)!r} has no recorded predictions (npz files). Give another.")
    try:
        return {name: np.concatenate(arrays) for name, arrays in parts.items()}
    except ValueError as error:
        raise InvalidError(
            f"The predictions in {str(folder)!r} have different shapes ({error}). Give the predictions of one model."
        ) from error
