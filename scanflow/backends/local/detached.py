"""Starting processes that outlive whoever starts them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["start_detached"]

_SHELL = '"$@" </dev/null >>"$0" 2>&1 & echo $!'
"""A shell that starts it in the background, tells its id and leaves: it is nobody's child, and nobody's terminal's."""

_PATIENCE_S = 30.0


def start_detached(command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None) -> int:
    """Start a command that writes to the end of ``log``; return its process id.

    Args:
        command: The program and its arguments.
        log: Where it writes; the folder is there.
        environment: All of its variables. None: this process'.
    """
    done = subprocess.run(
        ["/bin/sh", "-c", _SHELL, str(log), *command],
        env=environment,
        start_new_session=True,
        check=True,
        cwd="/",
        stdout=subprocess.PIPE,
        timeout=_PATIENCE_S,
    )
    return int(done.stdout)
