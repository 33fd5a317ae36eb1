"""Which files of an application's folder are its code: those that go into an image, or into a ConfigMap."""

from __future__ import annotations

import fnmatch
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from scanflow.errors import InvalidError, NotFoundError

IGNORE_FILE: Final = ".scanflowignore"
MOST_FILES: Final = 20_000
_NOT_CODE: Final = ("__pycache__", "node_modules", "mlruns", "mlartifacts", "*.egg-info", "*.py[co]")


class CodeFile(NamedTuple):
    """One file of the code."""

    name: str
    """Its path below the folder, with ``/``."""

    path: Path
    size: int
    executable: bool


def code_files(folder: Path) -> tuple[CodeFile, ...]:
    """Return the files of an application's folder that its steps and services may need, by name.

    Left out are hidden files and folders, byte code, virtual environments, MLflow's ``mlruns``, and what the lines of
    ``.scanflowignore`` in the folder match: ``data``, ``*.csv``, ``results/*.png``. Links are followed to files only.

    Raises:
        NotFoundError: there is no such folder.
        InvalidError: it has more than 20,000 such files.
    """
    if not folder.is_dir():
        raise NotFoundError(f"There is no folder {str(folder)!r}, which the application names as its app_dir.")
    patterns = (*_NOT_CODE, *_ignored(folder))
    found: list[CodeFile] = []
    for path in _walk(folder, patterns):
        try:
            stat = path.stat()
        except OSError:  # a link to nowhere, or gone since
            continue
        found.append(CodeFile(path.relative_to(folder).as_posix(), path, stat.st_size, bool(stat.st_mode & 0o100)))
        if len(found) > MOST_FILES:
            raise InvalidError(
                f"The application's folder {str(folder)!r} has more than {MOST_FILES:,} files. Move what is no code "
                f"out of it, or name it in {IGNORE_FILE}: data"
            )
    return tuple(sorted(found))


def digest_of(files: tuple[CodeFile, ...]) -> str:
    """Return what changes with the files' names, contents and permissions to run: 64 hexadecimal digits."""
    whole = hashlib.sha256()
    for file in files:
        with file.path.open("rb") as opened:
            content = hashlib.file_digest(opened, "sha256").hexdigest()
        whole.update(f"{file.name}\0{content}\0{int(file.executable)}\n".encode())
    return whole.hexdigest()


def _ignored(folder: Path) -> list[str]:
    try:
        lines = (folder / IGNORE_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    words = (line.strip() for line in lines)
    return [word.strip("/") for word in words if word and not word.startswith("#")]


def _walk(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        here = Path(place)
        folders[:] = [
            name
            for name in folders
            if _is_kept(folder, here / name, patterns) and not (here / name / "pyvenv.cfg").exists()
        ]
        for name in files:
            if _is_kept(folder, here / name, patterns) and (here / name).is_file():
                yield here / name


def _is_kept(folder: Path, path: Path, patterns: tuple[str, ...]) -> bool:
    name = PurePosixPath(path.relative_to(folder).as_posix())
    return not name.name.startswith(".") and not any(
        fnmatch.fnmatchcase(name.name, pattern) or fnmatch.fnmatchcase(str(name), pattern) for pattern in patterns
    )
