from __future__ import annotations

import errno
import os
import sqlite3

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
        (errno.EXDEV, os.strerror(errno.EXDEV), ""),
    ],
)
def test_each_refusal_of_the_system_has_words_and_a_remedy_of_its_own(number: int, why: str, remedy: str) -> None:
    said = str(build_disk_error(OSError(number, os.strerror(number)), "/home/x", then="scanflow resume @latest"))
    assert said.startswith("'/home/x' cannot be used: ")
    assert why in said
    assert remedy in said
    assert said.endswith("then: scanflow resume @latest")


def test_the_file_that_the_system_names_is_named_too() -> None:
    said = str(build_disk_error(OSError(errno.ENOENT, "gone", "/inner"), "/home/x"))
    assert said.startswith("'/home/x' cannot be used: '/inner': the file or folder does not exist")


@pytest.mark.parametrize(("name", "why"), [("SQLITE_FULL", "disk is full"), ("SQLITE_IOERR_WRITE", "input/output")])
def test_sqlites_refusals_have_them_too(name: str, why: str) -> None:
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorname = name
    assert why in str(build_disk_error(error, "journal.db"))
    assert "as SQLite says it" in str(build_disk_error(sqlite3.OperationalError("as SQLite says it"), "journal.db"))
