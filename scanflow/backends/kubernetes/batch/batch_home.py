"""Paths of a home's journal, logs and outputs of a cluster's runs, which outlive their pods."""

from __future__ import annotations

from pathlib import Path

from scanflow.backends.tasks import split_task
from scanflow.files.private import write_private
from scanflow.names import StepName


class BatchHome:
    """The paths of all runs."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.path = home / "kubernetes"
        self.journal = self.path / "journal.db"
        self.functions = self.path / "functions"  # those that were sent by value, by their digests
        self.runs = self.path / "runs"

    def run(self, run: str) -> RunHome:
        return RunHome(self.runs / run)


class RunHome:
    """The paths of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = path / "lock"  # held by whoever drives the run
        self.record = path / "record"  # which version of its ConfigMap was read or written last
        self.driver = path / "driver"  # the token of the last drive that this home began
        self.code = path / "code.json"  # of a run that another home entered: the volume of its files
        self.code_folders = path / "code"  # those files, in a folder named by their content
        self.outputs = path / "outputs"
        self.driven = path / "driven"  # the number of the last Workflow that is known to have been made
        self.claim = path / "claim"  # the uid of the claim that its outputs are on
        self.namespace = path / "namespace"  # the one that it was entered in

    def locate_outputs(self, task: StepName) -> Path:
        step, index = split_task(task)
        return self.outputs / step if index is None else self.outputs / step / str(index)

    def locate_files(self, task: StepName) -> Path:
        """Return the list of the files that a task left."""
        return self.path / "files" / f"{task}.json"

    def locate_attempt(self, task: StepName, number: int) -> Path:
        """Return the folder of an attempt's logs."""
        return self.path / "steps" / task / str(number)

    def read_drive(self) -> int:
        """Return the number of the last Workflow or job that is known to have been made; 0: none was."""
        return int(self.driven.read_text(encoding="utf-8")) if self.driven.exists() else 0

    def record_drive(self, drive: int) -> None:
        """Record that the Workflow or job of a drive was made."""
        if drive > self.read_drive():
            write_private(self.driven, str(drive))
