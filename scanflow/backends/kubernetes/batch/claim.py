"""Whether what a run's steps left is still there: on the claim that they wrote to, and not on another of that name."""

from __future__ import annotations

from collections.abc import Mapping

from scanflow.backends.kubernetes.batch.home import RunHome
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.environment.manifests import OUTPUTS
from scanflow.backends.records import TaskRecord
from scanflow.errors import NotFoundError
from scanflow.files.private import create_private_folder, write_private
from scanflow.names import StepName


def record_claim(cluster: Cluster, namespace: str, home: RunHome) -> str:
    """Record the claim that a run's steps write to; return its uid, for other homes."""
    uid = _read_uid(cluster, namespace)
    create_private_folder(home.path)
    write_private(home.claim, uid)
    return uid


def are_outputs_gone(cluster: Cluster, namespace: str, home: RunHome, *, has_document: bool) -> bool:
    """Return whether a run's outputs are gone: its claim was deleted, alone or with its environment.

    ``has_document``: whether the run's ConfigMap, which was deleted with the environment, is there. It decides where
    the claim was not recorded.
    """
    before = home.claim.read_text(encoding="utf-8") if home.claim.exists() else ""
    now = _read_uid(cluster, namespace)
    return before != now if before and now else not has_document


def check_outputs(cluster: Cluster, namespace: str, run: str, home: RunHome) -> None:
    """Raise for a run whose outputs are known to be gone.

    Raises:
        NotFoundError: the claim that they were on was deleted.
    """
    if are_outputs_gone(cluster, namespace, home, has_document=True):
        raise NotFoundError(
            f"The outputs of the run {run!r} are gone: the claim {OUTPUTS!r} of the namespace {namespace!r}, which "
            f"they were on, was deleted. Run its steps again: scanflow resume {run}"
        )


def reset_finished_tasks(tasks: Mapping[StepName, TaskRecord]) -> dict[StepName, TaskRecord]:
    """Return the finished tasks of a run whose outputs are gone, as tasks that are to run again."""
    return {
        name: TaskRecord(task=name, step=task.step, state="pending", attempts=task.attempts)
        for name, task in tasks.items()
        if task.state in {"succeeded", "skipped"}
    }


def _read_uid(cluster: Cluster, namespace: str) -> str:
    claim = cluster.get("PersistentVolumeClaim", OUTPUTS, namespace)
    return "" if claim is None else str(claim["metadata"]["uid"])
