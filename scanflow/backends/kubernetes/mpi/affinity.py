"""Affinities of a job's pods to their own group, to services and to other jobs. Pure.

Joint planning as on one machine (:mod:`scanflow.placement.mpi.colocation`), as preferences of the scheduler: a
memory-bound job, or one of an unknown profile, prefers nodes without services and without other such jobs, of all
environments; a CPU-bound one prefers nodes with services, which leaves other nodes free. Without other room, a job
shares a node. The affinity to services is left out if there were none when the job was submitted.
"""

from __future__ import annotations

from typing import Any, Final

from scanflow.app.mpi import MPIWorkload
from scanflow.app.resources import Affinity
from scanflow.backends.kubernetes.gpus import add_gpu_placement
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.mpi.mpi_objects import ROLE, ClusterJob, build_worker_gpus
from scanflow.backends.kubernetes.object_labels import MANAGER, RUN, SERVICE
from scanflow.backends.kubernetes.placement import NODE
from scanflow.placement.mpi.task_allocation import MPIWorker

PROFILE: Final = "scanflow.dev/mpi-profile"
"""A label of pods with ranks: the profile of the job."""

_GROUP: Final = "scanflow.dev/mpi-group"
_UNKNOWN: Final = "unknown"
_SHARE_BADLY: Final = ("memory", _UNKNOWN)
_GROUP_WEIGHT: Final = 100
_NEIGHBOUR_WEIGHT: Final = 5  # of each pod there: how a job is cut goes before whom it disturbs, up to twenty of them
_NO_CONSTRAINT: Final = [{"maxSkew": 1, "topologyKey": "scanflow.dev/none", "whenUnsatisfiable": "ScheduleAnyway"}]
"""Its only effect: schedulers do not spread the pods of one Service over all nodes, which, with Volcano's weight,
would split the groups of a job."""

_MANAGED_LABELS: Final = {"app.kubernetes.io/managed-by": MANAGER}


def add_placement(job: ClusterJob, worker: MPIWorker, template: Manifest, group: int | None = None) -> Manifest:
    """Return the template of a worker's pods, which have ranks, with placement labels and preferences.

    ``group``: the group of Algorithm 4, where pods of groups may differ. None: all are equal, and spread evenly.
    """
    profile = job.workload.profile or _UNKNOWN
    labels = {PROFILE: profile} if group is None else {PROFILE: profile, _GROUP: str(group)}
    metadata = {**template["metadata"], "labels": {**template["metadata"]["labels"], **labels}}
    fields = {
        "nodeSelector": read_node_selector(job.workload),
        "affinity": _build_affinity(job, profile, group),
        "topologySpreadConstraints": [] if group is None else _NO_CONSTRAINT,
    }
    placement = {name: value for name, value in fields.items() if value}
    gpus = build_worker_gpus(worker, job)
    return {"metadata": metadata, "spec": {**template["spec"], **add_gpu_placement(placement, gpus)}}


def read_node_selector(workload: MPIWorkload) -> dict[str, str]:
    """Return the node labels that a job's ranks require."""
    return dict(workload.affinity.node_selector) if isinstance(workload.affinity, Affinity) else {}


def _build_affinity(job: ClusterJob, profile: str, group: int | None) -> Manifest:
    preferred_group = None if job.task_topology else group
    attracting: list[Manifest] = (
        [] if preferred_group is None else [_build_group_preference(job, preferred_group, "In")]
    )
    repelling: list[Manifest] = (
        [] if preferred_group is None else [_build_group_preference(job, preferred_group, "NotIn")]
    )
    if group is None and job.plan.granularity.groups > 1:
        repelling.append(_build_worker_preference(job))
    if profile in _SHARE_BADLY:
        other_jobs = [_build_rule(PROFILE, "In", *_SHARE_BADLY), _build_rule(RUN, "NotIn", job.run)]
        repelling.append(_build_neighbour_preference(*other_jobs))
        if job.has_services:
            repelling.append(_build_neighbour_preference(_build_rule(SERVICE, "Exists")))
    elif profile == "cpu" and job.has_services:
        attracting.append(_build_neighbour_preference(_build_rule(SERVICE, "Exists")))
    terms_by_field = {"podAffinity": attracting, "podAntiAffinity": repelling}
    return {
        name: {"preferredDuringSchedulingIgnoredDuringExecution": terms}
        for name, terms in terms_by_field.items()
        if terms
    }


def _build_group_preference(job: ClusterJob, group: int, operator: str) -> Manifest:
    """Return a preference for nodes of its own group (``In``), or of the job's other groups (``NotIn``)."""
    return _build_worker_preference(job, matchExpressions=[_build_rule(_GROUP, operator, str(group))])


def _build_worker_preference(job: ClusterJob, **which: Any) -> Manifest:
    """Return a preference for nodes with workers of the job."""
    return _build_preference(
        _GROUP_WEIGHT, labelSelector={"matchLabels": {**_MANAGED_LABELS, RUN: job.run, ROLE: "worker"}, **which}
    )


def _build_neighbour_preference(*rules: Manifest) -> Manifest:
    """Return a preference for nodes with matching pods of any environment."""
    selected = {"matchLabels": {**_MANAGED_LABELS}, "matchExpressions": list(rules)}
    return _build_preference(_NEIGHBOUR_WEIGHT, labelSelector=selected, namespaceSelector={})


def _build_preference(weight: int, **term: Any) -> Manifest:
    return {"weight": weight, "podAffinityTerm": {"topologyKey": NODE, **term}}


def _build_rule(key: str, operator: str, *values: str) -> Manifest:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
