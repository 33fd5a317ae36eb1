"""Waiting for what another process does: bounded, and with the reason when it was in vain.

A ceiling is generous, since nobody waits for it where all goes well, and is multiplied by ``TEST_PATIENCE``, which
`.ci/run` sets to what `python -m tests.waiting` prints: how much slower than a quiet machine this one starts processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

PATIENCE = max(1.0, float(os.environ.get("TEST_PATIENCE", "1")))
"""By how much the ceilings of all waits in tests are multiplied."""

_POLL = threading.Event()


def patient(seconds: float) -> float:
    """Return a ceiling in seconds for this machine, from one that is generous on a quiet one."""
    return seconds * PATIENCE


PATIENCE_S = patient(120)
"""The ceiling of a wait that names none, in seconds: several processes may have to start before what is waited for."""


def wait_until(true: Callable[[], object], what: str, *, patience_s: float = PATIENCE_S) -> None:
    """Return when ``true()`` is; ``what`` is what was waited for. ``patience_s`` is a ceiling: see ``patient``."""
    give_up = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < give_up, f"Waited {patience_s:g} s in vain until {what}."
        _POLL.wait(0.05)


QUIET_START_S = 0.01
"""How long it takes to start Python on a quiet machine, in seconds."""


def measure_patience() -> int:
    """Return how many times slower than a quiet machine this one starts processes: 2 to 10, as it may become busy."""
    attempts, begun = 10, time.monotonic()
    for _ in range(attempts):
        subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
    return round(min(max((time.monotonic() - begun) / attempts / QUIET_START_S, 2), 10))


if __name__ == "__main__":
    print(measure_patience())
