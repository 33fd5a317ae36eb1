"""The search space: how a budget of cores and GPUs is divided into instances, their affinity, threads and batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple, get_args

from scanflow.app.quantities import format_cores, format_count
from scanflow.app.resources import MIN_GPU_SHARE, AffinityMode
from scanflow.backends.service_records import Shape
from scanflow.errors import InvalidError
from scanflow.placement.device_cuts import DeviceBudget, Gpus
from scanflow.placement.granularity import cut
from scanflow.placement.place import Grant, place
from scanflow.placement.topology import Topology

AFFINITIES: tuple[AffinityMode, ...] = get_args(AffinityMode)
_USUAL_CUTS: Final = (1, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One configuration of a service."""

    instances: int
    cores: float
    """Cores of one instance."""

    gpu: Gpus = 0
    """GPUs of one instance."""

    affinity: AffinityMode = "any"
    threads: int | None = None
    """Threads in each of an instance's pools; None: one for each core."""

    batch: int | None = None
    """Maximum number of requests that an instance answers in one call; None: the workflow's."""


class RefusedCut(NamedTuple):
    """A cut of the GPUs that is no candidate."""

    instances: int
    gpu: Gpus
    reason: str

    def __str__(self) -> str:
        return f"{self.instances} × gpu={self.gpu}: {self.reason}"


PlacementKey = tuple[object, ...]
"""The properties that distinguish candidates: two candidates with the same placement are one."""

