"""Reads pairs of tables for comparison: files of tables, npz, and folders of recorded predictions."""

from __future__ import annotations

import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.column_types import convert_to_same_kind, infer_kind
from scanflow.drift.table import DataTable, align
from scanflow.errors import InvalidError, NotFoundError
from scanflow.installation import explain_install
from scanflow.tables.columns import Columns, ReadOptions

INPUT = "input:"
"""Prefix of the names of recorded inputs in files of recorded predictions."""


_TEXT_KINDS: Final = ("text", "number")


def read_pair(
    reference: Path, current: Path, options: ReadOptions | None = None
) -> tuple[DataTable, DataTable, list[str]]:
    """Read two tables for comparison, the second with the first one's types; return both, and notes on conversions.

    Raises:
        NotFoundError: a file is missing, or a folder has no recorded predictions.
        InvalidError: a file is of another kind, cannot be read or in two ways, or has other columns than the other one.
    """
    before, after = _read(reference, options), _read(current, options)
    old, new = dict(before.values), dict(after.values)
    shared = [name for name in old if name in new]
    texts = [name for name in shared if (infer_kind(old[name]), infer_kind(new[name])) == _TEXT_KINDS]
    if texts:  # as they stand in the file: zeros in front are no part of a number
        again = _read(current, options, texts=texts).values
        new |= {name: again[name] for name in texts}
    notes = list(dict.fromkeys([*before.list_notes(), *after.list_notes()]))
    for name in shared:
        old[name], new[name], note = convert_to_same_kind(name, old[name], new[name])
        if note or name in texts:
            notes.append(note or f"{name!r} is read as text, as in the reference.")
    left_out = {**before.left_out, **after.left_out}
    notes += [f"{name!r} is not compared: {why}." for name, why in left_out.items()]
    for name in left_out:
        old.pop(name, None)
        new.pop(name, None)
    return *align(DataTable.from_data(old), DataTable.from_data(new)), notes


def read_table(path: Path) -> DataTable:
    return DataTable.from_data(_read(path, None).values)


def _read(path: Path, options: ReadOptions | None, *, texts: Collection[str] = ()) -> Columns:
    if path.is_dir():
        return Columns(_read_recorded(path))
    if ".npz" in map(str.lower, path.suffixes) and path.is_file():
        return Columns(_load_arrays(path))
    try:
        from scanflow.tables.files import read_columns
    except ModuleNotFoundError as error:
        raise InvalidError(f"Reading {path.name!r} needs {error.name!r}. {explain_install('drift')}") from error
    return read_columns(path, options, texts=texts)


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
