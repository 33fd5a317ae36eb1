"""Digests of values, files and folders, equal only where a step would see the same."""

from __future__ import annotations

import hashlib
import json
import os
import pickletools
import re
import stat
import sys
import time
from collections.abc import Iterable
from pathlib import Path, PurePath
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import Any

import cloudpickle

from scanflow.backends.used_code import reduce_object

MISSING = "missing"
"""The digest of a path at which there is nothing."""

_BLOCK = 1 << 20
_RECENT_NS = 100_000_000
"""A file that was changed this shortly before it was read may change again without another time of change."""

_MAX_NAME = 1024
_NUMBERS = frozenset({int, float, bool, complex, NoneType})
_ATOMS = _NUMBERS | {str, bytes, bytearray}
_GLOBALS = (type, FunctionType, BuiltinFunctionType)
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_LETTER_OR_DIGIT = re.compile(r"\w")


class UnknownContentError(Exception):
    """A digest cannot be computed; the text says of what, and why."""

    def __init__(self, text: str, *, trustable: bool = False) -> None:
        """``trustable``: a version in ``cache`` vouches for it."""
        super().__init__(text)
        self.trustable = trustable


class FileDigests:
    """Digests of files and folders. A file is read once as long as it is unchanged. Not thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[Path, tuple[tuple[int, ...], str]] = {}

    def compute(self, path: Path) -> str:
        """Return a digest of a file's bytes, or of all names, links and files below a folder; ``MISSING``: no such.

        Raises:
            UnknownContentError: it cannot be read, or is neither a file nor a folder.
        """
        try:
            return self._compute(path, ())
        except OSError as error:
            raise UnknownContentError(f"{str(path)!r} cannot be read: {error.strerror}") from error

    def _compute(self, path: Path, above: tuple[tuple[int, int], ...]) -> str:
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: no path can be like that
            return MISSING
        if stat.S_ISREG(status.st_mode):
            return self._compute_file(path, status)
        if not stat.S_ISDIR(status.st_mode):
            raise UnknownContentError(f"{str(path)!r} is neither a file nor a folder")
        own = (status.st_dev, status.st_ino)
        if own in above:
            return "loop"
        with os.scandir(path) as scanned:
            entries = sorted((entry for entry in scanned if entry.name != "__pycache__"), key=lambda entry: entry.name)
        described = [
            (
                entry.name,
                str(Path(entry.path).readlink()) if entry.is_symlink() else None,
                self._compute(path / entry.name, (*above, own)),
            )
            for entry in entries
        ]
        return f"folder {hashlib.sha256(json.dumps(described).encode()).hexdigest()}"

    def _compute_file(self, path: Path, status: os.stat_result) -> str:
        signature = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        kept = self._kept.get(path)
        if kept is not None and kept[0] == signature:
            return kept[1]
        now, digest = time.time_ns(), hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        if now - max(status.st_mtime_ns, status.st_ctime_ns) > _RECENT_NS:
            self._kept[path] = (signature, digest.hexdigest())
        return digest.hexdigest()


class ValueDigests:
    """Digests of a step's values, type for type; paths count by name, and what lies there is collected.

    A text that names an existing file or folder is a path, as is a text within the run's outputs: a step may read it.
    """

    def __init__(self, files: FileDigests, *, app_dir: Path, outputs: Path, step: str) -> None:
        """``app_dir``: what relative paths are relative to. ``outputs``: the run's outputs, of which those of ``step``
        are still to be written."""
        self._files, self._app_dir, self._outputs, self._step = files, str(app_dir), outputs, step
        self._hash = hashlib.sha256()
        self._open: list[int] = []
        self._seen: dict[int, tuple[int, Any]] = {}
        """The lists and mappings so far, by identity, each with its number. Kept, so that no identity is given again. A
        step that changes one that it has twice sees it twice."""

        self.contents: dict[str, str] = {}
        """The digests of the files and folders that the values name."""

        self.read: dict[str, str] = {}
        """The digests of all paths that were looked at."""

        self.modules: set[str] = set()
        """The modules of the functions and classes among the values."""

    def compute(self, value: Any) -> str:
        """Return the digest of a value.

        Raises:
            UnknownContentError: there is none that would be the same for an equal value only.
        """
        before, self._hash = self._hash, hashlib.sha256()
        try:
            self._feed(value)
            return self._hash.hexdigest()
        except RecursionError:
            raise UnknownContentError("it is nested too deeply") from None
        finally:
            self._hash = before

    def _put(self, kind: str, payload: bytes = b"") -> None:
        self._hash.update(b"%s %d " % (kind.encode(), len(payload)))
        self._hash.update(payload)

    def _feed(self, value: Any) -> None:
        kind = type(value)
        if kind in _ATOMS:
            self._feed_atom(kind, value)
        elif isinstance(value, PurePath):
            self._put("path", os.fsencode(self._name_path(value, Path(value))))
        elif isinstance(value, _GLOBALS):
            self._feed_global(value)
        elif id(value) in self._open:
            self._put("cycle", str(self._open.index(id(value))).encode())
        elif id(value) in self._seen:
            self._put("again", str(self._seen[id(value)][0]).encode())
        else:
            if kind is list or kind is dict:
                self._seen[id(value)] = len(self._seen), value
            self._open.append(id(value))
            self._feed_parts(kind, value)
            self._open.pop()

    def _feed_atom(self, kind: type, value: Any) -> None:
        if kind is str:
            text = self._name_path(value, Path(value)) if self._is_path(value) else value
            self._put("str", text.encode(errors="surrogatepass"))
        elif kind is int:
            self._put("int", hex(value).encode())
        else:
            self._put(kind.__name__, value if kind is bytes else repr(value).encode())

    def _feed_parts(self, kind: type, value: Any) -> None:
        if kind is list or kind is tuple:
            self._put(kind.__name__, str(len(value)).encode())
            if len(value) > 1 and _NUMBERS.issuperset(map(type, value)):
                self._put("numbers", ",".join(map(_write_number, value)).encode())
            else:
                self._feed_all(value)
        elif kind is dict:
            self._feed_pairs(value.items())
        elif isinstance(value, set | frozenset):
            self._feed_global(kind)
            for digest in sorted(self.compute(item) for item in value):
                self._put("item", digest.encode())
            self._feed_all([getattr(value, "__dict__", {})])
        else:
            self._feed_object(value)

    def _feed_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self._feed(value)

    def _feed_pairs(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """In their order, which a step sees."""
        listed = list(pairs)
        self._put("pairs", str(len(listed)).encode())
        for pair in listed:
            self._feed_all(pair)

    def _feed_object(self, value: Any) -> None:
        """Describe an object by what pickle would write of it, where sets have no order of their own."""
        try:
            reduced = reduce_object(value)
        except Exception:  # noqa: BLE001  whatever a class raises: cloudpickle knows more kinds
            self._feed_pickle(value)
            return
        if isinstance(reduced, str):
            self.modules.add(type(value).__module__)
            self._put("global", f"{type(value).__module__}:{reduced}".encode())
            return
        parts: tuple[Any, ...] = (*reduced, None, None, None)
        make, arguments, state, items, pairs = parts[:5]
        if type(state) is dict and all(type(name) is str for name in state):
            state = dict(sorted(state.items()))
        self._put("object")
        self._feed_all([make, arguments, state, None if items is None else list(items)])
        self._feed_pairs([] if pairs is None else pairs)

    def _feed_global(self, value: Any) -> None:
        module, name = getattr(value, "__module__", None) or "builtins", value.__qualname__
        if module != "__main__" and _look_up(module, name) is value:
            self.modules.add(module)
            self._put("global", f"{module}:{name}".encode())
        else:
            self._feed_pickle(value)

    def _feed_pickle(self, value: Any) -> None:
        try:
            pickled = cloudpickle.dumps(value)
        except Exception as error:
            raise UnknownContentError(f"a {type(value).__name__} in it cannot be pickled") from error
        self.modules |= list_names(pickled)
        self._put("pickle", pickled)

    # Paths

    def _is_path(self, text: str) -> bool:
        if len(text) > _MAX_NAME or "\0" in text or not _LETTER_OR_DIGIT.search(text):
            return False  # "." and "/" are separators, before they are folders
        place = os.path.join(self._app_dir, text)  # noqa: PTH118  each text of a list comes here: twice as quick
        try:
            os.stat(place)  # noqa: PTH116
        except (OSError, ValueError):
            if not place.startswith(str(self._outputs)):
                self.read[place] = MISSING
                return False
        return True

    def _name_path(self, value: str | PurePath, path: Path) -> str:
        """Return the name of a path, the same in every run, and collect what lies there."""
        if path == self._outputs:
            raise UnknownContentError(
                "it is the folder of all outputs, which other steps write to. Name a step's folder"
            )
        inside = path.is_relative_to(self._outputs)
        name = f"$outputs/{path.relative_to(self._outputs)}" if inside else str(value)
        if inside and path.relative_to(self._outputs).parts[0] == self._step:
            return name
        place = str(Path(self._app_dir) / path)
        digest = self.read[place] = self._files.compute(Path(place))
        if digest != MISSING:
            self.contents[name.removeprefix("$outputs/")] = digest
        return name


def list_names(pickled: bytes) -> set[str]:
    """Return the texts in a pickle that can be names of modules."""
    return {text for _, text, _ in pickletools.genops(pickled) if isinstance(text, str) and _DOTTED.fullmatch(text)}


def _look_up(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _write_number(value: Any) -> str:
    return hex(value) if type(value) is int else repr(value)
