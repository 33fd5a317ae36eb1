"""List the code files of an application's folder, which go into an image or a ConfigMap."""

from __future__ import annotations

import fnmatch
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from scanflow.errors import InvalidError, NotFoundError

IGNORE_FILE: Final = ".scanflowignore"
MAX_FILES: Final = 20_000
_NOT_CODE: Final = ("__pycache__", "node_modules", "mlruns", "mlartifacts", "*.egg-info", "*.py[co]")


class CodeFile(NamedTuple):
    """One file of the code."""

    name: str
    """Its path below the folder, with ``/``."""

    path: Path
    size: int
    executable: bool


def list_code_files(folder: Path) -> tuple[CodeFile, ...]:
    """Return the code files of an application's folder, sorted by name.

    Excluded are hidden files and folders, byte code, virtual environments, MLflow's ``mlruns``, and what the lines of
    ``.scanflowignore`` in the folder match: ``data``, ``*.csv``, ``results/*.png``. Links are followed to files only.

    Raises:
        NotFoundError: there is no such folder.
        InvalidError: it has more than 20,000 such files.
    """
    if not folder.is_dir():
        raise NotFoundError(f"There is no folder {str(folder)!r}, which the application names as its app_dir.")
    patterns = (*_NOT_CODE, *_read_ignore_patterns(folder))
    files: list[CodeFile] = []
    for path in _walk(folder, patterns):
        try:
            stat = path.stat()
        except OSError:  # a link to nowhere, or gone since
            continue
        files.append(CodeFile(path.relative_to(folder).as_posix(), path, stat.st_size, bool(stat.st_mode & 0o100)))
        if len(files) > MAX_FILES:
            raise InvalidError(
                f"The application's folder {str(folder)!r} has more than {MAX_FILES:,} files. Move files that are "
                f"not code out of it, or list them in {IGNORE_FILE}: data"
            )
    return tuple(sorted(files))


def compute_digest(files: tuple[CodeFile, ...]) -> str:
    """Return the SHA-256 of the files' names, contents and executable bits, in hexadecimal."""
    digest = hashlib.sha256()
    for file in files:
        with file.path.open("rb") as content:
            content_digest = hashlib.file_digest(content, "sha256").hexdigest()
        digest.update(f"{file.name}\0{content_digest}\0{int(file.executable)}\n".encode())
    return digest.hexdigest()


def _read_ignore_patterns(folder: Path) -> list[str]:
    try:
        lines = (folder / IGNORE_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    words = (line.strip() for line in lines)
    return [word.strip("/") for word in words if word and not word.startswith("#")]


def _walk(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    for directory, folders, files in os.walk(folder):
        parent = Path(directory)
        folders[:] = [
            name
            for name in folders
            if _is_code(folder, parent / name, patterns) and not (parent / name / "pyvenv.cfg").exists()
        ]
        for name in files:
            if _is_code(folder, parent / name, patterns) and (parent / name).is_file():
                yield parent / name


def _is_code(folder: Path, path: Path, patterns: tuple[str, ...]) -> bool:
    name = PurePosixPath(path.relative_to(folder).as_posix())
    return not name.name.startswith(".") and not any(
        fnmatch.fnmatchcase(name.name, pattern) or fnmatch.fnmatchcase(str(name), pattern) for pattern in patterns
    )
