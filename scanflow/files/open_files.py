"""The limit of a process' open files. Standard library only: an instance calls it before it imports much."""

from __future__ import annotations

import os
import resource
from typing import Final

RESERVED_FILES: Final = 128
"""How many files connections leave to the process itself (its database, logs, programs), or a quarter of its limit."""

_FILES = 65536


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files to what this process may have: each connection is one."""
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _FILES if hard_limit == resource.RLIM_INFINITY else min(hard_limit, _FILES)
    if soft_limit != resource.RLIM_INFINITY and soft_limit < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard_limit))


def is_only_reserve_left(fd: int) -> bool:
    """Return whether this process has so many open files that connections take no more of them.

    Args:
        fd: Any open file. Its copy gets the lowest free number, below which all are taken.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        number = os.dup(fd)
    except OSError:
        return True
    os.close(number)
    return limit != resource.RLIM_INFINITY and number >= limit - min(RESERVED_FILES, limit // 4)
