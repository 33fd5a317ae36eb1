"""Keeps TensorFlow's start-up output out of the logs, without losing it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Redirect stderr to a file during the block, output of C++ code included."""
    stderr = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
            yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
