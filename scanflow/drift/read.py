"""Reads tables from files: CSV, Parquet, npz, and folders of recorded predictions."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.table import DataTable, aligned
from scanflow.errors import InvalidError, NotFoundError

INPUT = "input:"
"""What the names of recorded inputs begin with in files of recorded predictions."""


def read_pair(reference: Path, current: Path) -> tuple[DataTable, DataTable]:
    """Read two tables that are to be compared.

    Raises:
        NotFoundError: a file is missing, or a folder has no recorded predictions.
        InvalidError: a file is of another kind, cannot be read, or has other columns than the other file.
    """
    return aligned(read_table(reference), read_table(current))


def read_table(path: Path) -> DataTable:
    return DataTable.of(_read(path))


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
