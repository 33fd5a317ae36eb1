"""Walk the files below a folder. Standard library only: pods import it at their start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def iterate_files(folder: Path, *, without: str) -> Iterator[Path]:
    """Yield the files below a folder by name, but for those in its own subfolder ``without``.

    Links are not followed, and are no files.
    """
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if parent != str(folder) or name != without)
        for name in sorted(names):
            path = Path(parent, name)
            if path.is_file() and not path.is_symlink():
                yield path
