"""Addresses of Unix sockets, which the kernel limits to some hundred bytes, for paths of any length."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MAX_PATH_LENGTH = 100
"""Length in bytes of a path that fits a Unix address everywhere (108 on Linux, 104 on macOS, with the terminating
zero)."""


@contextmanager
def open_unix_address(path: Path) -> Iterator[str]:
    """Yield an address to ``bind`` or ``connect`` to for a socket's path, valid within the context.

    Raises:
        OSError: the path is long and its folder is missing.
    """
    if len(os.fsencode(path)) <= _MAX_PATH_LENGTH:
        yield str(path)
        return
    # A folder's descriptor names it in a few bytes: /proc/self/fd/9/control.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
