"""What is known of a run: its Workflows on the cluster, read into this home's journal."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from scanflow.backends.journal import Journal, JournalRun
from scanflow.backends.kubernetes.batch.home import RunHome
from scanflow.backends.kubernetes.batch.layout import DRIVE
from scanflow.backends.kubernetes.batch.records import WorkflowSeen, observe_workflow
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import selector
from scanflow.backends.kubernetes.times import epoch_s
from scanflow.backends.records import RunRecord, RunState, TaskRecord
from scanflow.names import StepName
from scanflow.outputs import OUTPUTS_FOLDER
from scanflow.private import private_folder, write_private

ENDED: Final = frozenset({"succeeded", "failed", "stopped"})


@dataclass(frozen=True, slots=True)
class Live:
    """The last Workflow of a run."""

    manifest: Manifest
    observed: WorkflowSeen

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def drive(self) -> int:
        return drive_of(self.manifest)


def drive_of(manifest: Manifest) -> int:
    """Return the how-manieth Workflow of its run it is."""
    return int((manifest["metadata"].get("annotations") or {}).get(DRIVE, 1))


def workflows_of(cluster: Cluster, namespace: str, run: str) -> list[Manifest]:
    """Return the Workflows of a run, the first drive's first."""
    found, _ = cluster.find("Workflow", namespace, labels=selector(run=run))
    return sorted(found, key=drive_of)


class Facts:
    """Reads what Argo tells of a run into the journal."""

    def __init__(self, journal: Journal, run: JournalRun, home: RunHome) -> None:
        self._journal, self._run, self._home = journal, run, home

    def refresh(self, cluster: Cluster, namespace: str) -> Live | None:
        """Read a run's Workflows; return the last one. None: there is none."""
        manifests = workflows_of(cluster, namespace, self._run.record.name)
        if not manifests:
            return None
        seen = [observe_workflow(manifest) for manifest in manifests]
        self.note({name: task for one in seen for name, task in one.tasks.items()})
        for one in seen:
            self.keep_outputs(one)
        return Live(manifests[-1], seen[-1])

    def note(self, tasks: Mapping[StepName, TaskRecord]) -> None:
        """Write down the tasks that changed."""
        known = self._journal.tasks(self._run)
        for name, task in tasks.items():
            if known.get(name) != task and not (task.state == "pending" and name not in known):
                self._journal.set_task(self._run, task)

    def keep_outputs(self, observed: WorkflowSeen) -> None:
        """Keep the outputs that came with the Workflow."""
        for task, left in observed.outputs.items():
            keep_left(self._home, task, left)

    def end(self, state: RunState, *, seconds: float | None, error: str | None) -> RunRecord:
        """Write down how the run ended."""
        self._journal.set_run(self._run, state, seconds=seconds, error=error)
        return self._journal.run(self._run.record.name).record

    def deleted(self, namespace: str) -> RunRecord:
        """Write down that a run's Workflow is gone, which nobody here deleted."""
        running = [task for task in self._journal.tasks(self._run).values() if task.state == "running"]
        for task in running:
            self._journal.set_task(self._run, task.model_copy(update={"state": "stopped"}))
        return self.end("stopped", seconds=self._run.record.seconds, error=gone(self._run.record.name, namespace))


def gone(run: str, namespace: str) -> str:
    return (
        f"The Workflow of the run in the namespace {namespace!r} was deleted by somebody: what had not finished was "
        f"stopped. Go on with it: scanflow resume {run}"
    )


def keep_left(home: RunHome, task: StepName, left: Mapping[str, str]) -> None:
    """Keep a task's named outputs, JSON texts, as its output folder has them."""
    folder = home.outputs_of(task) / OUTPUTS_FOLDER
    texts = dict(left)
    if folder.is_dir() and {one.name: one.read_text(encoding="utf-8") for one in folder.iterdir()} == texts:
        return
    forget_outputs(home, [task])
    private_folder(folder)
    for name, text in texts.items():
        write_private(folder / name, text)


def forget_outputs(home: RunHome, tasks: Iterable[StepName]) -> None:
    """Forget the outputs of tasks that run again."""
    for task in tasks:
        shutil.rmtree(home.outputs_of(task) / OUTPUTS_FOLDER, ignore_errors=True)


def seconds_between(began: str | None, ended: str | None) -> float:
    """Return how long a Workflow took, as its status has the times."""
    if not began or not ended:
        return 0.0
    return epoch_s(ended) - epoch_s(began)
