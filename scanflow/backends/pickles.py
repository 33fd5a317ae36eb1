"""Signed pickles: each begins with a signature by the home's own key, and only those are loaded.

Loading a pickle runs code. A step can write any file into its output folder, so only signed ones are loaded.
"""

from __future__ import annotations

import hmac
import io
import os
import pickle
import secrets
import threading
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from types import CodeType
from typing import Any, Final

import cloudpickle

from scanflow.errors import InvalidError, ScanflowError
from scanflow.files.private import replace_by_draft, write_private
from scanflow.modules import import_module
from scanflow.text.printable import make_one_line

_SIGNATURE_BYTES = 32
_PATH = type(Path())
_NO_FILE: Final = "<dynamic-code>"
_folder: ContextVar[Path | None] = ContextVar("scanflow_folder_of_a_pickle", default=None)


def read_home_key(home: Path) -> bytes:
    path = home / "pickle.key"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            write_private(draft, secrets.token_bytes(_SIGNATURE_BYTES))
            os.link(draft, path)
        except FileExistsError:  # another process was first
            pass
        finally:
            draft.unlink(missing_ok=True)
        return path.read_bytes()


def write_pickle(file: Path, value: Any, key: bytes, *, folder: Path | None = None) -> None:
    """Write a value, signed. ``folder``: paths in it are kept relative to it, wherever they are in the value.

    Raises:
        InvalidError: it cannot be pickled.
    """
    write_signed(file, dump_pickle(value, folder=folder), key)


def dump_pickle(value: Any, *, folder: Path | None = None) -> bytes:
    """Return a value pickled: see :func:`write_pickle`."""
    content = io.BytesIO()
    pickler = cloudpickle.Pickler(content) if folder is None else _Pickler(content, folder)
    try:
        pickler.dump(value)
    except Exception as error:  # a class of the user's may refuse in its own way
        raise InvalidError(
            f"A {type(value).__name__} cannot be pickled: {error}. Write a file and return its path."
        ) from error
    return content.getvalue()


def dump_function(function: Callable[..., Any]) -> bytes:
    """Return a function pickled by value, with the names of the files that its code was read from."""
    content = io.BytesIO()
    FunctionPickler(content).dump(function)
    return content.getvalue()


class FunctionPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Keeps the file name of code, which cloudpickle 3.1.3 replaces by a constant: tracebacks show it."""

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, CodeType):
            return super().reducer_override(obj)
        make, arguments, *_ = self.dispatch_table[CodeType](obj)
        return make, tuple(obj.co_filename if argument == _NO_FILE else argument for argument in arguments)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Keeps paths relative to a folder. A ``dispatch_table`` of an instance would have no effect."""

    def __init__(self, file: io.BytesIO, folder: Path) -> None:
        super().__init__(file)
        self._folder = folder

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is _PATH:
            return _reduce_path(obj, self._folder)
        if isinstance(obj, memoryview | io.TextIOWrapper):  # of which cloudpickle makes bytes, and a file's text
            raise TypeError(f"cannot pickle {type(obj).__name__!r} object")
        return super().reducer_override(obj)


def write_signed(file: Path, content: bytes, key: bytes) -> None:
    """Write pickled content, signed."""
    unfinished = file.with_suffix(f".{os.getpid()}.{threading.get_ident()}.part")
    with replace_by_draft(file, unfinished):
        write_private(unfinished, add_signature(content, key))


def add_signature(content: bytes, key: bytes) -> bytes:
    """Return pickled content with its signature prepended."""
    return hmac.digest(key, content, "sha256") + content


def check_signature(signed: bytes, key: bytes) -> bytes | None:
    """Return signed content without its signature, unloaded; None: it was not signed with this key."""
    signature, content = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
    return content if hmac.compare_digest(signature, hmac.digest(key, content, "sha256")) else None


def read_pickle(file: Path, key: bytes, *, folder: Path | None = None) -> Any:
    """Load the value that :func:`write_pickle` wrote; ``folder``: where the folder of its paths is now.

    Raises:
        InvalidError: it was not signed with this key, or is not there; or its class cannot be loaded.
    """
    return load_pickle(read_signed(file, key), folder=folder)


def load_pickle(content: bytes, *, folder: Path | None = None) -> Any:
    """Load a value that this home has pickled. Loading runs code: check its signature before.

    Raises:
        InvalidError: its class cannot be loaded.
    """
    token = _folder.set(folder)
    try:
        return _Unpickler(io.BytesIO(content)).load()
    except ScanflowError:
        raise
    except Exception as error:  # code of the user's own classes
        cause = make_one_line(f"{type(error).__name__}: {error}", 200)
        raise InvalidError(
            f"A value of a class of your own cannot be loaded here ({cause}). It needs the application's folder and "
            "the packages of its step as they were. Put that folder on the path (PYTHONPATH), and install them; run "
            "the step again after a change of the class; or return plain values."
        ) from error
    finally:
        _folder.reset(token)


class _Unpickler(pickle.Unpickler):
    """Finds the classes of an application's own files as its steps do."""

    def find_class(self, module: str, name: str) -> Any:
        import_module(module)
        return super().find_class(module, name)


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path is a folder's own, as it is written: links are not followed."""
    path = path.absolute()
    return path.is_relative_to(folder) and ".." not in path.relative_to(folder).parts


def _reduce_path(path: Path, folder: Path) -> tuple[Any, ...]:
    if is_inside(path, folder):
        return locate_path, (str(path.absolute().relative_to(folder)),)
    return Path, (str(path),)


def locate_path(relative: str) -> Path:
    """Return a path of the folder that a value is read from. Pickles name this function."""
    folder = _folder.get()
    return Path(relative) if folder is None else folder / relative


def read_signed(file: Path, key: bytes) -> bytes:
    """Return pickled content after checking its signature, without loading it.

    Raises:
        InvalidError: it was not signed with this key, or is not there.
    """
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
            content = check_signature(stream.read(), key)
    except OSError as error:
        raise InvalidError(f"{str(file)!r} cannot be read: {error.strerror}. Run the step again.") from error
    if content is None:
        raise InvalidError(
            f"{str(file)!r} is not loaded: loading a pickle runs code, and this file was not signed by a run of this "
            "home. Run the step again, or let it write a file of another format and return its path."
        )
    return content
