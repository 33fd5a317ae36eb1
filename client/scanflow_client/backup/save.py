"""``scanflow backup``: writes the archive of a home, while its processes run.

Databases are copied first, by SQLite's own means, and files afterwards: what a database says is finished lies there
whole, and what was not finished is done again after a restore.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import sqlite3
import tarfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG
from tempfile import TemporaryDirectory
from typing import IO

from pydantic import BaseModel, ConfigDict

import scanflow
from scanflow.errors import InvalidError, UnavailableError, UsageError
from scanflow.files.disk import build_disk_error
from scanflow.files.private import open_private
from scanflow.settings import Settings
from scanflow_client.backup.backup_manifest import (
    BLOCK_BYTES,
    FILES,
    FORMAT,
    HEADER,
    MANIFEST,
    Entry,
    Header,
    Manifest,
    check_archive,
    quote_name,
)

_DATABASES_FIRST = ("server/scanflow.db", "journal.db", "tracker/mlflow.db")
"""In this order: what the server asked for may be missing in the journal, but not the other way round."""

_LEFT_OUT_FOLDERS = {"venvs", "server/daemons", "tracker/prepared"}
"""Made again when they are needed."""

_LEFT_OUT_FILES = {"server/up.json", "server/up.lock", "server/lock"}
_PROCESS_FILES = {"alive", "claim", "exit.part", "started", "stop"}
"""In the folder of an attempt: they name processes of the home that was saved, which a restored one must not touch."""

_MAGIC = b"SQLite format 3\x00"
_SIDECARS = ("-wal", "-shm", "-journal")
_COPIED_BYTES = 64 * 2**20
"""A smaller file is read before it is written, so that it may change meanwhile."""


class BackupResult(BaseModel):
    model_config = ConfigDict(frozen=True)

    file: str
    home: str
    files: int
    size: int
    """Bytes of the archive."""


def save_home(settings: Settings, target: Path) -> BackupResult:
    """Write a home into a new archive, and check it.

    Raises:
        UsageError: there is no home, the archive exists, or a database of the home lies elsewhere.
        UnavailableError: the disk cannot be read or written, or a database is damaged.
    """
    home, target = settings.home.expanduser().absolute(), target.expanduser().absolute()
    _check_request(settings, home, target)
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            copies = _copy_databases(home, Path(folder))
            with open_private(draft, "wb") as file:
                count = _write_archive(home, copies, file)
                file.flush()
                os.fsync(file.fileno())
        check_archive(draft)
        os.link(draft, target)  # never in place of another
    except FileExistsError as error:
        raise _build_exists_error(target) from error
    except OSError as error:
        raise build_disk_error(error, target) from error
    finally:
        draft.unlink(missing_ok=True)
    return BackupResult(file=str(target), home=str(home), files=count, size=target.stat().st_size)


def _check_request(settings: Settings, home: Path, target: Path) -> None:
    if not (home / "journal.db").exists() and not (home / "server").is_dir():
        raise UsageError(f"There is nothing to save in {str(home)!r}. Name the home: SCANFLOW_HOME=...")
    if target.is_relative_to(home):
        raise UsageError(f"The backup {str(target)!r} would lie in the home that it saves. Name a file elsewhere.")
    if target.exists():
        raise _build_exists_error(target)
    elsewhere = {
        "SCANFLOW_DATABASE_URL": os.environ.get("SCANFLOW_DATABASE_URL"),
        "SCANFLOW_TRACKER_URI": settings.tracker_uri,
    }
    if names := [name for name, value in elsewhere.items() if value]:
        raise UsageError(
            f"A backup holds what is in the home, and {' and '.join(names)} names a database elsewhere. Save that one "
            f"with its own means, then the home: env {' '.join(f'-u {name}' for name in names)} scanflow backup FILE"
        )


def _build_exists_error(target: Path) -> InvalidError:
    return InvalidError(f"{str(target)!r} exists already. Name another file.")


def _copy_databases(home: Path, folder: Path) -> dict[str, Path]:
    """Copy all databases of a home, each in one moment of its own; return the copies by path."""
    names = [path.relative_to(home).as_posix() for path, _ in _walk(home) if _is_own_database(home, path)]
    order = {name: number for number, name in enumerate(_DATABASES_FIRST)}
    copies = {}
    for number, name in enumerate(sorted(names, key=lambda name: (order.get(name, len(order)), name))):
        copies[name] = folder / f"{number}.db"
        _copy_database(home / name, copies[name])
    return copies


def _copy_database(path: Path, copy: Path) -> None:
    try:
        with (
            closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=30.0)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")  # one file, whole
            problem = target.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        raise build_disk_error(error, path) from error
    if problem != "ok":
        raise UnavailableError(f"The database {str(path)!r} is damaged ({problem}), so it was not saved. Restore it.")


def _is_own_database(home: Path, path: Path) -> bool:
    """Return whether a file is a database of ours; what steps left is theirs, and is copied as it is."""
    below = path.relative_to(home).parts
    if path.suffix != ".db" or below[0] == "environments" or below[:2] == ("tracker", "artifacts"):
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def _walk(home: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield what is saved, each folder before what it holds."""
    pending = [home]
    while pending:
        folder = pending.pop()
        try:
            paths = sorted(folder.iterdir())
        except FileNotFoundError:  # deleted meanwhile
            continue
        is_attempt = any(path.name == "spec.json" for path in paths)
        for path in paths:
            name = path.relative_to(home).as_posix()
            if name in _LEFT_OUT_FILES or path.name.startswith(".gone-"):
                continue
            if is_attempt and path.name in _PROCESS_FILES:
                continue
            try:
                stat = path.lstat()
            except FileNotFoundError:
                continue
            if S_ISDIR(stat.st_mode):
                if name in _LEFT_OUT_FOLDERS:
                    continue
                pending.append(path)
            elif not (S_ISREG(stat.st_mode) or S_ISLNK(stat.st_mode)):
                continue  # a socket or a FIFO
            yield path, stat