Options = Callable[[Candidate], list[Candidate]]
"""Returns the candidates that differ from one in a single dimension."""


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """The candidates that fit."""

    topology: Topology | None
    """The topology of this machine; None: a cluster, which places the instances itself. A candidate that does not
    fit fails."""

    cores: int
    """The budget: S_cpu of equation 4.1. Every candidate uses all of it."""

    beside: tuple[Grant, ...] = ()
    """The grants of other services."""

    batches: tuple[int, ...] = ()
    """Batch sizes to try; empty: batching is unchanged."""

    affinities: tuple[AffinityMode, ...] = AFFINITIES
    gpus: DeviceBudget | None = None
    """The budget of GPUs; None: it asks for none."""

    _placements: dict[Candidate, PlacementKey | None] = field(default_factory=dict, repr=False, compare=False)

    def find_placement(self, candidate: Candidate) -> PlacementKey | None:
        """Return the placement of a candidate's instances; None if they do not fit."""
        if candidate not in self._placements:
            self._placements[candidate] = self._compute_placement_key(candidate)
        return self._placements[candidate]

    def _compute_placement_key(self, candidate: Candidate) -> PlacementKey | None:
        if (self.gpus is None) == bool(candidate.gpu):
            return None
        if self.gpus is not None and self.gpus.explain_refusal(candidate.instances, candidate.gpu):
            return None
        threads = candidate.threads or max(1, round(candidate.cores))
        if self.topology is None:
            if candidate.affinity != "any" and candidate.cores % 1:
                return None  # a kubelet gives whole cores only
            return (candidate.instances, candidate.cores, candidate.gpu, candidate.affinity, threads, candidate.batch)
        pinned = threads if candidate.affinity == "cpumempin" else None
        try:
            grants = place(
                self.topology,
                candidate.instances,
                candidate.cores,
                candidate.affinity,
                beside=self.beside,
                n_threads=pinned,
            )
        except InvalidError:
            return None
        # Memory from all nodes is memory from anywhere, and threads that have one CPU are pinned to it already.
        nodes = frozenset(self.topology.memory_nodes)
        granted = sorted((grant.cpus, () if nodes <= {*grant.memory_nodes} else grant.memory_nodes) for grant in grants)
        return (tuple(granted), candidate.gpu, pinned if candidate.cores > 1 else None, threads, candidate.batch)

    @property
    def dimensions(self) -> tuple[Options, ...]:
        """The dimensions in the order of their effect in the thesis (4.4): granularity, affinity, threads, then
        batches."""
        return (self._vary_granularity, self._vary_affinity, self._vary_threads, self._vary_batch)

    def _vary_granularity(self, like: Candidate) -> list[Candidate]:
        """Vary the granularity by equation 4.1: the budget is divided evenly. Threads follow the cores."""
        return self._filter_possible(
            replace(like, instances=count, cores=cut(count, cores=self.cores)[0].cores, gpu=gpu, threads=None)
            for count in self._list_counts()
            for gpu in self.list_gpus(count)
        )

    def _list_counts(self) -> list[int]:
        return [count for count in range(1, self.cores + 1) if self.cores % count == 0]

    def list_gpus(self, instances: int) -> list[Gpus]:
        """Return what each of so many instances can get of the GPUs: several, where a GPU is cut into parts."""
        return [0] if self.gpus is None else self.gpus.list_cuts(instances)

    @property
    def refused_cuts(self) -> list[RefusedCut]:
        """The cuts of the GPUs that are no candidates, with the reasons; halves and quarters among them."""
        if self.gpus is None:
            return []
        refused = []
        for count in sorted({*self._list_counts(), *_USUAL_CUTS}):
            for gpu in self.gpus.list_cuts(count) or [self.gpus.gpus / count]:
                reason = self._explain_refusal(count, gpu)
                refused += [RefusedCut(count, gpu, reason)] if reason else []
        return refused

    def _explain_refusal(self, instances: int, gpu: Gpus) -> str:
        """Return why a cut of the GPUs is no candidate; empty: it is one."""
        assert self.gpus is not None
        if not self.gpus.list_cuts(instances):
            return f"neither whole GPUs nor shares of at least {MIN_GPU_SHARE:g} each."
        if self.cores % instances:
            cores = math.ceil(self.cores / instances) * instances
            return f"{format_cores(self.cores)} cannot be divided by {instances}. Give more: --cores {cores}"
        return self.gpus.explain_refusal(instances, gpu)

    def list_neighbours(self, like: Candidate) -> list[Candidate]:
        """Return the next coarser and the next finer granularity, with all else unchanged."""
        granularities = self._vary_granularity(like)
        counts = sorted({candidate.instances for candidate in granularities} | {like.instances})
        place = counts.index(like.instances)
        near = {*counts[max(0, place - 1) : place], *counts[place + 1 : place + 2]}
        return [candidate for candidate in granularities if candidate.instances in near]

    def _vary_affinity(self, like: Candidate) -> list[Candidate]:
        return self._filter_possible(replace(like, affinity=affinity) for affinity in self.affinities)

    def _vary_threads(self, like: Candidate) -> list[Candidate]:
        """Vary the threads: one for each core, and half as many, because hyper-threads share execution units."""
        halves = [int(like.cores) // 2] if like.cores >= 2 else []
        return self._filter_possible(replace(like, threads=threads) for threads in (None, *halves))

    def _vary_batch(self, like: Candidate) -> list[Candidate]:
        return self._filter_possible(
            replace(like, batch=batch) for batch in ((None, *self.batches) if self.batches else ())
        )

    def _filter_possible(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Return the candidates that fit, and of several with the same placement the first."""
        possible: dict[PlacementKey, Candidate] = {}
        for candidate in candidates:
            if (placement := self.find_placement(candidate)) is not None:
                possible.setdefault(placement, candidate)
        return list(possible.values())

    @cached_property
    def whole(self) -> list[Candidate]:
        """Return every candidate: those that an exhaustive search would measure."""
        candidates = self._vary_granularity(Candidate(instances=1, cores=float(self.cores)))
        for options in self.dimensions:
            candidates = self._filter_possible(
                [*candidates, *(option for candidate in candidates for option in options(candidate))]
            )
        return candidates

    def list_alternatives(self, default: Candidate) -> list[Candidate]:
        """Return every candidate that is placed unlike a service's current one."""
        return [candidate for candidate in self.whole if self.find_placement(candidate) != self.find_placement(default)]


def build_candidate(shape: Shape, cores: float) -> Candidate:
    """Build the candidate of a deployed service. ``cores``: those of all its instances, if its shape has none."""
    count = max(1, shape.instances)
    each = cores / count if shape.cores is None else shape.cores
    return Candidate(instances=count, cores=each, gpu=shape.gpu, affinity=shape.affinity, threads=shape.pool_threads)


def describe(candidate: Candidate) -> str:
    """Return ``2 × 1 core, cpu`` or ``2 × 1 core, gpu=0.5, cpu``."""
    gpu = f", gpu={candidate.gpu}" if candidate.gpu else ""
    threads = "" if candidate.threads is None else f", {format_count(candidate.threads, 'thread')}"
    batch = "" if candidate.batch is None else f", batches of {candidate.batch}"
    return f"{candidate.instances} × {format_cores(candidate.cores)}{gpu}, {candidate.affinity}{threads}{batch}"
