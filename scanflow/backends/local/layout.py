"""Where the embedded backend keeps things below its home folder. Paths only: nothing is read or made here."""

from __future__ import annotations

from pathlib import Path

from scanflow.backends.tasks import split_task
from scanflow.names import StepName, environment_name


class Home:
    """The home folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = path / "journal.db"  # which runs there are
        self.functions = path / "functions"  # those that were sent by value, by their digests
        self.environments = path / "venvs"  # cached Python environments of steps with requirements

    def runs_of(self, app: str, team: str) -> Path:
        return self.path / "environments" / environment_name(app, team) / "runs"


class RunFolder:
    """One run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = path / "lock"  # held by whoever drives the run
        self.outputs = path / "outputs"  # what steps left for later ones; scripts see it as output_dir
        self.functions = path / "functions"  # functions that no file defines (a notebook's), kept by value

    def outputs_of(self, task: StepName) -> Path:
        step, index = split_task(task)
        return self.outputs / step if index is None else self.outputs / step / str(index)

    def attempts_of(self, task: StepName) -> Path:
        """Where a task's attempts are, in folders numbered from 1."""
        return self.path / "steps" / task

    def attempt(self, task: StepName, number: int) -> Path:
        """One attempt: what was run, how it ended, and its logs."""
        return self.attempts_of(task) / str(number)
