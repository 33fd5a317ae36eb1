"""What may be tried: how a budget of cores is cut into instances, where they run, their threads and their batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from scanflow.app.quantities import counted
from scanflow.app.resources import AffinityMode
from scanflow.backends.service_records import Shape
from scanflow.errors import InvalidError
from scanflow.placement.granularity import cut
from scanflow.placement.place import Grant, place
from scanflow.placement.topology import Topology

AFFINITIES: tuple[AffinityMode, ...] = ("any", "cpu", "cpumem", "cpumempin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to serve."""

    instances: int
    cores: float
    """Of one instance."""

    affinity: AffinityMode = "any"
    threads: int | None = None
    """In each of an instance's pools; None: one for each core."""

    batch: int | None = None
    """Requests that an instance answers in one call at most; None: as the workflow says."""


Placed = tuple[object, ...]
"""What of a candidate makes a difference: two that are placed alike are one."""

Options = Callable[[Candidate], list[Candidate]]
"""The candidates that differ from one in a single dimension."""


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """Candidates that this machine has room for."""

    topology: Topology
    cores: int
    """The budget: S_cpu of equation 4.1. Every candidate uses all of it."""

    beside: tuple[Grant, ...] = ()
    """What other services hold."""

    batches: tuple[int, ...] = ()
    """Sizes of batches to try; none: batches are left as they are."""

    affinities: tuple[AffinityMode, ...] = AFFINITIES

    _known: dict[Candidate, Placed | None] = field(default_factory=dict, repr=False, compare=False)

    def placed(self, one: Candidate) -> Placed | None:
        """Return what a candidate's instances are granted; None: it has no room, or cannot be cut so."""
        if one not in self._known:
            self._known[one] = self._place(one)
        return self._known[one]

    def _place(self, one: Candidate) -> Placed | None:
        threads = one.threads or max(1, round(one.cores))
        pinned = threads if one.affinity == "cpumempin" else None
        try:
            grants = place(self.topology, one.instances, one.cores, one.affinity, beside=self.beside, n_threads=pinned)
        except InvalidError:
            return None
        # Memory from all nodes is memory from anywhere, and threads that have one CPU are pinned to it already.
        nodes = frozenset(self.topology.memory_nodes)
        granted = sorted((grant.cpus, () if nodes <= {*grant.memory_nodes} else grant.memory_nodes) for grant in grants)
        return (tuple(granted), pinned if one.cores > 1 else None, threads, one.batch)

    @property
    def dimensions(self) -> tuple[Options, ...]:
        """In order of what they are worth by the thesis (4.4): granularity, affinity, threads, then batches."""
        return (self._granularities, self._affinities, self._threads, self._batches)

    def _granularities(self, like: Candidate) -> list[Candidate]:
        """Equation 4.1: the budget divided evenly, as a service's instances are alike. Threads follow the cores."""
        return self._possible(
            replace(like, instances=count, cores=cut(count, cores=self.cores)[0].cores, threads=None)
            for count in range(1, self.cores + 1)
            if self.cores % count == 0
        )

    def neighbours(self, like: Candidate) -> list[Candidate]:
        """Return the next coarser and the next finer granularity, with all else as it is."""
        granularities = self._granularities(like)
        counts = sorted({one.instances for one in granularities} | {like.instances})
        place = counts.index(like.instances)
        near = {*counts[max(0, place - 1) : place], *counts[place + 1 : place + 2]}
        return [one for one in granularities if one.instances in near]

    def _affinities(self, like: Candidate) -> list[Candidate]:
        return self._possible(replace(like, affinity=affinity) for affinity in self.affinities)

    def _threads(self, like: Candidate) -> list[Candidate]:
        """One for each core, and half as many: hyper-threads share what computes."""
        halves = [int(like.cores) // 2] if like.cores >= 2 else []
        return self._possible(replace(like, threads=threads) for threads in (None, *halves))

    def _batches(self, like: Candidate) -> list[Candidate]:
        return self._possible(replace(like, batch=batch) for batch in ((None, *self.batches) if self.batches else ()))

    def _possible(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Return those that have room, each once: of two that are placed alike the first."""
        found: dict[Placed, Candidate] = {}
        for one in candidates:
            if (placed := self.placed(one)) is not None:
                found.setdefault(placed, one)
        return list(found.values())

    @cached_property
    def whole(self) -> list[Candidate]:
        """Every candidate: what an exhaustive search would measure."""
        found = [Candidate(instances=1, cores=float(self.cores))]
        for options in self.dimensions:
            found = self._possible([*found, *(two for one in found for two in options(one))])
        return found


def candidate_of(shape: Shape, cores: float) -> Candidate:
    """Return a service as it is. ``cores``: what its instances may use together where its shape does not say."""
    count = max(1, shape.instances)
    each = cores / count if shape.cores is None else shape.cores
    return Candidate(instances=count, cores=each, affinity=shape.affinity, threads=shape.pool_threads)


def describe(one: Candidate) -> str:
    """Return ``2 × 1 core, cpu``."""
    cores = f"{one.cores:g} core{'' if one.cores == 1 else 's'}"
    threads = "" if one.threads is None else f", {counted(one.threads, 'thread')}"
    batch = "" if one.batch is None else f", batches of {one.batch}"
    return f"{one.instances} × {cores}, {one.affinity}{threads}{batch}"
