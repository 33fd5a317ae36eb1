"""Values between steps, on disk: JSON where they are plain, pickles where they are not, paths that survive a move.

A task's output folder holds ``.outputs/<name>``, one JSON file for each named output; what a function returned is named
``result``. Inside, ``{"$path": ...}`` is a path, relative to the output folder where it lies in it, and ``{"$pickle":
...}`` a file beside it.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import cloudpickle

from scanflow.backends.outputs import RESULT
from scanflow.errors import InvalidError
from scanflow.outputs import OUTPUTS_FOLDER

__all__ = ["as_argument", "decode", "encode", "read_outputs", "write_result"]

LONGEST_ARGUMENT = 120_000  # Linux takes 131,072 bytes in one argument
_PLAIN = (str, int, float, bool, type(None))


def write_result(value: Any, folder: Path) -> None:
    """Keep what a function returned as the output ``result`` of the task whose output folder this is."""
    outputs = folder / OUTPUTS_FOLDER
    outputs.mkdir(parents=True, exist_ok=True)
    unfinished = outputs / f".{RESULT}.part"
    unfinished.write_text(json.dumps(encode(value, folder)), encoding="utf-8")
    unfinished.replace(outputs / RESULT)


def read_outputs(folder: Path) -> dict[str, Any]:
    """Return the named outputs that a task left. Text that is not JSON (a shell's ``echo good``) is that text."""
    outputs = folder / OUTPUTS_FOLDER
    if not outputs.is_dir():
        return {}
    return {file.name: _read(file, folder) for file in sorted(outputs.iterdir()) if not file.name.startswith(".")}


def encode(value: Any, folder: Path) -> Any:
    """Return ``value`` as JSON can hold it; what it cannot is pickled into ``folder``."""
    if isinstance(value, _PLAIN):
        return value
    if _is_numpy_scalar(value):
        return value.item()
    if isinstance(value, PurePath):
        path = Path(value)
        return {"$path": str(path.relative_to(folder) if path.is_relative_to(folder) else path.absolute())}
    if isinstance(value, list | tuple):
        return [encode(inner, folder) for inner in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: encode(inner, folder) for key, inner in value.items()}
    return {"$pickle": _pickle(value, folder / OUTPUTS_FOLDER)}


def decode(value: Any, folder: Path) -> Any:
    """Return what :func:`encode` was given; ``folder`` is where that output lies now."""
    if isinstance(value, list):
        return [decode(inner, folder) for inner in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"$path"}:
        return folder / value["$path"]
    if set(value) == {"$pickle"}:
        # Written by this user's own earlier step, in this user's own home folder.
        return pickle.loads((folder / OUTPUTS_FOLDER / value["$pickle"]).read_bytes())  # noqa: S301
    return {key: decode(inner, folder) for key, inner in value.items()}


def as_argument(value: Any, *, who: str) -> str:
    """Return a parameter's value as one word of a command line: text as it is, anything else as JSON.

    Raises:
        InvalidError: it cannot be written as text, or is longer than a command line takes.
    """
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(value, default=_path_text)
        except TypeError as error:
            raise InvalidError(
                f"{who} is a {type(value).__name__}, which a script cannot be given. Give it a file."
            ) from error
    if len(text.encode()) > LONGEST_ARGUMENT:
        raise InvalidError(
            f"{who} is {len(text):,} characters long; a command line takes {LONGEST_ARGUMENT:,}. Give it a file's path."
        )
    return text


def _path_text(value: object) -> str:
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(type(value).__name__)


def _read(file: Path, folder: Path) -> Any:
    text = file.read_text(encoding="utf-8")
    try:
        return decode(json.loads(text), folder)
    except json.JSONDecodeError:
        return text.rstrip("\n")


def _pickle(value: Any, outputs: Path) -> str:
    outputs.mkdir(parents=True, exist_ok=True)
    count = sum(1 for _ in outputs.glob(".*.pickle"))
    name = f".{count}.pickle"
    try:
        (outputs / name).write_bytes(cloudpickle.dumps(value))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InvalidError(
            f"The result holds a {type(value).__name__}, which cannot be kept: {error}. "
            "Write a file and return its path."
        ) from error
    return name


def _is_numpy_scalar(value: Any) -> bool:
    """``numpy.float64(0.9)`` and its like: what a computed accuracy usually is, and what a condition compares."""
    return type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "shape", None) == ()
