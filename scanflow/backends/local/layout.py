"""Where the embedded backend keeps things below its home folder. Paths only: nothing is read or made here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scanflow.backends.tasks import split_task
from scanflow.names import StepName, environment_name


@dataclass(frozen=True, slots=True)
class Home:
    path: Path

    @property
    def journal(self) -> Path:
        return self.path / "journal.db"

    @property
    def environments(self) -> Path:
        return self.path / "venvs"

    def runs_of(self, app: str, team: str) -> Path:
        return self.path / "environments" / environment_name(app, team) / "runs"


@dataclass(frozen=True, slots=True)
class RunFolder:
    path: Path

    @property
    def lock(self) -> Path:
        """Held by whoever drives the run."""
        return self.path / "lock"

    @property
    def outputs(self) -> Path:
        """What steps left for later ones; scripts see it as the workflow's ``output_dir``."""
        return self.path / "outputs"

    @property
    def functions(self) -> Path:
        """Functions that no file defines (a notebook's), kept by value."""
        return self.path / "functions"

    def outputs_of(self, task: StepName) -> Path:
        step, index = split_task(task)
        return self.outputs / step if index is None else self.outputs / step / str(index)

    def attempts_of(self, task: StepName) -> Path:
        """Where a task's attempts are, in folders numbered from 1."""
        return self.path / "steps" / task

    def attempt(self, task: StepName, number: int) -> Path:
        """One attempt: what was run, how it ended, and its logs."""
        return self.attempts_of(task) / str(number)
