"""The files that steps leave in their output folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scanflow.backends.run_records import StepFile
from scanflow.files.walk import iterate_files
from scanflow.names import StepName
from scanflow.outputs import OUTPUTS_FOLDER


def list_step_files(task: StepName, folder: Path) -> Iterator[StepFile]:
    """Yield the files below a task's output folder, by name, without its named outputs."""
    for path in iterate_files(folder, without=OUTPUTS_FOLDER):
        relative = path.relative_to(folder).as_posix()
        yield StepFile(task=task, name=relative, size_bytes=path.stat().st_size, path=str(path))
