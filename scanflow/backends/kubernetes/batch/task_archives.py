"""Archives of what tasks left in their run's folder: one object each, so that it is there whole or not at all.

An archive is a tar file. Its first member is an index; then come the task's named outputs, so that whoever needs only
these reads no further; then all other files, with their modes, links and empty folders. It holds what the task left in
its own folder, and what it changed and deleted elsewhere in the run's folder, as on a volume that all pods mount.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import shutil
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, NamedTuple

from scanflow.backends.run_records import StepFile
from scanflow.backends.step_files import list_step_files
from scanflow.errors import InvalidError
from scanflow.names import StepName
from scanflow.outputs import OUTPUTS_FOLDER

_INDEX: Final = "index.json"
_CONTENT: Final = "files"
_BUFFER_BYTES: Final = 1024 * 1024

Snapshot = Mapping[str, tuple[int, ...]]
"""By path in a run's folder: what tells that an entry was changed."""


class ArchiveIndex(NamedTuple):
    """What an archive holds."""

    files: tuple[tuple[str, int], ...]
    """The files that the task left, as they are listed for people: names in its folder, and bytes."""

    outputs: int
    """How many members, the first ones, are its named outputs."""

    members: int
    """How many members follow."""

    deleted: tuple[str, ...] = ()
    """The paths in the run's folder that it deleted, of other tasks."""

    changes_others: bool = False
    """Whether it holds changes outside the task's own folder."""

    origin: str = ""
    """Of a cached task: the run that it ran in."""


def take_snapshot(base: Path, own: Path) -> Snapshot:
    """Return the entries of a run's folder, but for a task's own folder."""
    return {name: _identify(path) for name, path in _walk(base, skip=own)}


class Changes(NamedTuple):
    """What a task did in its run's folder, outside of its own."""

    changed: tuple[Path, ...] = ()
    deleted: tuple[str, ...] = ()


def compare_snapshot(base: Path, own: Path, before: Snapshot) -> Changes:
    """Return what differs from an earlier snapshot."""
    after = dict(_walk(base, skip=own))
    changed = tuple(path for name, path in after.items() if before.get(name) != _identify(path))
    return Changes(changed, tuple(name for name in before if name not in after))


def write_archive(
    stream: Any, base: Path, own: Path | None, changes: Changes | None = None, *, origin: str = ""
) -> None:
    """Write the archive of a task.

    Args:
        stream: Has ``write``.
        base: The run's folder.
        own: The task's folder; None: it is not packed.
        changes: What it did elsewhere.
        origin: Of a cached task: the run that it ran in.
    """
    outputs, rest, files = list[Path](), list[Path](), list[StepFile]()
    changed, deleted = changes or Changes()
    if own is not None and own.is_dir():
        outputs = [*own.glob(OUTPUTS_FOLDER)] + [path for _, path in _walk(own / OUTPUTS_FOLDER)]
        packed = set(outputs)
        rest = [own, *(path for _, path in _walk(own) if path not in packed)]
        files = list(list_step_files(StepName(own.name), own))
    entries = [*outputs, *rest, *changed]
    index = ArchiveIndex(
        files=tuple((file.name, file.size_bytes) for file in files),
        outputs=len(outputs),
        members=len(entries),
        deleted=deleted,
        changes_others=bool(changed or deleted),
        origin=origin,
    )
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_BUFFER_BYTES) as archive:
        head = tarfile.TarInfo(_INDEX)
        text = json.dumps(index._asdict()).encode()
        head.size = len(text)
        archive.addfile(head, io.BytesIO(text))
        for path in entries:
            archive.add(path, f"{_CONTENT}/{path.relative_to(base).as_posix()}", recursive=False)


def read_index(stream: IO[bytes]) -> ArchiveIndex:
    """Return the index of an archive.

    Raises:
        InvalidError: it is no archive of a task, or not whole.
    """
    with _open(stream) as archive:
        return _read_index(archive)


