from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from typing import NamedTuple

import pytest

from scanflow.files.disk import build_disk_error


@pytest.mark.parametrize(
    ("number", "why", "remedy"),
    [
        (errno.ENOSPC, "disk is full", "Free space"),
        (errno.EDQUOT, "quota", "Free space"),
        (errno.EACCES, "no permission", "Fix its permissions"),
        (errno.EROFS, "read-only", "SCANFLOW_HOME"),
        (errno.EMFILE, "too many files are open", "ulimit -n"),
        (errno.EIO, "input/output error", "Check the disk"),
        (errno.EAGAIN, "no more processes", "ulimit -u"),
        (errno.EISDIR, "a folder", "Name a file"),
        (errno.EXDEV, os.strerror(errno.EXDEV), ""),
    ],
)
def test_each_refusal_of_the_system_has_a_message_and_a_remedy_of_its_own(number: int, why: str, remedy: str) -> None:
    text = str(build_disk_error(OSError(number, os.strerror(number)), "/home/x", then="scanflow resume @latest"))
    assert text.startswith("'/home/x' cannot be used: ")
    assert why in text
    assert remedy in text
    assert text.endswith("then: scanflow resume @latest")


def test_the_file_that_the_system_names_is_named_too() -> None:
    text = str(build_disk_error(OSError(errno.ENOENT, "gone", "/inner"), "/home/x"))
    assert text.startswith("'/home/x' cannot be used: '/inner': the file or folder does not exist")


class Disk(NamedTuple):
    """What the system says of a file system."""

    f_bavail: int
    f_frsize: int = 4096
    f_favail: int = 1000
    f_files: int = 1000


FULL, OUT_OF_FILES, WITHOUT_INODES = Disk(15), Disk(1000, f_favail=0), Disk(1000, f_favail=0, f_files=0)


@pytest.mark.parametrize("disk", [FULL, OUT_OF_FILES])
@pytest.mark.parametrize("name", ["SQLITE_FULL", "SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_WRITE", "SQLITE_CANTOPEN"])
def test_a_full_disk_is_called_so_whatever_sqlite_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, disk: Disk
) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = name
    asked: list[Path] = []

    def look(path: Path) -> Disk:
        asked.append(path)
        return disk

    monkeypatch.setattr(os, "statvfs", look)
    text = str(build_disk_error(error, tmp_path / "not there" / "journal.db"))
    assert "its disk is full: no space left on /" in text
    assert text.endswith("Free space.")
    assert set(asked) == {tmp_path}, "the nearest folder that is there"


@pytest.mark.parametrize("disk", [Disk(16), WITHOUT_INODES])
def test_a_disk_with_space_is_not_called_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: Disk) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = "SQLITE_IOERR_WRITE"
    monkeypatch.setattr(os, "statvfs", lambda _path: disk)
    assert "input/output error" in str(build_disk_error(error, tmp_path))


def test_the_disk_that_is_full_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _path: FULL)
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path)
    error = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "a" / "b"))
    assert f"no space left on {tmp_path}. Free space" in str(build_disk_error(error, tmp_path))


@pytest.mark.parametrize(("name", "why"), [("SQLITE_FULL", "disk is full"), ("SQLITE_IOERR_WRITE", "input/output")])
def test_sqlites_refusals_have_them_too(name: str, why: str) -> None:
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorname = name
    assert why in str(build_disk_error(error, "journal.db"))
    assert "as SQLite says it" in str(build_disk_error(sqlite3.OperationalError("as SQLite says it"), "journal.db"))
