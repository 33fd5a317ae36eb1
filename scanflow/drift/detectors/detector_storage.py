"""A fitted detector in a folder: ``detector.npz`` holds its arrays, ``detector.json`` its kind and other fields."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanflow.errors import InvalidError, NotFoundError
from scanflow.files.private import replace_by_draft

ARRAYS = "detector.npz"
OPTIONS = "detector.json"


def write(folder: Path, kind: str, options: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write both files, the options last: a folder without them is not finished."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / OPTIONS).unlink(missing_ok=True)
    with (folder / ARRAYS).open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **dict(arrays))
    unfinished = folder / f"{OPTIONS}.part"
    with replace_by_draft(folder / OPTIONS, unfinished):
        unfinished.write_text(json.dumps({"kind": kind, **options}, sort_keys=True, indent=1), encoding="utf-8")


def read(folder: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    options = read_options(folder)
    try:
        with np.load(folder / ARRAYS, allow_pickle=False) as arrays:
            return options, {name: np.asarray(arrays[name]) for name in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InvalidError(f"{folder / ARRAYS} cannot be read ({error}). Fit and save it again.") from error


def read_options(folder: Path) -> dict[str, Any]:
    path = folder / OPTIONS
    if not path.is_file():
        raise NotFoundError(f"No detector is saved in {folder}: there is no {OPTIONS}. Fit one and save it there.")
    try:
        options = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidError(f"{path} is not JSON ({error}). Fit the detector again and save it.") from error
    if not isinstance(options, dict) or not isinstance(options.get("kind"), str):
        raise InvalidError(f"{path} does not name its kind of detector. Fit the detector again and save it.")
    return options
