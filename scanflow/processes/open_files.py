"""How many files a process may have open. Standard library only: an instance calls it before it imports much."""

from __future__ import annotations

import resource

_FILES = 65536


def open_many() -> None:
    """Let this process have as many open files as it may: each connection is one, and a shell's default is few."""
    few, many = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if many == resource.RLIM_INFINITY else min(many, _FILES)
    if few != resource.RLIM_INFINITY and few < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, many))
