"""What an archive says of itself: a header, its first member, and a list of its files with their digests, its last."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, ValidationError

from scanflow.errors import InvalidError, NotFoundError, UsageError
from scanflow.files.disk import build_disk_error

FORMAT = 1
"""The version of archives. A reader refuses higher ones."""

HEADER, MANIFEST, FILES = "scanflow-backup.json", "manifest.json", "home"
"""The names of the first and last members, and of the folder of all others."""

BLOCK_BYTES = 2**20
_MAX_DOCUMENT_BYTES = 2**30


class Header(BaseModel):
    model_config = ConfigDict(frozen=True)

    format: int
    scanflow: str
    """The version that wrote it."""

    journal: int
    """The version of the journal in it. 0: there is none."""

    created: float
    """Seconds since the epoch."""


class Entry(BaseModel):
    model_config = ConfigDict(frozen=True)

    kind: Literal["file", "folder", "link"]
    size: int = 0
    sha256: str = ""
    target: str = ""
    """Of a link; see :func:`quote_name`."""


class Manifest(BaseModel):
    model_config = ConfigDict(frozen=True)

    entries: Mapping[str, Entry]
    """By path below the home; see :func:`quote_name`."""


def quote_name(name: str) -> str:
    """Return a path as a list has it: names of files need not be text, and JSON is."""
    return quote(name, safe="/ ", errors="surrogateescape")


Visit = Callable[[tarfile.TarInfo, str, IO[bytes] | None], Entry]
"""Called with each member, its path below the home, and its content; returns what it is."""


def check_archive(path: Path) -> Header:
    """Read an archive whole and compare each file with its digest; return its header.

    Raises:
        UsageError: a newer version wrote it.
        InvalidError: it is damaged, or no backup.
    """
    return visit_archive(path, lambda member, _name, content: describe_member(member, content))


def visit_archive(path: Path, visit: Visit) -> Header:
    """Visit each member of an archive once, and compare what they are with its list. See :func:`check_archive`."""
    with _open_archive(path) as archive:
        members = iter(archive)
        header = _read_header(path, archive, next(members, None))
        entries: dict[str, Entry] = {}
        for member in members:
            if member.name == MANIFEST:
                _compare(path, entries, _read_document(archive, member))
                return header
            name = member.name.removeprefix(f"{FILES}/")
            if name == member.name or quote_name(name) in entries:
                raise build_damage_error(path, f"{member.name!r} does not belong into it")
            entries[quote_name(name)] = visit(member, name, archive.extractfile(member) if member.isreg() else None)
    raise build_damage_error(path, "its end is missing")


def describe_member(
    member: tarfile.TarInfo, content: IO[bytes] | None, write: Callable[[bytes], object] = lambda _block: None
) -> Entry:
    """Return what a member is; ``write`` gets the blocks of its content."""
    if content is None:
        if member.isdir():
            return Entry(kind="folder")
        if member.issym():
            return Entry(kind="link", target=quote_name(member.linkname))
        raise ValueError(f"{member.name!r} is no file, folder or link")
    digest, size = hashlib.sha256(), 0
    while block := content.read(BLOCK_BYTES):
        digest.update(block)
        size += len(block)
        write(block)
    return Entry(kind="file", size=size, sha256=digest.hexdigest())


def build_damage_error(path: Path, why: object) -> InvalidError:
    return InvalidError(f"The backup {str(path)!r} is damaged: {why}. Nothing was restored. Use another backup.")


@contextmanager
def _open_archive(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {str(path)!r}. Make a backup: scanflow backup FILE") from error
    except OSError as error:
        raise build_disk_error(error, path) from error
    with file:
        try:
            with gzip.GzipFile(fileobj=file) as packed:
                with tarfile.open(fileobj=packed, mode="r|") as archive:
                    yield archive
                while packed.read(BLOCK_BYTES):  # to its end, where its checksum is
                    pass
        except (tarfile.TarError, gzip.BadGzipFile, EOFError, ValueError, zlib.error) as error:
            if isinstance(error, UsageError):
                raise
            raise build_damage_error(path, str(error) or type(error).__name__) from error


def _read_header(path: Path, archive: tarfile.TarFile, member: tarfile.TarInfo | None) -> Header:
    if member is None or member.name != HEADER:
        raise InvalidError(f"{str(path)!r} is no backup of Scanflow's. Make one: scanflow backup FILE")
    document = json.loads(_read_document(archive, member))
    version = document.get("format") if isinstance(document, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise UsageError(
            f"The backup {str(path)!r} was made by a newer Scanflow ({document.get('scanflow')!s:.40}): its format is "
            f"{version}, and this one reads up to {FORMAT}. Restore it with that version."
        )
    return Header.model_validate(document)


def _read_document(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = archive.extractfile(member) if member.isreg() and member.size < _MAX_DOCUMENT_BYTES else None
    if content is None:
        raise ValueError(f"{member.name!r} cannot be read")
    return content.read()


def _compare(path: Path, entries: Mapping[str, Entry], document: bytes) -> None:
    try:
        listed = Manifest.model_validate_json(document).entries
    except ValidationError as error:
        raise build_damage_error(path, "its list of files cannot be read") from error
    for name in sorted(listed.keys() | entries.keys()):
        if listed.get(name) != entries.get(name):
            raise build_damage_error(path, f"{name!r} is not as it was saved")
