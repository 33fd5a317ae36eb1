"""``sf.output``: how a script names a value for later steps. It imports nothing of ours and nothing heavy."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePath
from typing import Any

OUTPUTS_FOLDER = ".outputs"
"""A folder in a step's output folder: one JSON file for each named value."""

PATH, PICKLE, VALUE = "$path", "$pickle", "$value"
"""Keys that mark values without a JSON type; the last one escapes a user's own mapping that has one of these keys."""

_folder: ContextVar[Path | None] = ContextVar("scanflow_output_dir", default=None)


_collected: ContextVar[dict[str, Any] | None] = ContextVar("scanflow_outputs", default=None)


@contextmanager
def keep_outputs(outputs: dict[str, Any]) -> Iterator[None]:
    token = _collected.set(outputs)
    try:
        yield
    finally:
        _collected.reset(token)


def output_dir() -> Path:
    """Return this step's own output folder; outside a run, the current one."""
    return _folder.get() or Path(os.environ.get("SCANFLOW_OUTPUT_DIR", "."))


@contextmanager
def use_output_dir(folder: Path) -> Iterator[None]:
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def output(name: str, value: Any) -> None:
    """Name a value for later steps, which see it as ``node["name"]``: anything JSON can hold, or a path.

    A program in another language writes the same file: ``$SCANFLOW_OUTPUT_DIR/.outputs/<name>``.

    Raises:
        ValueError: the name cannot be a file's name, or the value is not JSON.
    """
    if not re.fullmatch(r"[^./\0][^/\0]{0,199}", name):
        raise ValueError(f"The output name {name!r:.60} cannot be used. Use letters, digits, '_' and '-'.")
    if (collected := _collected.get()) is not None:
        collected[name] = value
        return
    try:
        text = json.dumps(encode(value, output_dir().absolute(), _to_json, keys=(str, int, float, type(None))))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"The output {name!r} cannot be written as JSON ({error}). Return it from the step, or write a file."
        ) from error
    write_output(output_dir(), name, text)


def write_output(folder: Path, name: str, text: str) -> None:
    """Write a named value, already JSON, to an output folder: atomically, and for this user only."""
    outputs = folder / OUTPUTS_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    outputs.mkdir(0o700, exist_ok=True)
    unfinished = outputs / f".{name}.part"
    try:
        with open(unfinished, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(text)
        unfinished.replace(outputs / name)
    except OSError as error:  # the disk is full: what was written would take the room that everything else needs
        unfinished.unlink(missing_ok=True)
        error.filename = error.filename or str(outputs / name)
        raise


def encode(value: Any, folder: Path, other: Callable[[Any], Any], *, keys: tuple[type, ...] = (str,)) -> Any:
    """Return a value as JSON, so that ``values.decode`` restores it.

    A path becomes ``{"$path": ...}``, relative where it lies in ``folder``, which a later run may reuse. A mapping that
    looks like such a mark is put inside ``{"$value": ...}``. What JSON cannot hold is what ``other`` makes of it.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():  # what is computed usually is one
        return value.item()
    if isinstance(value, PurePath):
        path = Path(value).absolute()
        inside = path.is_relative_to(folder) and ".." not in path.relative_to(folder).parts
        return {PATH: str(path.relative_to(folder) if inside else path)}
    if isinstance(value, list | tuple):
        return [encode(inner, folder, other, keys=keys) for inner in value]
    if isinstance(value, Mapping) and all(isinstance(key, keys) for key in value):
        encoded = {key: encode(inner, folder, other, keys=keys) for key, inner in value.items()}
        return {VALUE: encoded} if is_mark(encoded) else encoded
    return other(value)


def is_mark(value: Mapping[Any, Any]) -> bool:
    return len(value) == 1 and not {PATH, PICKLE, VALUE}.isdisjoint(value)


def _to_json(value: Any) -> Any:
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    raise TypeError(f"{type(value).__name__} is not text, a number, a boolean, a list, a mapping or a path")
