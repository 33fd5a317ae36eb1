"""``sf.output``: how a script names a value for later steps. It imports nothing of ours and nothing heavy."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePath
from typing import Any

__all__ = ["OUTPUTS_FOLDER", "output", "output_dir", "use_output_dir"]

OUTPUTS_FOLDER = ".outputs"
"""Inside a step's output folder: one JSON file for each named value."""


_folder: ContextVar[Path | None] = ContextVar("scanflow_output_dir", default=None)


def output_dir() -> Path:
    """Return this step's own output folder; outside a run, the current one."""
    return _folder.get() or Path(os.environ.get("SCANFLOW_OUTPUT_DIR", "."))


@contextmanager
def use_output_dir(folder: Path) -> Iterator[None]:
    """Make ``folder`` the output folder of what runs inside, in this thread or task only."""
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def output(name: str, value: Any) -> None:
    """Name a value for later steps, which see it as ``node["name"]``.

    The value is anything JSON can hold, or a path. A program in another language writes the same file:
    ``$SCANFLOW_OUTPUT_DIR/.outputs/<name>``.

    Raises:
        ValueError: the name cannot be a file's name, or the value is not JSON.
    """
    if not re.fullmatch(r"[^./\0][^/\0]{0,199}", name):
        raise ValueError(f"The output name {name!r:.60} cannot be used. Use letters, digits, '_' and '-'.")
    try:
        text = json.dumps(value, default=_other)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"The output {name!r} cannot be written as JSON ({error}). Write a file instead.") from error
    folder = output_dir() / OUTPUTS_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{name}.part"
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(folder / name)


def _other(value: Any) -> Any:
    """Write a path so that it is still right when a later run reuses this step's folder; a NumPy number as one."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    if not isinstance(value, PurePath):
        raise TypeError(f"{type(value).__name__} is not one of text, numbers, true/false, lists, mappings, paths")
    path, own = Path(value).absolute(), output_dir().absolute()
    return {"$path": str(path.relative_to(own) if path.is_relative_to(own) else path)}
