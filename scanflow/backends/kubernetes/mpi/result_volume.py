"""The volume of a job's result files: an existing claim, mounted at the path of batch steps' outputs."""

from __future__ import annotations

from typing import NamedTuple

from scanflow.app.mpi import MPIWorkload
from scanflow.backends.kubernetes.batch.pod_layout import OUTPUTS as PATH
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.environment.manifests import OUTPUTS
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.errors import InvalidError, UnsupportedError
from scanflow.placement.mpi.job_plan import MPIPlan


class Results(NamedTuple):
    """The volumes, mounts and variables of a job's results."""

    volumes: list[Manifest]
    mounts: list[Manifest]
    variables: dict[str, str]


def build_results(workload: MPIWorkload, run: str) -> Results:
    """Return the volumes, mounts and variables of a job's results; empty where it names no volume. Pure."""
    if workload.volume is None:
        return Results([], [], {})
    return Results(
        volumes=[{"name": "results", "persistentVolumeClaim": {"claimName": workload.volume}}],
        mounts=[{"name": "results", "mountPath": str(PATH)}],
        variables={"SCANFLOW_OUTPUT_DIR": str(PATH / run / workload.name)},
    )


def check_volume(
    cluster: Cluster, namespace: str, workload: MPIWorkload, plan: MPIPlan, settings: KubernetesSettings
) -> None:
    """Raise for a volume with which the job's pods would stay pending.

    Raises:
        InvalidError: it does not exist, or only one node may mount it and the job is on several.
        UnsupportedError: it is that of batch steps, whose outputs are in an object store.
    """
    if workload.volume is None:
        return
    if workload.volume == OUTPUTS and settings.outputs:
        raise UnsupportedError(
            f"MPIWorkload {workload.name!r}: volume={OUTPUTS!r} is the claim of batch steps, whose outputs are in "
            f"{settings.outputs} (SCANFLOW_KUBERNETES_OUTPUTS). Ranks write to a claim that their nodes mount: make "
            "one of a class that is ReadWriteMany, and name it."
        )
    claim, who = cluster.get("PersistentVolumeClaim", workload.volume, namespace), f"MPIWorkload {workload.name!r}"
    if claim is None and workload.volume != OUTPUTS:  # which is made with the environment
        raise InvalidError(
            f"{who}: there is no PersistentVolumeClaim {workload.volume!r} in the namespace {namespace!r}. Make it, or "
            f"write volume={OUTPUTS!r}, which batch steps use."
        )
    modes = [] if claim is None else claim["spec"].get("accessModes", [])
    nodes = len(plan.ranks_by_node)
    if modes and nodes > 1 and "ReadWriteMany" not in modes:
        raise InvalidError(
            f"{who}: its ranks are planned on {nodes} nodes, and the claim {workload.volume!r} is {', '.join(modes)}, "
            "which only one node may mount. Use one that is ReadWriteMany, or write n_nodes=1."
        )
