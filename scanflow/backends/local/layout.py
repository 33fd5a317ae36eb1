"""The layout of the embedded backend's home folder, and what a run's folder still holds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from scanflow.backends.tasks import split_task
from scanflow.files.private import create_private_folder
from scanflow.names import StepName, format_environment_name
from scanflow.processes.shared_files import write_atomically

MAX_LISTED = 10_000
"""The files that a task left of which it is noticed that they are gone."""


class Home:
    """The home folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = path / "journal.db"  # runs and tasks
        self.functions = path / "functions"  # functions sent by value, by their digests
        self.environments = path / "venvs"  # cached Python environments of steps with requirements

    def runs_folder(self, app: str, team: str) -> Path:
        return self.path / "environments" / format_environment_name(app, team) / "runs"


class RunFolder:
    """One run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = path / "lock"  # held by the run's driver
        self.outputs = path / "outputs"  # outputs of steps; scripts see it as output_dir

    def get_outputs_folder(self, task: StepName) -> Path:
        step, index = split_task(task)
        return self.outputs / step if index is None else self.outputs / step / str(index)

    def has_outputs(self, task: StepName) -> bool:
        """Return whether a finished task's outputs are still there: the folder, and each file that it left in it."""
        folder = self.get_outputs_folder(task)
        try:
            names = json.loads(self._get_outputs_list(task).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # of an earlier version, or a spin's input
            names = []
        return folder.is_dir() and all(os.path.lexists(folder / str(name)) for name in names)

    def has_outputs_list(self, task: StepName) -> bool:
        """Return whether it was recorded what a task left, and so that it had finished."""
        return self._get_outputs_list(task).is_file()

    def record_outputs_list(self, task: StepName) -> None:
        """Record which files a finished task left, which :meth:`has_outputs` looks for; at most ``MAX_LISTED``."""
        names = list(islice(_walk_files(str(self.get_outputs_folder(task)), ""), MAX_LISTED))
        path = self._get_outputs_list(task)
        create_private_folder(path.parent)
        write_atomically(path, json.dumps(names).encode())

    def _get_outputs_list(self, task: StepName) -> Path:
        return self.get_attempts_folder(task) / "outputs.json"

    def get_attempts_folder(self, task: StepName) -> Path:
        """Return the folder of a task's attempts, which are numbered from 1."""
        return self.path / "steps" / task

    def get_attempt_folder(self, task: StepName, number: int) -> Path:
        """Return the folder of an attempt: its spec, exit and logs."""
        return self.get_attempts_folder(task) / str(number)


def _walk_files(folder: str, below: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk_files(entry.path, f"{below}{entry.name}/")
            else:
                yield f"{below}{entry.name}"
