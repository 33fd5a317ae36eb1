"""Errors of files, folders and processes, with messages that say what to do about them."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from scanflow.errors import UnavailableError

_FULL = "its disk is full: no space left on {}. Free space"
_DENIED = "this user has no permission. Fix its permissions, or use a home of your own (SCANFLOW_HOME)"
_READ_ONLY = "its file system is mounted read-only. Use another home (SCANFLOW_HOME)"
_FILES = "too many files are open. Raise the limit (ulimit -n), or run fewer steps at once (SCANFLOW_SLOTS)"
_IO_ERROR = "its disk reports an input/output error. Check the disk"
_BUSY = "another process has locked it. Wait for that process"
_WORDS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: "the disk quota of this user is used up. Free space",
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: _READ_ONLY,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
    errno.EIO: _IO_ERROR,
    errno.EAGAIN: "no more processes can be started. Raise the limit (ulimit -u), or run fewer steps at once",
    errno.ENOMEM: "there is no memory left. Run fewer steps at once (SCANFLOW_SLOTS)",
    errno.ENOENT: "the file or folder does not exist and cannot be created. Use another home (SCANFLOW_HOME)",
    errno.EEXIST: "a part of its path is a file. Use another home (SCANFLOW_HOME)",
    errno.ENOTDIR: "a part of its path is a file. Use another home (SCANFLOW_HOME)",
    errno.EISDIR: "it is a folder, not a file. Name a file",
    errno.ENAMETOOLONG: "its path is too long. Use a home with a shorter path (SCANFLOW_HOME)",
}
_SQLITE = {
    "SQLITE_FULL": _FULL,
    "SQLITE_READONLY": "it is not writable: check its permissions, and whether its disk is mounted read-only",
    "SQLITE_CANTOPEN": "it cannot be opened: check its permissions, and that its folder exists",
    "SQLITE_PERM": _DENIED,
    "SQLITE_IOERR": _IO_ERROR,
    "SQLITE_BUSY": _BUSY,
    "SQLITE_LOCKED": _BUSY,
    "SQLITE_CORRUPT": "it is damaged. Move it away; a new one is then created",
    "SQLITE_NOTADB": "it is not a database. Move it away; a new one is then created",
}


_FULL_BYTES = 65_536
"""With less than that, SQLite cannot open a database: the index of its write-ahead log takes 32 KiB."""


def find_full_disk(path: object) -> str | None:
    """Return where the disk of a path is mounted, if it is full: of space, or of files. None: it is not, or unknown."""
    place = Path(str(path)).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        disk = os.statvfs(place)
    except OSError:
        return None
    if disk.f_bavail * disk.f_frsize >= _FULL_BYTES and (disk.f_favail or not disk.f_files):
        return None
    return _get_mount(place)


def _get_mount(place: Path) -> str:
    return str(next((folder for folder in (place, *place.parents) if folder.is_mount()), place))


def explain_sqlite_error(error: sqlite3.Error, path: object) -> str:
    """Return what is wrong with a database and what to do. SQLite calls a full disk an input/output error, too."""
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN")) and (full := find_full_disk(path)) is not None:
        return _FULL.format(full)
    words = next((words for code, words in _SQLITE.items() if name.startswith(code)), str(error))
    return words.format(find_full_disk(path) or "it") if words is _FULL else words


def build_disk_error(error: OSError | sqlite3.Error, path: object, *, then: str = "") -> UnavailableError:
    """Return the error that names a file or folder, the problem, and the command to continue with."""
    if isinstance(error, OSError):
        named = path if error.filename is None else error.filename
        words = _WORDS.get(error.errno or 0) or f"{error.strerror or error}"
        why = words.format(find_full_disk(named) or "it") if words is _FULL else words
        if error.filename is not None and str(error.filename) != str(path):
            why = f"{str(error.filename)!r}: {why}"
    else:
        why = explain_sqlite_error(error, path)
    return UnavailableError(f"{str(path)!r} cannot be used: {why}{f', then: {then}' if then else '.'}")
