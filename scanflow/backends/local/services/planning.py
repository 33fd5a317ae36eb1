"""Where the instances of an online workflow would sit on this machine, without starting any."""

from __future__ import annotations

from pathlib import Path

from scanflow.app.plan import Plan, PlannedInstance, plan_graph
from scanflow.app.workflow import Workflow
from scanflow.backends.local.services.grants import grants_of_others, planned
from scanflow.backends.local.services.layout import ServicesHome
from scanflow.backends.shapes import shape_of
from scanflow.placement.available_cpus import this_machine
from scanflow.placement.sysfs import read_topology
from scanflow.placement.threads import pool_size


def plan_online(home: Path, workflow: Workflow) -> Plan:
    """Return the plan of an online workflow beside what is deployed in this home.

    Raises:
        InvalidError: there are too few CPUs for it; the message says what to write.
    """
    shape, topology = shape_of(workflow), read_topology()
    others = grants_of_others(ServicesHome(home / "services"), workflow.name)
    instances = tuple(
        PlannedInstance(
            name=str(number),
            cores=grant.cores,
            cpus=grant.cpus,
            memory_nodes=grant.memory_nodes,
            threads=pool_size(grant.cores),
        )
        for number, grant in enumerate(planned(topology, shape, shape.instances, others), 1)
    )
    return plan_graph(
        workflow,
        instances,
        memory_bytes=shape.memory_bytes,
        machine_cores=topology.effective_count,
        machine_memory_bytes=this_machine().memory_bytes,
    )