def _write_archive(home: Path, copies: dict[str, Path], file: IO[bytes]) -> int:
    """Write all members of an archive, and return the number of files."""
    entries: dict[str, Entry] = {}
    with (
        gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        header = Header(
            format=FORMAT,
            scanflow=scanflow.__version__,
            journal=_read_version(copies.get("journal.db")),
            created=time.time(),
        )
        _add_document(archive, HEADER, header)
        for name, copy in copies.items():
            entries[quote_name(name)] = _add_file(archive, name, copy, 0o600)
        for path, stat in _walk(home):
            name = path.relative_to(home).as_posix()
            if name in copies or any(name == f"{copied}{ending}" for copied in copies for ending in _SIDECARS):
                continue
            if (entry := _add(archive, name, path, stat)) is not None:
                entries[quote_name(name)] = entry
        _add_document(archive, MANIFEST, Manifest(entries=entries))
    return sum(entry.kind == "file" for entry in entries.values())


def _read_version(journal: Path | None) -> int:
    if journal is None:
        return 0
    with closing(sqlite3.connect(journal)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _add(archive: tarfile.TarFile, name: str, path: Path, stat: os.stat_result) -> Entry | None:
    """Add what is at a path; None: it is gone."""
    member = tarfile.TarInfo(f"{FILES}/{name}")
    member.mode, member.mtime = stat.st_mode & 0o700, int(stat.st_mtime)
    if S_ISDIR(stat.st_mode):
        member.type = tarfile.DIRTYPE
        archive.addfile(member)
        return Entry(kind="folder")
    try:
        if S_ISLNK(stat.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)  # noqa: PTH115  as it is, unresolved
            archive.addfile(member)
            return Entry(kind="link", target=quote_name(member.linkname))
        return _add_file(archive, name, path, member.mode, mtime=stat.st_mtime)
    except FileNotFoundError:
        return None


def _add_file(archive: tarfile.TarFile, name: str, path: Path, mode: int, *, mtime: float = 0.0) -> Entry:
    member = tarfile.TarInfo(f"{FILES}/{name}")
    member.mode, member.mtime = mode, int(mtime)
    with path.open("rb") as file:
        member.size = os.fstat(file.fileno()).st_size
        content: IO[bytes] = file
        if member.size < _COPIED_BYTES:
            copied = file.read()
            content, member.size = io.BytesIO(copied), len(copied)
        hashed = _HashedReader(content)
        try:
            archive.addfile(member, hashed)
        except OSError as error:
            if error.errno is None:  # tarfile's own: there was less to read
                raise UnavailableError(f"{str(path)!r} became shorter while it was saved. Try again.") from error
            raise
    return Entry(kind="file", size=member.size, sha256=hashed.digest.hexdigest())


class _HashedReader:
    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, size: int = BLOCK_BYTES) -> bytes:
        block = self._file.read(size)
        self.digest.update(block)
        return block


def _add_document(archive: tarfile.TarFile, name: str, document: BaseModel) -> None:
    content = document.model_dump_json().encode()
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o600
    archive.addfile(member, io.BytesIO(content))
