"""Errors for instances that do not fit: what is available, and what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil

from scanflow.app.quantities import counted, format_memory
from scanflow.errors import InvalidError
from scanflow.placement.cpulist import format_cpus
from scanflow.placement.occupancy import FULL, Demand, Occupancy, areas, sockets
from scanflow.placement.topology import Topology

Most = Callable[[Occupancy, Demand], int]
"""How many instances can be placed, at most as many as are asked for."""


def check_budget(occupancy: Occupancy, demand: Demand, oversubscribe: bool, most: Most) -> None:
    """Refuse what no arrangement could satisfy: more than is granted to this process, or than is left of it."""
    topology = occupancy.topology
    used = sum(min(FULL, load) for load in occupancy.loads.values())
    free = max(0, topology.effective_count * FULL - used)
    total = topology.effective_count * FULL
    if ceil(demand.milli / FULL) * FULL > total:
        raise InvalidError(
            f"An instance of {_cores(demand.milli)} cannot be placed: {_there_is(topology)}. "
            f"Write at most cores={topology.effective_count}."
        )
    needed = demand.instances * demand.milli
    if oversubscribe or needed <= free:
        return
    left = "" if not used else f", and {_cores(free)} of them {'is' if free == FULL else 'are'} left beside others"
    raise InvalidError(
        f"{_instances(demand.instances)} of {_cores(demand.milli)} {'needs' if demand.instances == 1 else 'need'} "
        f"{_cores(needed)}: {_there_is(topology)}{left}. "
        f"{_advice(occupancy, demand, free, most)}"
    )


def _advice(occupancy: Occupancy, demand: Demand, free: int, most: Most) -> str:
    """Return what could be had instead: fewer instances, or smaller ones. It was tried."""
    ways = []
    if fewer := most(occupancy, demand._replace(instances=min(demand.instances, free // demand.milli))):
        ways.append(f"at most instances={fewer}")
    # So many CPUs for each, or one for so many.
    cpus = free // FULL
    sizes = [FULL * each for each in range(cpus // demand.instances, 0, -1)]
    sizes += [FULL // -(-demand.instances // cpus)] if cpus else []
    for milli in sizes:
        if milli < demand.milli and most(occupancy, demand._replace(milli=milli)) == demand.instances:
            ways.append(f"cores={milli / FULL:g}")
            break
    if not ways:
        return "Scale another service down, or write affinity='any' without a number of cores."
    return f"Write {' or '.join(ways)}."


def _there_is(topology: Topology) -> str:
    whole, allowed, count = len(topology.cpus), len(topology.effective_cpus), topology.effective_count
    text = f"this machine has {counted(whole, 'CPU')}"
    if topology.threads_per_core > 1:
        text += f" ({counted(len(topology.cores), 'core')} with up to {topology.threads_per_core} siblings)"
    if allowed < whole:
        text += f", of which the affinity mask or cpuset leaves {allowed} ({format_cpus(topology.effective_cpus)})"
    if count < allowed:
        text += f", and the CPU quota is {topology.quota:g}"
    return text


def too_fragmented(demand: Demand) -> str:
    return (
        f"{_demand(demand)} do not fit: what is left of the CPUs is in parts too small. Write a whole number of cores, "
        "or 0.5, of which two share a CPU."
    )


def no_socket_fits(occupancy: Occupancy, trial: Occupancy, demand: Demand, placed: int, oversubscribe: bool) -> str:
    topology = occupancy.topology
    places = [area for area, _ in areas(topology)]
    widest = max(map(len, places))
    each, mode = _cores(demand.milli), f"affinity={demand.mode!r}"
    if ceil(demand.milli / FULL) > widest:
        return (
            f"An instance of {each} does not fit a socket, which has {counted(widest, 'CPU')} that may be used; {mode} "
            f"keeps it in one. Write at most cores={widest}, or affinity='cpu'."
        )
    layer = trial.layers if oversubscribe else 0
    if any(trial.fits(area, demand.whole, demand.part, layer) for area in places):
        most = max(_memory(topology, area) for area in places)
        return (
            f"{_instances(demand.instances)} with {format_memory(demand.memory_bytes or 0)} of memory each do not fit: "
            f"a socket has {format_memory(most)}, and {mode} takes memory from nowhere else. "
            "Write less memory, fewer instances, or affinity='cpu'."
        )
    free = [sum(max(0, FULL - occupancy.loads[cpu]) for cpu in area) for area in sockets(topology)]
    shown = ", ".join(f"{_cores(one)} on socket {name}" for name, one in zip(topology.sockets, free, strict=True))
    if placed:
        return (
            f"{_demand(demand)} do not fit with {mode}, which keeps each in one socket: free are {shown}, enough for "
            f"{placed}. Write instances={placed}, fewer cores each, or affinity='cpu'."
        )
    return (
        f"No socket has {each} left for {mode}, which keeps an instance in one: free are {shown}. "
        f"Write at most cores={max(free) // FULL or max(free) / FULL:g}, or affinity='cpu'."
    )


def _demand(demand: Demand) -> str:
    return f"{_instances(demand.instances)} of {_cores(demand.milli)}"


def _memory(topology: Topology, area: Iterable[int]) -> int:
    near = topology.memory_near(area)
    return sum(node.memory_bytes or 0 for node in topology.nodes if node.id in near)


def _instances(count: int) -> str:
    return counted(count, "instance")


def _cores(milli: int) -> str:
    return f"{milli / FULL:g} core{'' if milli == FULL else 's'}"
