"""The plan of an MPI job on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from scanflow.app.mpi import MPIWorkload
from scanflow.placement.mpi.colocation import Neighbour, choose_colocated_cpus
from scanflow.placement.mpi.groups import ClusterNode
from scanflow.placement.mpi.job_plan import MPIPlan, plan_job
from scanflow.placement.sysfs import read_topology
from scanflow.placement.topology import Topology

LOCAL_NODE: Final = "localhost"
_LATER: Final = (
    "profile='auto': the program's bottleneck is measured when the job starts, and the job is planned then (plan now: "
    "scanflow mpi plan --measure)"
)


def build_local_node(topology: Topology) -> ClusterNode:
    """Return this machine as the only node of its cluster."""
    return ClusterNode(name=LOCAL_NODE, cores=topology.effective_count, memory_bytes=topology.memory_bytes)


def plan_local_job(
    workload: MPIWorkload, topology: Topology | None = None, *, neighbours: Iterable[Neighbour] = ()
) -> MPIPlan:
    """Plan a job on this machine; an omitted ``topology`` is read.

    ``profile="auto"`` is planned as an unknown profile. With ``neighbours``, the CPUs suit the job's profile beside
    them (:func:`~scanflow.placement.mpi.colocation.choose_colocated_cpus`).
    """
    here = topology or read_topology()
    planned = workload.replace(profile=None) if workload.profile == "auto" else workload
    assert planned.profile != "auto"
    cores = planned.n_tasks * (planned.resources_per_task.cores or 1.0)
    cpus, why = choose_colocated_cpus(
        here, cores=cores, profile=planned.profile, neighbours=neighbours, oversubscribe=planned.oversubscribe
    )
    if why is not None:
        here = here.replace(allowed=cpus)
    plan = plan_job(planned, [build_local_node(here)], topologies={LOCAL_NODE: here})
    more = (why, _LATER if workload.profile == "auto" else None)
    return replace(plan, reasons=(*plan.reasons, *(reason for reason in more if reason is not None)))
