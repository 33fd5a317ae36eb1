"""Joint planning: which CPUs an MPI job gets beside services and other jobs, by its bottleneck. Pure.

Neighbours slow a service down. A memory-bound job takes bandwidth from everything on its NUMA nodes, so it is spread
over nodes without services. A CPU-bound job is packed onto the free cores beside services, which leaves other nodes
free. A network-bound job is kept together on one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from scanflow.app.mpi import MPIProfile
from scanflow.app.quantities import format_count
from scanflow.placement.cpulist import format_numbered
from scanflow.placement.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A service or a job that holds CPUs."""

    name: str
    cpus: tuple[int, ...]
    service: bool = True
    profile: MPIProfile | None = None
    """A job's bottleneck. None: it is unknown."""

    @property
    def shares_badly(self) -> bool:
        """Whether it suffers, or causes, much slowdown where memory is shared: services, and jobs that may be
        memory-bound."""
        return self.service or self.profile in {None, "memory"}


class CpuChoice(NamedTuple):
    cpus: tuple[int, ...]
    reason: str | None = None
    """The reason; None: there are no neighbours."""


class _NumaNode(NamedTuple):
    id: int
    free: list[int]
    neighbours: list[Neighbour]


def choose_colocated_cpus(
    topology: Topology,
    *,
    cores: float,
    profile: MPIProfile | None,
    neighbours: Iterable[Neighbour],
    oversubscribe: bool = False,
) -> CpuChoice:
    """Choose the CPUs of a job beside its neighbours.

    It gets its neighbours' CPUs only if the free ones are too few; a job whose tasks may share cores then gets the free
    ones instead. A sibling of a service's CPU counts as free only if cores are short.

    Args:
        topology: This machine.
        cores: The cores that the job requests.
        profile: The bottleneck; if it is unknown, memory is assumed.
        neighbours: The services and jobs with their CPUs.
        oversubscribe: Whether its tasks may share cores.
    """
    everything = topology.effective_cpus
    others = [neighbour for neighbour in neighbours if set(neighbour.cpus) & set(everything)]
    if not others:
        return CpuChoice(everything)
    occupied = {cpu for neighbour in others for cpu in neighbour.cpus}
    n_cores, names = max(1, ceil(cores - 1e-9)), _format_names(others)
    free = [cpu for cpu in everything if cpu not in occupied]
    if not free or (len(free) < n_cores and not oversubscribe):
        has = (
            f"{format_count(len(free), 'core')} of {n_cores} that it requests {'is' if len(free) == 1 else 'are'} free"
        )
        return CpuChoice(everything, f"{has}: it shares cores with {names}")
    if len(free) < n_cores:
        return CpuChoice(tuple(free), f"its tasks share {format_numbered('CPU', free)}, which {names} leave free")
    served = {cpu for neighbour in others if neighbour.service for cpu in neighbour.cpus}
    whole = [cpu for cpu in free if served.isdisjoint(topology.core_of[cpu].cpus)]
    free = whole if len(whole) >= n_cores else free
    nodes = [
        _NumaNode(
            node.id,
            [cpu for cpu in free if cpu in node.cpus],
            [neighbour for neighbour in others if set(neighbour.cpus) & set(node.cpus)],
        )
        for node in topology.nodes
    ]
    nodes = [node for node in nodes if node.free]
    chosen, why = _choose_nodes(nodes, n_cores, profile)
    return CpuChoice(tuple(sorted(cpu for node in chosen for cpu in node.free)), why)


def _choose_nodes(
    nodes: Sequence[_NumaNode], n_cores: int, profile: MPIProfile | None
) -> tuple[Sequence[_NumaNode], str]:
    if profile == "cpu":
        return _pack(nodes, n_cores)
    if profile == "network":
        return _keep_together(nodes, n_cores)
    return _spread(nodes, n_cores, "memory-bound" if profile == "memory" else "bottleneck unknown")


def _spread(nodes: Sequence[_NumaNode], n_cores: int, why: str) -> tuple[Sequence[_NumaNode], str]:
    quiet = [node for node in nodes if not any(neighbour.shares_badly for neighbour in node.neighbours)]
    if sum(len(node.free) for node in quiet) >= n_cores:
        return (
            quiet,
            f"{why}: spread over {_format_nodes(quiet)}, away from {_format_node_neighbours(nodes, but=quiet)}",
        )
    there = "there is one memory node" if len(nodes) == 1 else "the other memory nodes have too few free cores"
    return nodes, f"{why}, and {there}: it shares memory with {_format_node_neighbours(nodes)}, on exclusive cores"


def _pack(nodes: Sequence[_NumaNode], n_cores: int) -> tuple[Sequence[_NumaNode], str]:
    chosen: list[_NumaNode] = []
    for node in sorted(nodes, key=lambda node: (not node.neighbours, len(node.free), node.id)):
        if sum(len(chosen_node.free) for chosen_node in chosen) < n_cores:
            chosen.append(node)
    others = [node for node in nodes if node not in chosen]
    leaves = f", which leaves {_format_nodes(others)} to others" if others else ""
    return chosen, f"CPU-bound: packed onto the free cores of {_format_nodes(chosen)}{leaves}"


def _keep_together(nodes: Sequence[_NumaNode], n_cores: int) -> tuple[Sequence[_NumaNode], str]:
    fitting = [node for node in nodes if len(node.free) >= n_cores]
    if not fitting:
        short = f"no memory node has {format_count(n_cores, 'free core')}"
        return nodes, f"network-bound, and {short}: on {_format_nodes(nodes)}"
    best = min(fitting, key=lambda node: (len(node.neighbours), len(node.free), node.id))
    return [best], f"network-bound: together on {_format_nodes([best])}"


def _format_names(neighbours: Iterable[Neighbour]) -> str:
    return ", ".join(sorted({repr(neighbour.name) for neighbour in neighbours}))


def _format_node_neighbours(nodes: Iterable[_NumaNode], *, but: Sequence[_NumaNode] = ()) -> str:
    return _format_names(neighbour for node in nodes if node not in but for neighbour in node.neighbours) or "others"


def _format_nodes(nodes: Iterable[_NumaNode]) -> str:
    return format_numbered("memory node", sorted(node.id for node in nodes))