def unpack_archive(
    stream: IO[bytes], base: Path, *, outputs_only: bool = False, unless_others: bool = False
) -> ArchiveIndex:
    """Unpack an archive into a run's folder, and return its index.

    Args:
        stream: Has ``read``.
        base: The run's folder.
        outputs_only: Only the task's named outputs.
        unless_others: Nothing, where it holds changes of other tasks' files.

    Raises:
        InvalidError: it is no archive of a task, or not whole.
    """
    with _open(stream) as archive:
        index, folders = _read_index(archive), list[tuple[Path, tarfile.TarInfo]]()
        if unless_others and index.changes_others:
            return index
        for _ in range(index.outputs if outputs_only else index.members):
            if (member := archive.next()) is None:
                raise InvalidError("An archive of a task is incomplete.")
            name = PurePosixPath(member.name)
            names = [name, PurePosixPath(member.linkname)] if member.islnk() else [name]
            inside = all(each.parts[:1] == (_CONTENT,) and ".." not in each.parts for each in names)
            parent = (base / name.relative_to(_CONTENT)).parent if inside else base
            if not inside or member.isdev() != member.isfifo() or not parent.resolve().is_relative_to(base.resolve()):
                raise InvalidError(f"The archive has a member {member.name!r}, which no task writes.")
            member.mode &= 0o777
            member.name = name.relative_to(_CONTENT).as_posix()
            if member.islnk():
                member.linkname = PurePosixPath(member.linkname).relative_to(_CONTENT).as_posix()
            path = base / member.name
            if not member.isdir() and (path.is_symlink() or path.exists()):
                path.unlink() if path.is_symlink() or not path.is_dir() else shutil.rmtree(path)
            archive.extract(member, base, set_attrs=not member.isdir())
            if member.isdir():
                folders.append((path, member))
        if not outputs_only:
            for name_deleted in index.deleted:
                _delete(base, name_deleted)
        for path, member in reversed(folders):  # a folder's own mode may forbid to write into it
            path.chmod(member.mode)
            os.utime(path, (member.mtime, member.mtime))
        return index


def mentions(folder: Path, text: str) -> bool:
    """Return whether a file or link below a folder has a text in it."""
    needle = text.encode()
    for _, path in _walk(folder):
        if path.is_symlink():
            if text in str(path.readlink()):
                return True
        elif path.is_file() and path.stat().st_size:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content.find(needle) >= 0:
                    return True
    return False


def measure_size(folders: Iterable[Path]) -> int:
    """Return the bytes of all files below folders."""
    return sum(path.lstat().st_size for folder in folders for _, path in _walk(folder))


def _open(stream: IO[bytes]) -> tarfile.TarFile:
    try:
        return _Archive.open(fileobj=stream, mode="r|", bufsize=_BUFFER_BYTES)
    except tarfile.TarError as error:
        raise InvalidError(f"An archive of a task cannot be read: {error}.") from error


class _Archive(tarfile.TarFile):
    """A tar file whose damage is our error. Members are checked before they are unpacked: files, folders and links."""

    extraction_filter = staticmethod(lambda member, _: member)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        if isinstance(error, tarfile.TarError):
            raise InvalidError(f"An archive of a task cannot be read: {error}.") from error


def _read_index(archive: tarfile.TarFile) -> ArchiveIndex:
    member = archive.next()
    content = archive.extractfile(member) if member is not None and member.name == _INDEX else None
    if content is None:
        raise InvalidError("An archive of a task has no index.")
    fields: dict[str, Any] = json.loads(content.read())
    return ArchiveIndex(
        files=tuple((str(name), int(size)) for name, size in fields["files"]),
        outputs=int(fields["outputs"]),
        members=int(fields["members"]),
        deleted=tuple(map(str, fields["deleted"])),
        changes_others=bool(fields["changes_others"]),
        origin=str(fields["origin"]),
    )


def _walk(folder: Path, *, skip: Path | None = None) -> Iterator[tuple[str, Path]]:
    """Yield all entries below a folder, folders before what is in them; links are not followed."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if Path(parent, name) != skip)
        for name in sorted([*folders, *files]):
            path = Path(parent, name)
            if not stat.S_ISSOCK(path.lstat().st_mode):  # which no archive holds, and no other pod can use
                yield path.relative_to(folder).as_posix(), path


def _identify(path: Path) -> tuple[int, ...]:
    status = path.lstat()
    if stat.S_ISDIR(status.st_mode):
        return (status.st_mode,)  # its time changes with what is put into it
    return status.st_mode, status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _delete(base: Path, name: str) -> None:
    path = base / name
    if ".." in PurePosixPath(name).parts:
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(FileNotFoundError):
            path.unlink()
