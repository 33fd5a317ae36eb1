"""Beside which pods those of a job's ranks are put: their own group, services, and other jobs. Pure.

Joint planning as on one machine (:mod:`scanflow.placement.mpi.beside`), in what a scheduler knows: a job that memory
bounds, or of which nothing is known, prefers nodes without services and without other such jobs, of all environments;
one that computes prefers nodes that services are on, which leaves others free. All of it is preferred only: where there
is no room elsewhere, a job shares. Of services nothing is said where there were none when the job was submitted.
"""

from __future__ import annotations

from typing import Any, Final

from scanflow.app.mpi import MPIWorkload
from scanflow.app.resources import Affinity
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import MANAGER, RUN, SERVICE
from scanflow.backends.kubernetes.mpi.job import ROLE, ClusterJob
from scanflow.backends.kubernetes.placement import NODE

PROFILE: Final = "scanflow.dev/mpi-profile"
"""A label of pods with ranks: what bounds them."""

_GROUP: Final = "scanflow.dev/mpi-group"
_UNKNOWN: Final = "unknown"
_SHARE_BADLY: Final = ("memory", _UNKNOWN)
_GROUP_WEIGHT: Final = 100
_NEIGHBOUR_WEIGHT: Final = 5  # of each pod there: how a job is cut goes before whom it disturbs, up to twenty of them
_AS_WISHED: Final = [{"maxSkew": 1, "topologyKey": "scanflow.dev/none", "whenUnsatisfiable": "ScheduleAnyway"}]
"""Of no effect but that schedulers do not spread a job's pods over all nodes, because they are of one Service: with the
weight that Volcano gives to that, its groups are taken apart."""

_OURS: Final = {"app.kubernetes.io/managed-by": MANAGER}


def placed(job: ClusterJob, template: Manifest, group: int | None = None) -> Manifest:
    """Return the template of pods with ranks, with its labels and preferences.

    ``group``: that of Algorithm 4, where pods of different groups may differ. None: all are alike, and spread evenly.
    """
    profile = job.workload.profile or _UNKNOWN
    labels = {PROFILE: profile} if group is None else {PROFILE: profile, _GROUP: str(group)}
    metadata = {**template["metadata"], "labels": {**template["metadata"]["labels"], **labels}}
    wishes = {
        "nodeSelector": node_selector(job.workload),
        "affinity": _affinity(job, profile, group),
        "topologySpreadConstraints": [] if group is None else _AS_WISHED,
    }
    return {"metadata": metadata, "spec": {**template["spec"], **{name: one for name, one in wishes.items() if one}}}


def node_selector(workload: MPIWorkload) -> dict[str, str]:
    """Return the labels that the nodes of its ranks must carry."""
    return dict(workload.affinity.node_selector) if isinstance(workload.affinity, Affinity) else {}


def _affinity(job: ClusterJob, profile: str, group: int | None) -> Manifest:
    told = None if job.task_topology else group
    towards: list[Manifest] = [] if told is None else [_group(job, told, "In")]
    away: list[Manifest] = [] if told is None else [_group(job, told, "NotIn")]
    if group is None and job.plan.granularity.groups > 1:
        away.append(_workers(job))
    if profile in _SHARE_BADLY:
        others = [_rule(PROFILE, "In", *_SHARE_BADLY), _rule(RUN, "NotIn", job.run)]
        away.append(_neighbours(*others))
        if job.beside_services:
            away.append(_neighbours(_rule(SERVICE, "Exists")))
    elif profile == "cpu" and job.beside_services:
        towards.append(_neighbours(_rule(SERVICE, "Exists")))
    wishes = {"podAffinity": towards, "podAntiAffinity": away}
    return {name: {"preferredDuringSchedulingIgnoredDuringExecution": terms} for name, terms in wishes.items() if terms}


def _group(job: ClusterJob, group: int, operator: str) -> Manifest:
    """Return a wish about the nodes of the own group, or of the job's others."""
    return _workers(job, matchExpressions=[_rule(_GROUP, operator, str(group))])


def _workers(job: ClusterJob, **which: Any) -> Manifest:
    """Return a wish about nodes that have workers of the job."""
    return _wish(_GROUP_WEIGHT, labelSelector={"matchLabels": {**_OURS, RUN: job.run, ROLE: "worker"}, **which})


def _neighbours(*rules: Manifest) -> Manifest:
    """Return a wish about pods of all environments."""
    selected = {"matchLabels": {**_OURS}, "matchExpressions": list(rules)}
    return _wish(_NEIGHBOUR_WEIGHT, labelSelector=selected, namespaceSelector={})


def _wish(weight: int, **term: Any) -> Manifest:
    return {"weight": weight, "podAffinityTerm": {"topologyKey": NODE, **term}}


def _rule(key: str, operator: str, *values: str) -> Manifest:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
