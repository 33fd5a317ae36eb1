"""Waiting for what another process does: bounded, and with the reason when it was in vain."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE_S = 60.0
_POLL = threading.Event()


def until(true: Callable[[], object], what: str, *, patience_s: float = PATIENCE_S) -> None:
    """Return when ``true()`` is; ``what`` is what was waited for."""
    give_up = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < give_up, f"Waited {patience_s:g} s in vain until {what}."
        _POLL.wait(0.05)
