"""Which CPUs services of this machine have to themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from scanflow.placement.place import Grant

if TYPE_CHECKING:
    from scanflow.backends.service_records import InstanceRecord, ServiceRecord


def bound_grants(services: Sequence[ServiceRecord]) -> list[Grant]:
    return [
        Grant(one.cpus, one.memory_nodes, cores=one.cores or float(len(one.cpus)))
        for service, one in placed_instances(services)
        if service.shape.affinity != "any"
    ]


def placed_instances(services: Sequence[ServiceRecord]) -> Iterator[tuple[ServiceRecord, InstanceRecord]]:
    """Yield the instances that run on CPUs of their own, with their services."""
    for service in services:
        for one in service.instances:
            if one.cpus and one.state not in {"waiting", "failed"}:
                yield service, one
