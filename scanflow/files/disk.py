"""Errors of files, folders and processes, with messages that say what to do about them."""

from __future__ import annotations

import errno
import sqlite3

from scanflow.errors import UnavailableError

_FULL = "its disk is full. Free space"
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


def build_disk_error(error: OSError | sqlite3.Error, path: object, *, then: str = "") -> UnavailableError:
    """Return the error that names a file or folder, the problem, and the command to continue with."""
    if isinstance(error, OSError):
        why = _WORDS.get(error.errno or 0) or f"{error.strerror or error}"
        if error.filename is not None and str(error.filename) != str(path):
            why = f"{str(error.filename)!r}: {why}"
    else:
        name = getattr(error, "sqlite_errorname", "") or ""
        why = next((words for code, words in _SQLITE.items() if name.startswith(code)), str(error))
    return UnavailableError(f"{str(path)!r} cannot be used: {why}{f', then: {then}' if then else '.'}")
