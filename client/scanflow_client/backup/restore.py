"""``scanflow restore``: makes a home of an archive, beside its place, and renames it when it is whole."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict

from scanflow.backends.journal import VERSION as JOURNAL_VERSION
from scanflow.errors import UnavailableError, UsageError
from scanflow.files.disk import build_disk_error
from scanflow.files.private import create_private_folder, open_private
from scanflow.processes.shared_files import try_lock
from scanflow_client.backup.backup_manifest import (
    Entry,
    Header,
    build_damage_error,
    check_archive,
    describe_member,
    visit_archive,
)


class RestoreResult(BaseModel):
    model_config = ConfigDict(frozen=True)

    file: str
    home: str
    scanflow: str
    """The version that saved it."""

    created: float
    """When it was saved, in seconds since the epoch."""


def restore_home(file: Path, home: Path) -> RestoreResult:
    """Make a home of an archive. Nothing is there before all of it is, and is what was saved.

    Raises:
        UsageError: the home is not empty, a newer version made the archive, or it is damaged.
        UnavailableError: the disk cannot be read or written.
    """
    file, home = file.expanduser().absolute(), home.expanduser().absolute()
    _check_empty(home)
    _check_version(file, check_archive(file))
    try:
        create_private_folder(home.parent)
        with _make_draft(home) as draft:
            header = visit_archive(file, lambda member, name, content: _extract(file, draft, member, name, content))
            _check_databases(file, draft)
            os.sync()
            _check_empty(home)
            draft.rename(home)  # over an empty folder, too
    except OSError as error:
        raise build_disk_error(error, home) from error
    return RestoreResult(file=str(file), home=str(home), scanflow=header.scanflow, created=header.created)


def _check_empty(home: Path) -> None:
    if home.is_symlink() or (home.exists() and (not home.is_dir() or any(home.iterdir()))):
        raise UsageError(
            f"{str(home)!r} is not empty, and a backup does not replace a home. Move it away, or name another: --to"
        )


def _check_version(file: Path, header: Header) -> None:
    if header.journal > JOURNAL_VERSION:
        raise UsageError(
            f"The backup {str(file)!r} was made by a newer Scanflow ({header.scanflow}): its journal has the version "
            f"{header.journal}, and this one reads up to {JOURNAL_VERSION}. Restore it with that version."
        )


@contextmanager
def _make_draft(home: Path) -> Iterator[Path]:
    """Make an empty folder beside a home, deleted at the end if it was not renamed; one at a time."""
    draft = home.with_name(f".{home.name}.restoring")
    with open_private(draft.with_name(f"{draft.name}.lock"), "a") as lock:
        if not try_lock(lock.fileno(), fcntl.LOCK_EX):
            raise UnavailableError(f"Another process restores {str(home)!r}. Wait for it.")
        try:
            shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
            draft.mkdir(0o700)
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)
            Path(lock.name).unlink(missing_ok=True)


def _extract(file: Path, draft: Path, member: tarfile.TarInfo, name: str, content: IO[bytes] | None) -> Entry:
    member = member.replace(name=name, deep=False)
    # Refuses absolute paths, `..`, devices, and links that lead outside (PEP 706).
    checked = tarfile.data_filter(member, str(draft))
    if checked.name != name:
        raise build_damage_error(file, f"{name!r} does not belong into it")
    path = draft / name
    create_private_folder(path.parent)
    if content is None:
        entry = describe_member(member, None)
        if entry.kind == "link":
            path.symlink_to(member.linkname)
        else:
            create_private_folder(path)
        return entry
    with open_private(path, "xb") as target:
        entry = describe_member(member, content, target.write)
    path.chmod(0o600 | (member.mode & 0o100))
    os.utime(path, (member.mtime, member.mtime))
    return entry


def _check_databases(file: Path, draft: Path) -> None:
    for path in [draft / "journal.db", *draft.glob("server/*.db"), draft / "tracker" / "mlflow.db"]:
        if not path.exists():
            continue
        try:
            with closing(sqlite3.connect(path)) as connection:
                problem = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.Error as error:
            raise build_damage_error(file, error) from error
        if problem != "ok":
            raise build_damage_error(file, f"{path.relative_to(draft)}: {problem}")
