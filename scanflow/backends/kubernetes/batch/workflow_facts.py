"""Read a run's Workflows on the cluster into this home's journal."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scanflow.backends.journal import Journal, JournalRun
from scanflow.backends.kubernetes.api_times import parse_epoch_s
from scanflow.backends.kubernetes.batch.batch_home import RunHome
from scanflow.backends.kubernetes.batch.file_lists import write_files
from scanflow.backends.kubernetes.batch.pod_layout import DRIVE, format_workflow_name
from scanflow.backends.kubernetes.batch.workflow_records import ObservedWorkflow, observe_workflow
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.object_labels import build_selector
from scanflow.backends.run_records import RunRecord, RunState, TaskRecord
from scanflow.files.private import create_private_folder, write_private
from scanflow.names import StepName
from scanflow.outputs import OUTPUTS_FOLDER


@dataclass(frozen=True, slots=True)
class LiveWorkflow:
    """The last Workflow of a run."""

    manifest: Manifest
    observed: ObservedWorkflow

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def drive(self) -> int:
        return read_drive(self.manifest)


def read_drive(manifest: Manifest) -> int:
    """Return the number of the drive that created a Workflow or job."""
    return int((manifest["metadata"].get("annotations") or {}).get(DRIVE, 1))


def list_workflows(cluster: Cluster, namespace: str, run: str) -> list[Manifest]:
    """Return the Workflows of a run, in order of drives."""
    workflows, _ = cluster.find("Workflow", namespace, labels=build_selector(run=run))
    return sorted(workflows, key=read_drive)


class Facts:
    """Records a run's Workflows in the journal."""

    def __init__(self, journal: Journal, run: JournalRun, home: RunHome) -> None:
        self._journal, self._run, self._home = journal, run, home

    def refresh(self, cluster: Cluster, namespace: str) -> LiveWorkflow | None:
        """Record a run's Workflows, and return the last one; None: there is none."""
        manifests = list_workflows(cluster, namespace, self._run.record.name)
        if not manifests:
            return None
        observations = [observe_workflow(manifest) for manifest in manifests]
        self.note({name: task for observed in observations for name, task in observed.tasks.items()})
        for observed in observations:
            self.keep_outputs(observed)
        last = LiveWorkflow(manifests[-1], observations[-1])
        self._home.record_drive(last.drive)
        return last

    def note(self, tasks: Mapping[StepName, TaskRecord]) -> None:
        """Record the tasks that changed."""
        recorded = self._journal.read_tasks(self._run)
        begun_steps = {task.step for task in [*recorded.values(), *tasks.values()] if task.state != "empty"}
        for name, task in recorded.items():
            if task.state == "empty" and task.step in begun_steps:
                self._journal.delete_task(self._run, name)  # its list has items now
        for name, task in tasks.items():
            if task.state == "empty" and task.step in begun_steps:
                continue  # its tasks ended in an earlier drive
            if recorded.get(name) != task and not (task.state == "pending" and name not in recorded):
                self._journal.set_task(self._run, task)

    def keep_outputs(self, observed: ObservedWorkflow) -> None:
        """Write the outputs in a Workflow to their folders."""
        for task, outputs in observed.outputs.items():
            write_outputs(self._home, task, outputs)
        for task, files in observed.files.items():
            write_files(self._home, task, files)

    def end(self, state: RunState, *, seconds: float | None, error: str | None) -> RunRecord:
        """Record the end of the run."""
        self._journal.set_run(self._run, state, seconds=seconds, error=error)
        return self._journal.run(self._run.record.name).record

    def record_deletion(self, namespace: str, *, seconds: float | None) -> RunRecord:
        """Record that a run's last Workflow was deleted by others; ``seconds``: how long the run has taken."""
        running = [task for task in self._journal.read_tasks(self._run).values() if task.state == "running"]
        for task in running:
            self._journal.set_task(self._run, task.model_copy(update={"state": "stopped"}))
        return self.end("stopped", seconds=seconds, error=self._format_deletion(namespace))

    def _format_deletion(self, namespace: str) -> str:
        run = self._run.record.name
        name = format_workflow_name(run, self._home.read_drive())
        return (
            f"The Workflow {name!r} of the namespace {namespace!r} was deleted by another client, and unfinished steps "
            f"were stopped. Continue the run: scanflow resume {run}"
        )


def write_outputs(home: RunHome, task: StepName, outputs: Mapping[str, str]) -> None:
    """Write a task's named outputs, JSON texts, to its output folder."""
    folder = home.locate_outputs(task) / OUTPUTS_FOLDER
    texts = dict(outputs)
    if folder.is_dir() and {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()} == texts:
        return
    shutil.rmtree(folder, ignore_errors=True)
    create_private_folder(folder)
    for name, text in texts.items():
        write_private(folder / name, text)


def forget_outputs(home: RunHome, tasks: Iterable[StepName]) -> None:
    """Delete the outputs of tasks that run again."""
    for task in tasks:
        home.locate_files(task).unlink(missing_ok=True)
        shutil.rmtree(home.locate_outputs(task) / OUTPUTS_FOLDER, ignore_errors=True)


def compute_duration(began: str | None, ended: str | None) -> float:
    """Return the seconds between two times of a Workflow's status; 0 where one is missing."""
    if not began or not ended:
        return 0.0
    return parse_epoch_s(ended) - parse_epoch_s(began)
