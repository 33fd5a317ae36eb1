"""The user's code that this process has loaded, which its files may not be any more."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from scanflow.modules import find_loaded_version, read_file_version
from scanflow.processes.proc_stat import compute_start_time

STARTUP_S = 0.05
"""A process loads no code of the user's in this time after its start, which is known to 10 ms."""


def find_stale_file(files: Iterable[str]) -> str | None:
    """Return a file that this process loaded in another version, or may have; None: there is none."""
    modules = {getattr(module, "__file__", None): module for module in list(sys.modules.values())}
    started = compute_start_time() + STARTUP_S
    for file in files:
        if (module := modules.get(file)) is None:
            continue
        now, loaded = read_file_version(Path(file)), find_loaded_version(module)
        if now != loaded if loaded is not None else max(now[2:]) / 1e9 > started:
            return file
    return None
