"""Functions sent by value: stored in a home by their digests, until no run refers to them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from scanflow.backends.pickles import write_signed
from scanflow.errors import NotFoundError
from scanflow.files.private import create_private_folder

_NAME: Final = re.compile(r"\b[0-9a-f]{64}\.pickle\b")


def is_saved_function(module: str) -> bool:
    """Return whether the part before the ``:`` of a step's ``function`` names a stored function."""
    return _NAME.fullmatch(module) is not None


def save_function(folder: Path, pickled: bytes, key: bytes) -> str:
    """Store a pickled function without loading it, and return its name. Storing it again resets its age."""
    name = compute_name(pickled)
    create_private_folder(folder)
    write_signed(folder / name, pickled, key)
    return name


def compute_name(pickled: bytes) -> str:
    return f"{hashlib.sha256(pickled).hexdigest()}.pickle"


def build_lost_function_error(target: str) -> NotFoundError:
    return NotFoundError(
        f"The function {target.partition(':')[2]!r} was defined by a program or notebook, and is not in this home. "
        "Start the workflow from it again, or give the application: client.resume(run, app=app)"
    )


def list_function_names(texts: Iterable[str]) -> set[str]:
    """Return the names of stored functions in JSON definitions of runs and applications."""
    return {name for text in texts for name in _NAME.findall(text)}


def delete_unused_functions(folder: Path, before: float, needed: Collection[str], definitions: Iterator[str]) -> int:
    """Delete functions that were last stored before a time and that neither ``needed`` nor a definition names; return
    their number. ``definitions`` are read only if a function is that old."""
    old = [path for path in _list_files(folder) if path.name not in needed and path.stat().st_mtime < before]
    named = list_function_names(definitions) if old else set()
    expired = [path for path in old if path.name not in named and path.stat().st_mtime < before]  # or sent meanwhile
    for path in expired:
        path.unlink(missing_ok=True)
    return len(expired)


def _list_files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if is_saved_function(path.name)] if folder.is_dir() else []
