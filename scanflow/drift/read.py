"""Reads tables from files: CSV, Parquet, npz, and folders of recorded predictions."""

from __future__ import annotations

import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.column_types import convert_to_same_kind, infer_kind
from scanflow.drift.table import DataTable, align, is_missing
from scanflow.errors import InvalidError, NotFoundError
from scanflow.installation import explain_install

INPUT = "input:"
"""Prefix of the names of recorded inputs in files of recorded predictions."""


_TEXT_KINDS: Final = ("text", "number")

MISSING: Final = ("", "#N/A", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null", "<NA>", "NaT")
"""Texts that mean a missing value, in files of every kind."""


def read_pair(reference: Path, current: Path) -> tuple[DataTable, DataTable, list[str]]:
    """Read two tables for comparison, the second with the first one's types; return both, and notes on conversions.

    Raises:
        NotFoundError: a file is missing, or a folder has no recorded predictions.
        InvalidError: a file is of another kind, cannot be read, or has other columns than the other file.
    """
    before, after = _read(reference), _read(current)
    notes = dict[str, str]()
    texts = [
        name
        for name in before.keys() & after.keys()
        if (infer_kind(before[name]), infer_kind(after[name])) == _TEXT_KINDS
    ]
    if texts:  # as they stand in the file: zeros in front are no part of a number
        after |= _read(current, texts=texts)
    for name in before.keys() & after.keys():
        before[name], after[name], note = convert_to_same_kind(name, before[name], after[name])
        if note or name in texts:
            notes[name] = note or f"{name!r} is read as text, as in the reference."
    return *align(DataTable.from_data(before), DataTable.from_data(after)), [
        notes[name] for name in before if name in notes
    ]


def read_table(path: Path) -> DataTable:
    return DataTable.from_data(_read(path))


def _read(path: Path, *, texts: Collection[str] = ()) -> dict[str, NDArray[Any]]:
    if path.is_dir():
        return _read_recorded(path)
    if not path.is_file():
        raise NotFoundError(
            f"There is no file {str(path)!r}. Give a CSV, Parquet or npz file, or a folder of predictions."
        )
    endings = [suffix.lower() for suffix in path.suffixes]
    try:
        if ".npz" in endings:
            return _load_arrays(path)
        if ".csv" in endings or ".tsv" in endings:
            import pandas as pd

            frame = pd.read_csv(
                path,
                sep="\t" if ".tsv" in endings else ",",
                dtype=dict.fromkeys(texts, str),
                keep_default_na=False,
                na_values=list(MISSING),
            )
        elif ".parquet" in endings or ".pq" in endings:
            import pandas as pd

            frame = pd.read_parquet(path)
            frame = frame.assign(**{name: _format_numbers(frame[name]) for name in texts})
        else:
            raise InvalidError(
                f"{path.name!r} has an unknown format. Give a file that ends in .csv, .tsv, .parquet or .npz."
            )
    except ModuleNotFoundError as error:
        raise InvalidError(f"Reading {path.name!r} needs {error.name!r}. {explain_install('drift')}") from error
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, InvalidError):
            raise
        raise InvalidError(f"{str(path)!r} cannot be read ({error}). Write it again.") from error
    return {str(name): _replace_missing(np.asarray(frame[name])) for name in frame.columns}


def _format_numbers(numbers: Any) -> list[str | None]:
    return [
        None if is_missing(number) else str(int(number) if float(number).is_integer() else number) for number in numbers
    ]


def _replace_missing(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind != "O":
        return values
    none = set(MISSING)
    return np.array([None if isinstance(value, str) and value in none else value for value in values] + [None], object)[
        :-1
    ]


def _load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:  # np.load leaves a broken one open
        return {name: file[name] for name in file.files if file[name].ndim}


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
