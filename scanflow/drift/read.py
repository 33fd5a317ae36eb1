"""Reads tables from files: CSV, Parquet, npz, and folders of recorded predictions."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.table import DataTable
from scanflow.errors import InvalidError, NotFoundError

INPUT = "input:"
"""What the names of recorded inputs begin with in files of recorded predictions."""

MOST_COLUMNS = 256
"""Arrays of more numbers a row (pictures) are compared along their main directions."""

DIRECTIONS = 32


def read_pair(reference: Path, current: Path) -> tuple[DataTable, DataTable]:
    """Read two tables that are to be compared.

    Raises:
        NotFoundError: a file is missing, or a folder has no recorded predictions.
        InvalidError: a file is of another kind, cannot be read, or has arrays of unlike lengths.
    """
    first, second = _read(reference), _read(current)
    for name in first.keys() & second.keys():
        one, other = first[name], second[name]
        if one.ndim < 2 or other.ndim < 2:
            continue
        if one.shape[1:] != other.shape[1:]:
            raise InvalidError(
                f"{name!r} has rows of the shape {one.shape[1:]} in {reference.name} and {other.shape[1:]} in "
                f"{current.name}. Compare data of one shape."
            )
        width = int(np.prod(one.shape[1:]))
        if width > MOST_COLUMNS:
            first[name], second[name] = _along_main_directions(one.reshape(len(one), -1), other.reshape(len(other), -1))
    return _table(first), _table(second)


def _table(arrays: Mapping[str, NDArray[Any]]) -> DataTable:
    columns: dict[str, NDArray[Any]] = {}
    for name, array in arrays.items():
        if array.ndim < 2:
            columns[name] = array
            continue
        flat = array.reshape(len(array), -1)
        columns.update({f"{name}[{at}]": flat[:, at] for at in range(flat.shape[1])})
    return DataTable.of(columns)


def _along_main_directions(first: NDArray[Any], second: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return both along the main directions of both, and how long what these leave out is: (rows, DIRECTIONS + 1)."""
    both = np.concatenate([first, second]).astype(np.float64)
    both -= both.mean(axis=0)
    _, vectors = np.linalg.eigh(both.T @ both)
    axes = vectors[:, ::-1][:, :DIRECTIONS]
    along = both @ axes
    left = np.linalg.norm(both - along @ axes.T, axis=1)
    found = np.column_stack([along, left])
    return found[: len(first)], found[len(first) :]


def _read(path: Path) -> dict[str, NDArray[Any]]:
    if path.is_dir():
        return _recorded(path)
    if not path.is_file():
        raise NotFoundError(
            f"There is no file {str(path)!r}. Give a CSV, Parquet or npz file, or a folder of predictions."
        )
    endings = [one.lower() for one in path.suffixes]
    try:
        if ".npz" in endings:
            return _arrays(path)
        if ".csv" in endings or ".tsv" in endings:
            import pandas as pd

            frame = pd.read_csv(path, sep="\t" if ".tsv" in endings else ",")
        elif ".parquet" in endings or ".pq" in endings:
            import pandas as pd

            frame = pd.read_parquet(path)
        else:
            raise InvalidError(
                f"{path.name!r} is of no known kind. Give a file that ends in .csv, .tsv, .parquet or .npz."
            )
    except ModuleNotFoundError as error:
        raise InvalidError(
            f"Reading {path.name!r} needs {error.name!r}. Install it: pip install 'scanflow[agents]'"
        ) from error
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, InvalidError):
            raise
        raise InvalidError(f"{str(path)!r} cannot be read ({error}). Write it again.") from error
    return {str(name): np.asarray(frame[name]) for name in frame.columns}


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files if file[name].ndim}


def _recorded(folder: Path) -> dict[str, NDArray[Any]]:
    """Return the inputs in a folder of recorded predictions, those of all its files."""
    parts: dict[str, list[NDArray[Any]]] = {}
    for path in sorted(folder.rglob("*.npz")):
        for name, array in _arrays(path).items():
            if name.startswith(INPUT) and array.dtype.kind in "biuf":
                parts.setdefault(name.removeprefix(INPUT), []).append(array)
    if not parts:
        raise NotFoundError(f"The folder {str(folder)!r} has no recorded predictions (npz files). Give another.")
    try:
        return {name: np.concatenate(arrays) for name, arrays in parts.items()}
    except ValueError as error:
        raise InvalidError(
            f"The predictions in {str(folder)!r} have unlike shapes ({error}). Give those of one model."
        ) from error
