"""Errors for instances that do not fit: the available capacity, and a request that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil

from scanflow.app.quantities import format_cores, format_count, format_memory
from scanflow.errors import InvalidError
from scanflow.placement.cpulist import format_cpus
from scanflow.placement.occupancy import FULL, Demand, Occupancy, list_areas, list_sockets
from scanflow.placement.topology import Topology

Most = Callable[[Occupancy, Demand], int]
"""Returns how many instances fit, up to the requested number."""


def check_budget(occupancy: Occupancy, demand: Demand, oversubscribe: bool, most: Most) -> None:
    """Reject demands that no placement can satisfy: more than this process may use, or more than is free."""
    topology = occupancy.topology
    used = sum(min(FULL, load) for load in occupancy.loads.values())
    free = max(0, topology.effective_count * FULL - used)
    total = topology.effective_count * FULL
    if ceil(demand.milli / FULL) * FULL > total:
        raise InvalidError(
            f"An instance of {_format_cores(demand.milli)} cannot be placed: {_describe_machine(topology)}. "
            f"Write at most cores={topology.effective_count}."
        )
    needed = demand.instances * demand.milli
    if oversubscribe or needed <= free:
        return
    remainder = (
        ""
        if not used
        else f", and {_format_cores(free)} of them {'is' if free == FULL else 'are'} left by other services"
    )
    raise InvalidError(
        f"{_format_instances(demand.instances)} of {_format_cores(demand.milli)} "
        f"{'needs' if demand.instances == 1 else 'need'} {_format_cores(needed)}: "
        f"{_describe_machine(topology)}{remainder}. {_suggest_remedy(occupancy, demand, free, most)}"
    )


def _suggest_remedy(occupancy: Occupancy, demand: Demand, free: int, most: Most) -> str:
    """Suggest a demand that fits: fewer instances, or smaller ones."""
    ways = []
    if fewer := most(occupancy, demand._replace(instances=min(demand.instances, free // demand.milli))):
        ways.append(f"at most instances={fewer}")
    # So many CPUs for each, or one for so many.
    cpus = free // FULL
    sizes = [FULL * count for count in range(cpus // demand.instances, 0, -1)]
    sizes += [FULL // -(-demand.instances // cpus)] if cpus else []
    for milli in sizes:
        if milli < demand.milli and most(occupancy, demand._replace(milli=milli)) == demand.instances:
            ways.append(f"cores={milli / FULL:g}")
            break
    if not ways:
        return "Scale another service down, or write affinity='any' without a number of cores."
    return f"Write {' or '.join(ways)}."


def _describe_machine(topology: Topology) -> str:
    whole, allowed, count = len(topology.cpus), len(topology.effective_cpus), topology.effective_count
    text = f"this machine has {format_count(whole, 'CPU')}"
    if topology.threads_per_core > 1:
        text += f" ({format_count(len(topology.cores), 'core')} with up to {topology.threads_per_core} siblings)"
    if allowed < whole:
        text += f", of which the affinity mask or cpuset allows {allowed} ({format_cpus(topology.effective_cpus)})"
    if count < allowed:
        text += f", and the CPU quota is {topology.quota:g}"
    return text


def explain_fragmentation(demand: Demand) -> str:
    return (
        f"{_format_demand(demand)} do not fit: the free parts of the CPUs are too small. Write a whole number of "
        "cores, or 0.5, so that two instances share a CPU."
    )


def explain_no_socket_fits(
    occupancy: Occupancy, trial: Occupancy, demand: Demand, placed: int, oversubscribe: bool
) -> str:
    topology = occupancy.topology
    places = [area for area, _ in list_areas(topology)]
    widest = max(map(len, places))
    size, mode = _format_cores(demand.milli), f"affinity={demand.mode!r}"
    if ceil(demand.milli / FULL) > widest:
        return (
            f"An instance of {size} does not fit a socket, which has {format_count(widest, 'CPU')} that may be used; "
            f"{mode} keeps an instance in one socket. Write at most cores={widest}, or affinity='cpu'."
        )
    layer = trial.layers if oversubscribe else 0
    if any(trial.fits(area, demand.whole, demand.part, layer) for area in places):
        most = max(_sum_memory(topology, area) for area in places)
        return (
            f"{_format_instances(demand.instances)} with {format_memory(demand.memory_bytes or 0)} of memory each "
            f"do not fit: a socket has {format_memory(most)}, and {mode} uses the memory of one socket only. Write "
            "less memory, fewer instances, or affinity='cpu'."
        )
    free = [sum(max(0, FULL - occupancy.loads[cpu]) for cpu in area) for area in list_sockets(topology)]
    shown = ", ".join(
        f"{_format_cores(milli)} on socket {name}" for name, milli in zip(topology.sockets, free, strict=True)
    )
    if placed:
        return (
            f"{_format_demand(demand)} do not fit with {mode}, which keeps each instance in one socket: {shown} are "
            f"free, enough for {placed}. Write instances={placed}, fewer cores each, or affinity='cpu'."
        )
    return (
        f"No socket has {size} left for {mode}, which keeps an instance in one socket: {shown} are free. Write at "
        f"most cores={max(free) // FULL or max(free) / FULL:g}, or affinity='cpu'."
    )


def _format_demand(demand: Demand) -> str:
    return f"{_format_instances(demand.instances)} of {_format_cores(demand.milli)}"


def _sum_memory(topology: Topology, area: Iterable[int]) -> int:
    near = topology.list_nearest_memory(area)
    return sum(node.memory_bytes or 0 for node in topology.nodes if node.id in near)


def _format_instances(count: int) -> str:
    return format_count(count, "instance")


def _format_cores(milli: int) -> str:
    return format_cores(milli / FULL)
