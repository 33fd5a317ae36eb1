"""Joint planning: which CPUs an MPI job takes beside services and other jobs, by what bounds it. Pure.

A service answers as slowly as what is beside it makes it. A job that memory bounds is spread over memory nodes where no
service is, as it takes bandwidth from all that is on its node; one that computes is packed onto the free cores beside
services, which leaves other nodes to others; one that the network bounds stays together on one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from scanflow.app.mpi import MPIProfile
from scanflow.app.quantities import counted
from scanflow.placement.cpulist import numbered
from scanflow.placement.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A service or a job that holds CPUs."""

    name: str
    cpus: tuple[int, ...]
    service: bool = True
    profile: MPIProfile | None = None
    """What bounds it, of a job. None: it is not known."""

    @property
    def shares_badly(self) -> bool:
        """Whether it loses, or takes, much where the memory is shared: services, and jobs that memory may bound."""
        return self.service or self.profile in {None, "memory"}


class CpuChoice(NamedTuple):
    cpus: tuple[int, ...]
    reason: str | None = None
    """Why; None: nobody else is there."""


class _MemoryNode(NamedTuple):
    id: int
    free: list[int]
    beside: list[Neighbour]


def cpus_beside(
    topology: Topology,
    *,
    cores: float,
    profile: MPIProfile | None,
    neighbours: Iterable[Neighbour],
    oversubscribe: bool = False,
) -> CpuChoice:
    """Return the CPUs that a job may have.

    Those of others are taken only where it has not enough without them; a job whose tasks may share cores then has what
    is free instead. A sibling of a service's CPU counts as free where cores are short.

    Args:
        topology: This machine.
        cores: What the job asks for.
        profile: What bounds it; where that is not known, it is taken for memory.
        neighbours: Who holds which CPUs.
        oversubscribe: Whether its tasks may share cores.
    """
    everything = topology.effective_cpus
    others = [one for one in neighbours if set(one.cpus) & set(everything)]
    if not others:
        return CpuChoice(everything)
    held = {cpu for one in others for cpu in one.cpus}
    wanted, names = max(1, ceil(cores - 1e-9)), _names(others)
    free = [cpu for cpu in everything if cpu not in held]
    if not free or (len(free) < wanted and not oversubscribe):
        has = f"{counted(len(free), 'core')} of {wanted} that it asks for {'is' if len(free) == 1 else 'are'} free"
        return CpuChoice(everything, f"{has}: it shares cores with {names}")
    if len(free) < wanted:
        return CpuChoice(tuple(free), f"its tasks share {numbered('CPU', free)}, which {names} leave free")
    served = {cpu for one in others if one.service for cpu in one.cpus}
    whole = [cpu for cpu in free if served.isdisjoint(topology.core_of[cpu].cpus)]
    free = whole if len(whole) >= wanted else free
    nodes = [
        _MemoryNode(
            node.id,
            [cpu for cpu in free if cpu in node.cpus],
            [one for one in others if set(one.cpus) & set(node.cpus)],
        )
        for node in topology.nodes
    ]
    nodes = [node for node in nodes if node.free]
    chosen, why = _chosen(nodes, wanted, profile)
    return CpuChoice(tuple(sorted(cpu for node in chosen for cpu in node.free)), why)


def _chosen(nodes: Sequence[_MemoryNode], wanted: int, profile: MPIProfile | None) -> tuple[Sequence[_MemoryNode], str]:
    if profile == "cpu":
        return _packed(nodes, wanted)
    if profile == "network":
        return _together(nodes, wanted)
    return _spread(nodes, wanted, "memory bounds it" if profile == "memory" else "what bounds it is not known")


def _spread(nodes: Sequence[_MemoryNode], wanted: int, why: str) -> tuple[Sequence[_MemoryNode], str]:
    quiet = [node for node in nodes if not any(one.shares_badly for one in node.beside)]
    if sum(len(node.free) for node in quiet) >= wanted:
        return quiet, f"{why}: spread over {_places(quiet)}, away from {_beside(nodes, but=quiet)}"
    there = "there is one memory node" if len(nodes) == 1 else "no others have the cores"
    return nodes, f"{why}, and {there}: it shares memory with {_beside(nodes)}, on cores of its own"


def _packed(nodes: Sequence[_MemoryNode], wanted: int) -> tuple[Sequence[_MemoryNode], str]:
    chosen: list[_MemoryNode] = []
    for node in sorted(nodes, key=lambda node: (not node.beside, len(node.free), node.id)):
        if sum(len(one.free) for one in chosen) < wanted:
            chosen.append(node)
    left = [node for node in nodes if node not in chosen]
    leaves = f", which leaves {_places(left)} to others" if left else ""
    return chosen, f"the CPU bounds it: packed onto the free cores of {_places(chosen)}{leaves}"


def _together(nodes: Sequence[_MemoryNode], wanted: int) -> tuple[Sequence[_MemoryNode], str]:
    fitting = [node for node in nodes if len(node.free) >= wanted]
    if not fitting:
        short = f"no memory node has {counted(wanted, 'free core')}"
        return nodes, f"the network bounds it, and {short}: on {_places(nodes)}"
    best = min(fitting, key=lambda node: (len(node.beside), len(node.free), node.id))
    return [best], f"the network bounds it: together on {_places([best])}"


def _names(neighbours: Iterable[Neighbour]) -> str:
    return ", ".join(sorted({repr(one.name) for one in neighbours}))


def _beside(nodes: Iterable[_MemoryNode], *, but: Sequence[_MemoryNode] = ()) -> str:
    return _names(one for node in nodes if node not in but for one in node.beside) or "others"


def _places(nodes: Iterable[_MemoryNode]) -> str:
    return numbered("memory node", sorted(node.id for node in nodes))
