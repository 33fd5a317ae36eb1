"""The layout of the embedded backend's home folder. Paths only: nothing is created here."""

from __future__ import annotations

from pathlib import Path

from scanflow.backends.tasks import split_task
from scanflow.names import StepName, format_environment_name


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
        """Return whether a finished task's outputs are still there."""
        return self.get_outputs_folder(task).is_dir()

    def get_attempts_folder(self, task: StepName) -> Path:
        """Return the folder of a task's attempts, which are numbered from 1."""
        return self.path / "steps" / task

    def get_attempt_folder(self, task: StepName, number: int) -> Path:
        """Return the folder of an attempt: its spec, exit and logs."""
        return self.get_attempts_folder(task) / str(number)
