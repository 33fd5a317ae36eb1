"""The lists of files that tasks left: from their reports, else from a pod, and kept in this home."""

from __future__ import annotations

import json
from collections.abc import Sequence

from scanflow.backends.kubernetes.batch import pod_layout
from scanflow.backends.kubernetes.batch.batch_home import RunHome
from scanflow.backends.kubernetes.batch.fetching import fetch_files
from scanflow.backends.kubernetes.batch.outputs_claim import check_outputs
from scanflow.backends.kubernetes.batch.workflow_records import FileSizes
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.run_records import StepFile, TaskRecord
from scanflow.files.private import create_private_folder, write_private
from scanflow.names import StepName


def list_files(
    cluster: Cluster, settings: KubernetesSettings, namespace: str, home: RunHome, tasks: Sequence[TaskRecord]
) -> list[StepFile]:
    """Return the files that the ended ones of tasks left, with their paths in later steps' pods.

    Raises:
        NotFoundError: the run's outputs are gone.
        UnavailableError: no pod could be started.
    """
    run = home.path.name
    ended = [task.task for task in tasks if task.state in {"succeeded", "failed", "stopped"}]
    if unknown := [task for task in ended if _read(home, task) is None]:
        check_outputs(cluster, settings, namespace, run, home)
        for task, files in fetch_files(cluster, settings, namespace, run, unknown).items():
            write_files(home, task, files)
    folder = pod_layout.OUTPUTS / run
    return [
        StepFile(task=task, name=name, size_bytes=size, path=str(folder / task.replace(".", "/", 1) / name))
        for task in ended
        for name, size in _read(home, task) or ()
    ]


def write_files(home: RunHome, task: StepName, files: FileSizes) -> None:
    """Keep the list of the files that a task left."""
    path, text = home.locate_files(task), json.dumps(files)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        create_private_folder(path.parent)
        write_private(path, text)


def _read(home: RunHome, task: StepName) -> FileSizes | None:
    path = home.locate_files(task)
    return tuple(map(tuple, json.loads(path.read_text(encoding="utf-8")))) if path.exists() else None
