"""Where the instances of an online workflow would sit on this machine, without starting any."""

from __future__ import annotations

from collections.abc import Sequence

from scanflow.app.plan import Plan, PlannedInstance, plan_graph
from scanflow.app.workflow import Workflow
from scanflow.backends.service_records import ServiceRecord
from scanflow.backends.shapes import shape_of
from scanflow.placement.place import Grant, place
from scanflow.placement.threads import pool_size
from scanflow.placement.topology import Topology

__all__ = ["plan_online"]


def plan_online(
    workflow: Workflow, topology: Topology, others: Sequence[ServiceRecord], *, machine_memory_bytes: int
) -> Plan:
    """Return the plan of an online workflow beside what is deployed already.

    Raises:
        InvalidError: there are too few CPUs for it; the message says what to write.
    """
    shape = shape_of(workflow)
    beside = [
        Grant(one.cpus, one.memory_nodes, cores=one.cores or float(len(one.cpus)))
        for other in others
        if other.name != workflow.name and other.shape.affinity != "any"
        for one in other.instances
        if one.cpus
    ]
    grants = place(
        topology, shape.instances, shape.cores, shape.affinity, beside=beside, memory_bytes=shape.memory_bytes
    )
    instances = tuple(
        PlannedInstance(
            name=str(number),
            cores=grant.cores,
            cpus=grant.cpus,
            memory_nodes=grant.memory_nodes,
            threads=pool_size(grant.cores),
        )
        for number, grant in enumerate(grants, 1)
    )
    return plan_graph(
        workflow,
        instances,
        memory_bytes=shape.memory_bytes,
        machine_cores=topology.effective_count,
        machine_memory_bytes=machine_memory_bytes,
    )
