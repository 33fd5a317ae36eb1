"""The limit of a process' open files. Standard library only: an instance calls it before it imports much."""

from __future__ import annotations

import resource

_FILES = 65536


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files to what this process may have: each connection is one."""
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _FILES if hard_limit == resource.RLIM_INFINITY else min(hard_limit, _FILES)
    if soft_limit != resource.RLIM_INFINITY and soft_limit < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard_limit))
