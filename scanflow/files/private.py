"""Files and folders that only this user may read: 0600 and 0700, whatever the umask. Standard library only."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from scanflow.errors import UsageError

_OTHER_USERS = stat.S_IRWXG | stat.S_IRWXO
_SHARED_BY_DESIGN = {"venvs"}  # packages, no data; tens of thousands of files


def create_private_folder(path: Path) -> Path:
    """Create a folder and its missing parents for this user only. An existing folder is unchanged."""
    if not path.is_dir():
        create_private_folder(path.parent)
        try:
            path.mkdir(0o700)
        except FileExistsError:
            if not path.is_dir():
                raise
    return path


def open_private(path: Path, mode: str = "r", **options: Any) -> IO[Any]:
    """Open a file as :func:`open` does; a file that this creates is for this user only."""
    return open(path, mode, opener=_open_private, **options)


def write_private(path: Path, content: str | bytes) -> None:
    with open_private(path, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replace_by_draft(path: Path, draft: Path) -> Iterator[None]:
    """Replace a file by the draft that is written inside the context.

    If that fails, as on a full disk, nothing is left of the draft, and an error of the system names the file.
    """
    try:
        yield
        draft.replace(path)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)
        raise


def create_private_file(path: Path) -> Path:
    """Create an empty file for this user only if it is missing; SQLite's files beside it get its mode."""
    try:
        # Never one that is there: closing it would drop the locks that SQLite holds on it in this process.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass
    return path


def open_home(path: Path) -> Path:
    """Create a home folder, or revoke other users' access to an existing one and its content; return it."""
    mode = create_private_folder(path).stat().st_mode
    if mode & _OTHER_USERS:
        try:
            path.chmod(stat.S_IMODE(mode) & ~_OTHER_USERS)
        except PermissionError as error:
            raise UsageError(
                f"The home {str(path)!r} belongs to another user, who could read and change what runs. Use a folder "
                "of your own: SCANFLOW_HOME=…"
            ) from error
        for entry in _walk(path):
            _tighten(entry)
    return path


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _walk(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False) and entry.name not in _SHARED_BY_DESIGN:
                yield from _walk(Path(entry.path))


def _tighten(entry: os.DirEntry[str]) -> None:
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
        if mode & _OTHER_USERS and not stat.S_ISLNK(mode):
            Path(entry.path).chmod(stat.S_IMODE(mode) & ~_OTHER_USERS)
    except OSError:
        pass  # it went away, or is another user's; the folder above keeps others out in any case
