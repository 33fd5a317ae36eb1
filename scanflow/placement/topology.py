"""A machine's topology: sockets, NUMA nodes, cores with their siblings, caches, and the usable part.

A *CPU* is what the kernel numbers; a *core* has one CPU or, with SMT (hyper-threading), several: its siblings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from scanflow.app.model import Model, Number, Whole, as_tuple, shorten
from scanflow.errors import InvalidError, NotFoundError
from scanflow.placement.cpulist import MAX_CPU, format_cpus, parse_cpus

__all__ = ["Cache", "Core", "NumaNode", "Topology", "load", "save", "uniform"]


def _as_cpus(value: Any) -> Any:
    if isinstance(value, str):
        return parse_cpus(value)
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        numbers = list(value)
        if all(type(number) is int and 0 <= number <= MAX_CPU for number in numbers):
            return tuple(sorted(set(numbers)))
    raise InvalidError(f"{shorten(value)} is not a list of CPUs. Write it as in '0-3,8'.")


Cpus = Annotated[tuple[int, ...], BeforeValidator(_as_cpus), PlainSerializer(format_cpus, return_type=str)]
"""Numbers of CPUs or nodes, sorted and without duplicates; written as ``"0-3,8"``."""


class Cache(Model):
    """A cache of the processor, and the CPUs that share it."""

    level: Whole = Field(ge=1, le=9)
    """1 to 9; 1 is next to the core."""

    cpus: Cpus = Field(min_length=1)
    """The CPUs that share it."""

    size_bytes: Whole | None = Field(default=None, ge=0)
    """Its size. None: unknown."""


class Core(Model):
    """A physical core."""

    cpus: Cpus = Field(min_length=1)
    """Its CPUs that are online: one, or with SMT its siblings."""

    socket: Whole = Field(default=0, ge=0)
    """The number of its socket."""

    tier: Whole = Field(default=0, ge=0)
    """0: the fastest cores of this machine; 1: the next, such as the efficiency cores of a hybrid machine."""


class NumaNode(Model):
    """Memory and the CPUs near it; one of the two may be missing."""

    id: Whole = Field(default=0, ge=0)
    """Its number."""

    cpus: Cpus = ()
    """The CPUs near it."""

    memory_bytes: Whole | None = Field(default=None, ge=0)
    """None: unknown."""

    distances: Annotated[tuple[Whole, ...], BeforeValidator(as_tuple)] = ()
    """Distances to all nodes of the machine, in their order; 10 is itself. None: unknown."""


class Topology(Model):
    """A machine: its cores, caches, NUMA nodes, and what of it this process may use."""

    title: str = ""
    """A name for people."""

    cores: Annotated[tuple[Core, ...], BeforeValidator(as_tuple)]
    """The physical cores."""

    nodes: Annotated[tuple[NumaNode, ...], BeforeValidator(as_tuple)]
    """The NUMA nodes."""

    caches: Annotated[tuple[Cache, ...], BeforeValidator(as_tuple)] = ()
    """The caches, of all levels."""

    offline: Cpus = ()
    """CPUs that are switched off."""

    allowed: Cpus | None = None
    """CPUs that this process may run on: affinity mask and cpuset. None: all."""

    quota: Number | None = Field(default=None, gt=0)
    """Cores' worth of time. None: no limit."""

    allowed_nodes: Cpus | None = None
    """Nodes whose memory this process may use. None: all."""

    memory_limit_bytes: Whole | None = Field(default=None, gt=0)
    """The most memory that this process may use. None: no limit."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.cores or not self.nodes:
            raise InvalidError("A machine has at least one core and one node.")
        _check_once((core.cpus for core in self.cores), "in two cores")
        _check_once((node.cpus for node in self.nodes), "in two nodes")
        _check_once(((node.id,) for node in self.nodes), "the number of two nodes")
        online = set(self.cpus)
        if stray := {cpu for node in self.nodes for cpu in node.cpus} ^ online:
            raise InvalidError(f"CPU {min(stray)} must be in one core and in one node.")
        if any(set(cache.cpus) - online for cache in self.caches):
            raise InvalidError("A cache is shared by a CPU that belongs to no core.")
        if set(self.offline) & online:
            raise InvalidError(f"CPU {min(set(self.offline) & online)} cannot be both offline and in a core.")
        if not self.effective_cpus:
            raise InvalidError("No CPU may be used: 'allowed' names no CPU of a core.")
        if any(len(node.distances) not in {0, len(self.nodes)} for node in self.nodes):
            raise InvalidError("A node needs one distance for each node.")
        return self

    @cached_property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs that are online, sorted."""
        return tuple(sorted(cpu for core in self.cores for cpu in core.cpus))

    @cached_property
    def effective_cpus(self) -> tuple[int, ...]:
        """The CPUs that this process may run on, sorted."""
        return self.cpus if self.allowed is None else tuple(cpu for cpu in self.cpus if cpu in set(self.allowed))

    @property
    def effective_count(self) -> int:
        """The number of CPUs it may use: at most the quota, rounded up."""
        count = len(self.effective_cpus)
        return count if self.quota is None else max(1, min(count, math.ceil(self.quota)))

    @cached_property
    def sockets(self) -> tuple[int, ...]:
        """The numbers of the sockets, sorted."""
        return tuple(sorted({core.socket for core in self.cores}))

    @cached_property
    def ordered_cores(self) -> tuple[Core, ...]:
        """By socket and first CPU: the equations' numbering, ``s * P + k``, on equal sockets."""
        return tuple(sorted(self.cores, key=lambda core: (core.socket, core.cpus[0])))

    @cached_property
    def core_of(self) -> Mapping[int, Core]:
        """The core of each CPU."""
        return {cpu: core for core in self.cores for cpu in core.cpus}

    @cached_property
    def node_of(self) -> Mapping[int, NumaNode]:
        """The NUMA node of each CPU."""
        return {cpu: node for node in self.nodes for cpu in node.cpus}

    @property
    def threads_per_core(self) -> int:
        """The most CPUs that a core has."""
        return max(len(core.cpus) for core in self.cores)

    def cache_group(self, cpu: int, level: int) -> int | None:
        """Return the first CPU of those that share this CPU's cache of that level; None: no such cache is known."""
        return self._shared.get((level, cpu))

    @cached_property
    def _shared(self) -> Mapping[tuple[int, int], int]:
        return {(cache.level, cpu): cache.cpus[0] for cache in self.caches for cpu in cache.cpus}

    @cached_property
    def memory_nodes(self) -> tuple[int, ...]:
        """The nodes that have memory which this process may use."""
        having = [node.id for node in self.nodes if node.memory_bytes != 0] or [self.nodes[0].id]
        if self.allowed_nodes is None:
            return tuple(having)
        return tuple(node for node in having if node in self.allowed_nodes) or tuple(having)

    def list_nearest_memory(self, cpus: Iterable[int]) -> tuple[int, ...]:
        """Return the nodes whose memory is nearest to these CPUs: their own, or the nearest with memory."""
        return tuple(sorted({self._get_nearest(self.node_of[cpu]) for cpu in cpus}))

    def _get_nearest(self, node: NumaNode) -> int:
        if node.id in self.memory_nodes:
            return node.id
        distances = dict(zip((other.id for other in self.nodes), node.distances, strict=False))
        return min(self.memory_nodes, key=lambda other: (distances.get(other, 255), abs(other - node.id), other))

    @property
    def memory_bytes(self) -> int | None:
        """The usable memory: of all nodes, at most the cgroup's limit; None: neither is known."""
        sizes = [node.memory_bytes for node in self.nodes if node.memory_bytes is not None]
        amounts = [sum(sizes)] if sizes else []
        if self.memory_limit_bytes is not None:
            amounts.append(self.memory_limit_bytes)
        return min(amounts, default=None)


