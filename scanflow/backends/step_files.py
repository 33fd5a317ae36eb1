"""The files that steps leave in their output folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from scanflow.backends.records import StepFile
from scanflow.names import StepName
from scanflow.outputs import OUTPUTS_FOLDER


def list_step_files(task: StepName, folder: Path) -> Iterator[StepFile]:
    """Yield the files below a task's output folder, by name, without its named outputs.

    Links are not followed, and are no files.
    """
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if parent != str(folder) or name != OUTPUTS_FOLDER)
        for name in sorted(names):
            path = Path(parent, name)
            if path.is_file() and not path.is_symlink():
                relative = path.relative_to(folder).as_posix()
                yield StepFile(task=task, name=relative, size_bytes=path.stat().st_size, path=str(path))
