"""TensorFlow's greeting, out of the way but not lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Send what is written to stderr meanwhile, by C++ code too, to a file."""
    stderr = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
            yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
