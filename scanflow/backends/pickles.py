"""Signed pickles: each begins with a signature by the home's own key, and only those are loaded.

Loading a pickle runs code. A step can write any file into its output folder, so only signed ones are loaded.
"""

from __future__ import annotations

import hmac
import os
import pickle
import secrets
import threading
from pathlib import Path
from typing import Any

import cloudpickle

from scanflow.errors import InvalidError
from scanflow.files.private import write_private

_SIGNATURE_BYTES = 32


def read_home_key(home: Path) -> bytes:
    path = home / "pickle.key"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        write_private(draft, secrets.token_bytes(_SIGNATURE_BYTES))
        try:
            os.link(draft, path)
        except FileExistsError:  # another process was first
            pass
        finally:
            draft.unlink()
        return path.read_bytes()


def write_pickle(file: Path, value: Any, key: bytes) -> None:
    """Write a value, signed.

    Raises:
        InvalidError: it cannot be pickled.
    """
    try:
        content = cloudpickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InvalidError(
            f"A {type(value).__name__} cannot be pickled: {error}. Write a file and return its path."
        ) from error
    write_signed(file, content, key)


def write_signed(file: Path, content: bytes, key: bytes) -> None:
    """Write pickled content, signed."""
    unfinished = file.with_suffix(f".{os.getpid()}.{threading.get_ident()}.part")
    write_private(unfinished, add_signature(content, key))
    unfinished.replace(file)


def add_signature(content: bytes, key: bytes) -> bytes:
    """Return pickled content with its signature prepended."""
    return hmac.digest(key, content, "sha256") + content


def read_pickle(file: Path, key: bytes) -> Any:
    """Load the value that :func:`write_pickle` wrote.

    Raises:
        InvalidError: it was not signed with this key, or is not there.
    """
    return pickle.loads(read_signed(file, key))  # noqa: S301  signed with the key of this home


def read_signed(file: Path, key: bytes) -> bytes:
    """Return pickled content after checking its signature, without loading it.

    Raises:
        InvalidError: it was not signed with this key, or is not there.
    """
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
            signature, content = stream.read(_SIGNATURE_BYTES), stream.read()
    except OSError as error:
        raise InvalidError(f"{str(file)!r} cannot be read: {error.strerror}. Run the step again.") from error
    if not hmac.compare_digest(signature, hmac.digest(key, content, "sha256")):
        raise InvalidError(
            f"{str(file)!r} is not loaded: loading a pickle runs code, and this file was not signed by a run of this "
            "home. Run the step again, or let it write a file of another format and return its path."
        )
    return content
