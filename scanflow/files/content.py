"""Reads whole files that people name."""

from __future__ import annotations

import errno
from pathlib import Path


def read_content(path: Path) -> bytes:
    """Return the content of a file or a pipe.

    Raises:
        OSError: it cannot be read, or is a device: some, such as ``/dev/zero``, never end.
    """
    if path.is_char_device() or path.is_block_device():
        raise OSError(errno.EINVAL, "it is a device", str(path))
    return path.read_bytes()
