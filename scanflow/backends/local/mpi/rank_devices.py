"""Which of a job's GPUs each of its ranks gets: as many each, near its cores where there is a choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from scanflow.accelerators.visible import HOLDER_VARIABLE
from scanflow.backends.device_claims import HomeDevices
from scanflow.placement.device_grants import DeviceGrant, build_device_variables
from scanflow.placement.mpi.job_plan import MPIPlan, PlacedRank
from scanflow.placement.sysfs import read_topology

_INHERITED = "CUDA_MPS_PIPE_DIRECTORY"
"""The step's own, which is the same for all ranks."""


def read_rank_variables(plan: MPIPlan, environ: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the variables that show each rank its GPUs and bound its share, in a job's step; none: it was granted
    none."""
    if HOLDER_VARIABLE not in environ:
        return []
    home = Path(environ["SCANFLOW_HOME"])
    devices = HomeDevices(home)
    grants = devices.list_grants(home / environ[HOLDER_VARIABLE])
    nodes = {device.uuid: device.numa_node for device in devices.read_inventory().devices}
    near = [_list_nodes(rank) for rank in plan.ranks] if len(set(nodes.values())) > 1 else [()] * len(plan.ranks)
    assigned = assign_devices([nodes.get(grant.device) for grant in grants], near)
    return [build_rank_variables([grants[place] for place in places]) for places in assigned if places]


def build_rank_variables(grants: Sequence[DeviceGrant]) -> dict[str, str]:
    variables = build_device_variables(grants)
    variables.pop(_INHERITED, None)
    return variables


def assign_devices(nodes: Sequence[int | None], near: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the places of the devices of each rank: as many each, in their order, but near ones first.

    Args:
        nodes: The NUMA node of each device.
        near: Those of the cores of each rank; empty: it may run anywhere.
    """
    each, free = len(nodes) // len(near), list(range(len(nodes)))
    assigned: list[list[int]] = [[] for _ in near]
    for wanted in (True, False):
        for own, rank_nodes in zip(assigned, near, strict=True):
            chosen = [place for place in free if not wanted or nodes[place] in rank_nodes][: each - len(own)]
            own += chosen
            free = [place for place in free if place not in chosen]
    return [sorted(own) for own in assigned]


def _list_nodes(rank: PlacedRank) -> tuple[int, ...]:
    if rank.memory_nodes or not rank.cpus:
        return rank.memory_nodes
    return read_topology().list_nearest_memory(rank.cpus)
