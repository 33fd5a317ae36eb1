"""Files that are saved to and fetched from the knowledge base: validated on save, atomic on fetch."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from scanflow.errors import InvalidError, NotFoundError, UnavailableError, did_you_mean

# A tracking server is sent a file's name as part of an address, unquoted: "#" and what follows would be lost on the
# way.
_FORBIDDEN = re.compile(r"[#%?\\\x00-\x1f\x7f]")


def check_source(source: Path) -> dict[str, Path]:
    """Return the files of a file or folder by their path inside the saved folder, ``/``-separated."""
    if not source.exists():
        beside = [path.name for path in source.parent.iterdir()] if source.parent.is_dir() else []
        raise NotFoundError(f"There is no file or folder {str(source)!r} to save.{did_you_mean(source.name, beside)}")
    try:
        files = {source.name: source} if source.is_file() else dict(_walk(source))
    except OSError as error:
        raise UnavailableError(f"{str(source)!r} could not be read: {error}.") from error
    if not files:
        raise InvalidError(f"{str(source)!r} holds no file, so there is nothing to save. Add a file first.")
    for name, path in files.items():
        _check_file(name, path)
    return files


@contextmanager
def stage_destination(destination: Path) -> Generator[Path, None, None]:
    """Yield an empty folder that becomes ``destination`` when the block succeeds, and is removed when it fails."""
    target = destination.absolute()
    if target.is_symlink() or (target.exists() and not (target.is_dir() and not any(target.iterdir()))):
        raise InvalidError(
            f"{str(destination)!r} already exists, and nothing is overwritten. Name a new folder, or empty this one."
        )
    staging = target.parent / f".{target.name[:100]}.{uuid.uuid4().hex}"
    try:
        staging.mkdir(parents=True)
    except OSError as error:
        raise UnavailableError(f"{str(destination)!r} could not be written: {error}.") from error
    try:
        yield staging
        try:
            staging.replace(target)  # over an empty folder this is still one step
        except OSError as error:
            raise UnavailableError(f"{str(destination)!r} could not be written: {error}.") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    for root, folders, names in os.walk(folder, onerror=_reraise):
        here = Path(root)
        for name in sorted(names):
            yield (here / name).relative_to(folder).as_posix(), here / name
        for name in folders:
            if (here / name).is_symlink():
                raise InvalidError(
                    f"{str(here / name)!r} is a link to a folder, which cannot be saved. Copy the folder's files "
                    "instead."
                )


def _reraise(error: OSError) -> None:
    raise error


def _check_file(name: str, path: Path) -> None:
    if not path.is_file():
        what = "a link to nothing" if path.is_symlink() else "not a regular file"
        raise InvalidError(f"{str(path)!r} is {what}, which cannot be saved. Remove it, or save a folder without it.")
    if _FORBIDDEN.search(name) or not _is_text(name):
        raise InvalidError(
            f"The file {name!r} cannot be saved: a tracking server cannot carry names with control characters or any "
            "of '#%?\\'. Rename it, or pack the folder into an archive first."
        )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
