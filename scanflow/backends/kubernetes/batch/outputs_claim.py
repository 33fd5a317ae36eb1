"""Whether what a run's steps left is still there: on the claim, or at the address, that they wrote to."""

from __future__ import annotations

from collections.abc import Mapping

from scanflow.backends.kubernetes.batch.batch_home import RunHome
from scanflow.backends.kubernetes.batch.object_store import SCHEME
from scanflow.backends.kubernetes.batch.store_address import locate_store
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.environment.manifests import OUTPUTS
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.run_records import TaskRecord
from scanflow.backends.tasks import reset_task
from scanflow.errors import NotFoundError
from scanflow.files.private import create_private_folder, write_private
from scanflow.names import StepName


def record_claim(cluster: Cluster, settings: KubernetesSettings, namespace: str, home: RunHome) -> str:
    """Record the claim, or the address, that a run's steps write to; return it, for other homes."""
    claim = _identify(cluster, settings, namespace)
    create_private_folder(home.path)
    write_private(home.claim, claim)
    return claim


def are_outputs_gone(
    cluster: Cluster, settings: KubernetesSettings, namespace: str, home: RunHome, *, has_document: bool
) -> bool:
    """Return whether a run's outputs are gone: its claim was deleted, alone or with its environment, or steps have
    their outputs elsewhere now.

    ``has_document``: whether the run's ConfigMap, which was deleted with the environment, is there. It decides where
    the claim was not recorded.
    """
    before = home.claim.read_text(encoding="utf-8") if home.claim.exists() else ""
    now = _identify(cluster, settings, namespace)
    if before and (now or before.startswith(SCHEME)):
        return before != now
    return not has_document


def check_outputs(cluster: Cluster, settings: KubernetesSettings, namespace: str, run: str, home: RunHome) -> None:
    """Raise for a run whose outputs are known to be gone.

    Raises:
        NotFoundError: the claim that they were on was deleted, or they are in another place than the settings say.
    """
    if not are_outputs_gone(cluster, settings, namespace, home, has_document=True):
        return
    before = home.claim.read_text(encoding="utf-8")
    if settings.outputs or before.startswith(SCHEME):
        where = before if before.startswith(SCHEME) else f"the claim {OUTPUTS!r}"
        now = locate_store(cluster, settings, namespace) or f"the claim {OUTPUTS!r}"
        raise NotFoundError(
            f"The outputs of the run {run!r} were stored in {where}, but the namespace {namespace!r} now stores "
            f"outputs in {now}: SCANFLOW_KUBERNETES_OUTPUTS was changed, or the environment was deleted and made "
            f"again. Restore the setting, or run the steps again: scanflow resume {run}"
        )
    raise NotFoundError(
        f"The outputs of the run {run!r} are gone: the claim {OUTPUTS!r} of the namespace {namespace!r}, which "
        f"they were on, was deleted. Run its steps again: scanflow resume {run}"
    )


def reset_finished_tasks(tasks: Mapping[StepName, TaskRecord]) -> dict[StepName, TaskRecord]:
    """Return the finished tasks of a run whose outputs are gone, as tasks that are to run again."""
    return {name: reset_task(task) for name, task in tasks.items() if task.state in {"succeeded", "skipped"}}


def _identify(cluster: Cluster, settings: KubernetesSettings, namespace: str) -> str:
    """Return what tells the place of outputs from an earlier one: an address, or the uid of the claim."""
    if store := locate_store(cluster, settings, namespace):
        return store
    claim = cluster.get("PersistentVolumeClaim", OUTPUTS, namespace)
    return "" if claim is None else str(claim["metadata"]["uid"])
