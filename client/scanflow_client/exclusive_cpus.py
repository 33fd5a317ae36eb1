"""The CPUs that services of this machine use exclusively."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from scanflow.placement.place import Grant

if TYPE_CHECKING:
    from scanflow.backends.service_records import InstanceRecord, ServiceRecord


def list_exclusive_grants(services: Sequence[ServiceRecord]) -> list[Grant]:
    return [
        Grant(instance.cpus, instance.memory_nodes, cores=instance.cores or float(len(instance.cpus)))
        for service, instance in iterate_pinned_instances(services)
        if service.shape.affinity != "any"
    ]


def iterate_pinned_instances(services: Sequence[ServiceRecord]) -> Iterator[tuple[ServiceRecord, InstanceRecord]]:
    """Yield the instances that are pinned to CPUs, with their services."""
    for service in services:
        for instance in service.instances:
            if instance.cpus and instance.state not in {"waiting", "failed"}:
                yield service, instance