def _check_once(groups: Iterable[Sequence[int]], where: str) -> None:
    seen: set[int] = set()
    for group in groups:
        if twice := seen & set(group):
            raise InvalidError(f"{min(twice)} cannot be {where}.")
        seen.update(group)


def uniform(
    sockets: int = 1,
    cores_per_socket: int = 1,
    smt: int = 1,
    *,
    l3_group: int | None = None,
    nodes_per_socket: int = 1,
    adjacent: bool = False,
    memory_bytes: int = 64 * 2**30,
    title: str = "",
) -> Topology:
    """Return a machine whose sockets are all equal, for plans and tests.

    ``l3_group``: cores that share an L3 (None: all of a socket or, if smaller, of a node). ``adjacent``: siblings are
    0,1 rather than 0,36. ``memory_bytes``: of each node.
    """
    numbers = (sockets, cores_per_socket, smt, nodes_per_socket, 1 if l3_group is None else l3_group)
    if min(numbers) < 1 or cores_per_socket % nodes_per_socket:
        raise InvalidError(
            "All numbers of a machine must be whole and above zero, and the nodes must evenly divide a socket's cores."
        )
    total = sockets * cores_per_socket
    share = cores_per_socket // nodes_per_socket
    group = min(share, l3_group or share)

    def cpus(number: int) -> tuple[int, ...]:
        return tuple(number * smt + thread if adjacent else number + thread * total for thread in range(smt))

    def spanning(size: int) -> Iterable[tuple[int, ...]]:
        for node in range(sockets * nodes_per_socket):
            for first in range(node * share, (node + 1) * share, size):
                numbers = range(first, min(first + size, (node + 1) * share))
                yield tuple(sorted(cpu for number in numbers for cpu in cpus(number)))

    return Topology(
        title=title,
        cores=tuple(Core(cpus=cpus(number), socket=number // cores_per_socket) for number in range(total)),
        nodes=tuple(
            NumaNode(id=number, cpus=shared, memory_bytes=memory_bytes) for number, shared in enumerate(spanning(share))
        ),
        caches=(
            *(Cache(level=2, cpus=cpus(number), size_bytes=2**20) for number in range(total)),
            *(Cache(level=3, cpus=shared, size_bytes=group * 2**22) for shared in spanning(group)),
        ),
    )


def save(topology: Topology, path: Path) -> None:
    """Write a description to a JSON file, for :func:`load`."""
    try:
        path.write_text(topology.model_dump_json(indent=2, exclude_none=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidError(f"The description cannot be written to {str(path)!r}: {error.strerror}.") from error


def load(path: Path) -> Topology:
    """Read a description that :func:`save`, ``scanflow topology --json`` or a person wrote."""
    try:
        document = json.loads(path.read_bytes())
        description = document.get("topology", document)
        return Topology(**description)
    except OSError as error:
        raise NotFoundError(
            f"The description of a machine {str(path)!r} cannot be read: {error.strerror}. "
            "Write one on that machine: scanflow topology --save FILE"
        ) from error
    except (AttributeError, TypeError) as error:
        raise InvalidError(f"{str(path)!r} describes no machine: it has no object with 'cores' and 'nodes'.") from error
    except ValueError as error:  # an InvalidError is one, and so is what is wrong with JSON
        raise InvalidError(f"{str(path)!r} describes no machine: {error}") from error
