"""The GPU memory of a service's instances before a change of versions: both fit, or instances are replaced one after
the other, or the change is refused before it starts."""

from __future__ import annotations

from dataclasses import replace

from scanflow.app.quantities import format_bytes
from scanflow.backends.device_claims import HomeDevices
from scanflow.backends.local.services.service_layout import ServiceFolder
from scanflow.backends.local.services.state.observed import read_observed
from scanflow.backends.local.services.supervisor.attempts import list_newest_attempts, read_started
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_records import Shape
from scanflow.backends.shapes import build_shape_demand
from scanflow.backends.version_memory import (
    InstanceMemory,
    describe_fit,
    explain_overflow,
    find_full_instance,
    list_loaded_nodes,
    measure_memory,
    measure_versions,
)
from scanflow.errors import UsageError
from scanflow.placement.device_grants import describe_wait
from scanflow.processes.shims import read_exit


def read_memories(devices: HomeDevices, folder: ServiceFolder) -> list[InstanceMemory]:
    """Return the memory of each running instance that has a GPU."""
    state = read_observed(folder)
    details = {} if state is None else {it.instance: it.model_extra or {} for it in state.record.instances}
    inventory = devices.read_inventory()
    return [
        measure_memory(
            inventory, name, grants, int(started["pid"]), details.get(name, {}).get("unused_device_bytes") or 0
        )
        for name, path in list_newest_attempts(folder)
        if read_exit(path) is None and (started := read_started(path)) and (grants := devices.list_grants(path))
    ]


def fit_versions(
    devices: HomeDevices, folder: ServiceFolder, before: DesiredState, after: DesiredState
) -> tuple[DesiredState, str]:
    """Return the state ``after`` with a way that its GPUs have the memory for, and what to say of it.

    Raises:
        UsageError: there is none.
    """
    demand = build_shape_demand(after.definition.shape)
    if demand is None or after.definition.spec_hash != before.definition.spec_hash:
        return after, ""  # processes are replaced, and their supervisor counts
    nodes = list_loaded_nodes(before.definition.revisions, after.definition.revisions)
    memories = read_memories(devices, folder) if nodes else []
    if not memories:
        return after, ""
    added = measure_versions(nodes)
    full = find_full_instance(memories, added)
    if full is None:
        return after, describe_fit(memories, added)
    why, name = explain_overflow(full, added), after.name
    if after.definition.canary is not None:
        raise UsageError(
            f"{name!r}: {why}. A canary or shadow is served beside the current version. Swap them (scanflow promote "
            f"{name} {added}), or deploy {name!r} with a larger gpu= or gpu_memory=."
        )
    alone = measure_versions(after.definition.current.nodes).file_bytes or 0
    if full.bound_bytes is not None and alone > full.bound_bytes:
        raise UsageError(f"{name!r}: {why}, nor for the new one alone. Deploy it with a larger gpu= or gpu_memory=.")
    if waits := devices.explain_wait(demand):
        raise UsageError(
            f"{name!r}: {why}, and no other {demand} is free for an instance with the new one: {waits}. Deploy "
            f"{name!r} with a larger gpu= or gpu_memory=, or without an overlap: scanflow delete {name}, then scanflow "
            "deploy."
        )
    replaced = after.definition.with_changes(deployment=after.generation)
    return after.model_copy(update={"definition": replaced}), (
        f"{why}. New instances with another {demand} are started, and the old ones end after them"
    )


def describe_free_memory(devices: HomeDevices, folder: ServiceFolder, shape: Shape) -> list[str]:
    """Return for a plan whether its GPUs are free, and how much of their memory a second version would have."""
    demand = build_shape_demand(shape)
    if demand is None:
        return []
    memories = read_memories(devices, folder)
    own = [path for _, path in list_newest_attempts(folder)]
    of_all = replace(demand, copies=max(1, shape.instances), copy="instance")
    why = devices.explain_wait(of_all, leaving=own)
    refused = [f"{describe_wait(of_all, why)} A deployment would be refused."] if why else []
    if not memories:
        return [*refused, "GPU memory: what a second version would need is known once it serves."]
    amounts = [
        f"{memory}" + ("" if memory.free_bytes is None else f": {format_bytes(memory.free_bytes)} are left")
        for memory in memories
    ]
    waits = devices.explain_wait(demand)
    again = (
        f"A new deployment shares GPUs with the instances that it replaces, as no other is free: {waits}."
        if waits
        else "A new deployment gets a GPU beside the instances that it replaces."
    )
    rule = (
        "A second version (swap, canary, shadow) is loaded into the same instances. A swap that does not fit there "
        "starts new instances if a GPU is free. A canary or shadow that does not fit is refused."
    )
    return [*refused, f"GPU memory: {'; '.join(amounts)}. {rule}", again]
