"""What the tasks of runs left: their outputs, files and logs, in this home, on the cluster's storage or in its pods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scanflow.backends.kubernetes.batch.batch_home import BatchHome, RunHome
from scanflow.backends.kubernetes.batch.fetching import fetch_log, fetch_outputs
from scanflow.backends.kubernetes.batch.file_lists import list_files
from scanflow.backends.kubernetes.batch.outputs_claim import check_outputs
from scanflow.backends.kubernetes.batch.task_pod_logs import TaskPodLogs, copy_log
from scanflow.backends.kubernetes.batch.workflow_facts import list_workflows
from scanflow.backends.kubernetes.batch.workflow_records import observe_workflow
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.log_files import FileLogs
from scanflow.backends.log_reader import LogReader, Stream
from scanflow.backends.run_records import FINAL_STATES, RunRecord, StepFile, TaskRecord
from scanflow.backends.tasks import OutputsT, arrange_outputs, get_logged_task, list_output_tasks, select_tasks
from scanflow.names import StepName
from scanflow.outputs import OUTPUTS_FOLDER


class TaskResults:
    """Reads what tasks left, into this home first where it lacks it.

    Args:
        cluster: The cluster.
        settings: Its settings.
        home: This home's folders.
        show: Returns the current record of a run.
        read_namespace: Returns the namespace of a run.
        get_key: Returns the key that signs the pickles of a namespace, an application and its team.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: KubernetesSettings,
        home: BatchHome,
        *,
        show: Callable[[str], RunRecord],
        read_namespace: Callable[[RunRecord], str],
        get_key: Callable[[str, str, str], bytes],
    ) -> None:
        self._cluster, self._settings, self._home = cluster, settings, home
        self._show, self._read_namespace, self._get_key = show, read_namespace, get_key

    def read_outputs(
        self, record: RunRecord, step: str, read: Callable[[Path, bytes], OutputsT]
    ) -> OutputsT | list[OutputsT]:
        """Return what ``read`` makes of the output folders of a step's tasks, and the key of their pickles.

        Raises:
            NotFoundError: they are gone.
        """
        tasks = list_output_tasks(record, step)
        namespace = self._read_namespace(record)
        homes = {task.task: self._home.run(self._get_output_run(record, task)) for task in tasks}
        missing = [task for task in tasks if not (homes[task.task].locate_outputs(task.task) / OUTPUTS_FOLDER).is_dir()]
        if missing:
            for source in {homes[task.task].path.name for task in missing}:
                home = self._home.run(source)
                check_outputs(self._cluster, self._settings, namespace, source, home)
            fetch_outputs(
                self._cluster, self._settings, namespace, record.name, {task.task: homes[task.task] for task in missing}
            )
        key = self._get_key(namespace, record.app, record.team) if _has_pickled_outputs(homes) else b""
        return arrange_outputs(step, tasks, [read(homes[task.task].locate_outputs(task.task), key) for task in tasks])

    def _get_output_run(self, record: RunRecord, task: TaskRecord) -> str:
        """Return the run whose folder has the outputs of a task: for an input of a spin, the past run."""
        is_spin_input = (
            task.origin is not None and not task.attempts and self._find_outputs_folder(record.name, task) is None
        )
        return str(task.origin) if is_spin_input else record.name

    def _find_outputs_folder(self, run: str, task: TaskRecord) -> Path | None:
        folder = self._home.run(run).locate_outputs(task.task) / OUTPUTS_FOLDER
        return folder if folder.is_dir() else None

    def list_files(self, record: RunRecord, step: str | None) -> list[StepFile]:
        """Return the files that tasks left."""
        namespace, home = self._read_namespace(record), self._home.run(record.name)
        return list_files(self._cluster, self._settings, namespace, home, select_tasks(record, step))

    def open_logs(self, record: RunRecord, task: str, stream: Stream, attempt: int | None) -> LogReader:
        """Return a reader of the log of an attempt, the last one if none is named."""
        task_record = get_logged_task(record, task)
        number = attempt or task_record.attempts
        folder = self._home.run(record.name).locate_attempt(task_record.task, number)
        if not (folder / "stdout.log").exists() and (
            reader := self._open_pod_logs(record, task_record, number, stream)
        ):
            return reader
        if not (folder / "stdout.log").exists():
            namespace = self._read_namespace(record)
            fetch_log(self._cluster, self._settings, namespace, record.name, task_record.task, number, folder)
        files = [(name, folder / f"{name}.log") for name in ("stdout", "stderr") if stream in {name, "both"}]
        return FileLogs(lambda: (files, True))

    def _open_pod_logs(self, record: RunRecord, task: TaskRecord, number: int, stream: Stream) -> LogReader | None:
        """Return a reader of the log of a running task; None: it has ended, and its log was copied to this home."""
        namespace = self._read_namespace(record)
        for manifest in reversed(list_workflows(self._cluster, namespace, record.name)):
            for attempt in observe_workflow(manifest).attempts:
                if (attempt.task, attempt.number) == (task.task, number):
                    if attempt.record.state == "running":
                        return TaskPodLogs(
                            self._cluster,
                            attempt.pod,
                            namespace,
                            stream,
                            lambda: self._has_task_ended(record.name, task.task, number),
                        )
                    copy_log(
                        self._cluster,
                        attempt.pod,
                        namespace,
                        self._home.run(record.name).locate_attempt(task.task, number),
                    )
                    return None
        return None

    def _has_task_ended(self, run: str, task: str, number: int) -> bool:
        record = self._show(run)
        current = {task_record.task: task_record for task_record in record.tasks}.get(StepName(task))
        return (
            record.state in FINAL_STATES or current is None or current.state != "running" or current.attempts != number
        )


def _has_pickled_outputs(homes: dict[StepName, RunHome]) -> bool:
    return any(
        file.name.endswith(".pickle")
        for task, home in homes.items()
        for file in (home.locate_outputs(task) / OUTPUTS_FOLDER).iterdir()
    )
