"""Analyses a program's runs on more and more cores, and with less and less memory. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scanflow.characterization.measurement import ProgramRun, SizedRun
from scanflow.placement.device_cuts import DeviceBudget, Gpus

Scaling = Literal["linear", "sublinear", "flat", "collapse"]

NEARLY = 0.9
"""A speed of at least this share of the best counts as equally good: more cores are not worth the difference."""

EFFICIENT = 0.75
"""Scaling counts as linear at this share of the speed that all cores would give."""

PRECISION = 1.06
"""The search for the knee ends when the upper bound is at most this multiple of the lower one."""

MAX_LIMITS = 10
"""Maximum number of memory limits that are tried."""

SPARE = 1.2
"""The recommended memory as a multiple of the knee: inputs and allocators differ."""

_UNIT = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """How speed follows a number: of cores, of ranks, of instances that share a GPU, or of requests in a batch."""

    kind: Scaling
    """``linear``: more cores help in proportion. ``sublinear``: they help less. ``flat``: from some number on they
    do not help. ``collapse``: with more cores it becomes slower again, because of contention for caches or memory
    (Wang et al., Table 4)."""

    enough: int
    """The smallest number of cores at which the program is nearly as fast as possible."""

    speed: Mapping[int, float]
    """Speed by number of cores, relative to the smallest number."""


def classify_saturation(seconds: Mapping[int, Sequence[float]]) -> Saturation:
    """Classify how a program's speed scales with its cores, from its running times with each number of them."""
    if not seconds or not all(seconds.values()):
        raise ValueError("Each number of cores needs a run that succeeded.")
    took = {cores: statistics.median(times) for cores, times in sorted(seconds.items())}
    first, most = min(took), max(took)
    speed = {cores: took[first] / median_s for cores, median_s in took.items()}
    best = max(speed.values())
    enough = min(cores for cores, ratio in speed.items() if ratio >= NEARLY * best)
    if speed[most] < NEARLY * best:
        kind: Scaling = "collapse"
    elif enough < most:
        kind = "flat"
    else:
        kind = "linear" if speed[most] >= EFFICIENT * most / first else "sublinear"
    return Saturation(kind=kind, enough=enough, speed=speed)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKnee:
    """The program runs with ``enough`` bytes, and is killed with ``too_few``; 0: it never was."""

    enough: int
    too_few: int


def choose_next_limit(peak_bytes: int, tried: Mapping[int, bool]) -> int | None:
    """Choose the next memory limit to try, in bytes; None: the knee is known precisely enough.

    ``tried``: of each limit whether the program succeeded with it. First what it used at its peak, then halves of that,
    until it is killed; then between.
    """
    if len(tried) >= MAX_LIMITS:
        return None
    good = [limit for limit, fine in tried.items() if fine]
    bad = [limit for limit, fine in tried.items() if not fine]
    if not good:
        return _round_up(peak_bytes * 1.1 if not bad else max(bad) * 1.5)
    if not bad:
        below = _round_up(min(good) / 2)
        return below if below < min(good) and min(good) > 2 * _choose_unit(peak_bytes) else None
    low, high = max(bad), min(good)
    middle = _round_up(math.sqrt(low * high))
    return None if high <= PRECISION * low or middle in tried or not low < middle < high else middle


def find_knee(tried: Mapping[int, bool]) -> MemoryKnee | None:
    """Return the lowest limit that suffices and the highest that does not; None: it succeeded with none."""
    good = [limit for limit, fine in tried.items() if fine]
    if not good:
        return None
    return MemoryKnee(enough=min(good), too_few=max((limit for limit, fine in tried.items() if not fine), default=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRecommendation:
    """Recommended resources, in the notation of ``sf.Resources``."""

    cpu: float
    memory_bytes: int
    gpu: Gpus = 0
    gpu_memory_bytes: int | None = None

    def __str__(self) -> str:
        gpu = f", gpu={self.gpu!r}" if self.gpu else ""
        if self.gpu_memory_bytes is not None:
            gpu += f', gpu_memory="{self.gpu_memory_bytes // 2**20}Mi"'
        return f'sf.Resources(cpu={self.cpu:g}, memory="{self.memory_bytes // 2**20}Mi"{gpu})'


def recommend(
    scaling: Saturation, runs: Sequence[ProgramRun | SizedRun], memory: MemoryKnee | None
) -> ResourceRecommendation:
    """Recommend resources: the cores at which the program is nearly fastest, or those it uses, if fewer; and its memory
    with a margin. ``runs``: the runs with that many cores."""
    used = statistics.median(run.cores for run in runs)
    cpu = float(scaling.enough) if used > 0.8 * scaling.enough else max(0.1, math.ceil(used * 10) / 10)
    peak = max(run.peak_bytes for run in runs)
    return ResourceRecommendation(cpu=cpu, memory_bytes=add_spare(peak if memory is None else memory.enough))


def add_spare(size: int) -> int:
    """Return the memory to request for a use of ``size`` bytes."""
    return max(1, math.ceil(SPARE * size / _UNIT)) * _UNIT


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """How much a service gets from its GPUs."""

    by_instances: Saturation
    """Speed by the number of instances that share them."""

    by_batch: Saturation
    """Speed of one instance by the most requests in a batch."""

    limits: Mapping[int, bool]
    """Of each limit of its GPU memory in bytes, whether an instance answered all requests with it."""

    knee: MemoryKnee | None
    """None: its memory cannot be limited or seen here."""

    instances: int
    """How many to run: the fewest that are nearly as fast as possible, of those that fit."""


def choose_instances(speed: Saturation, budget: DeviceBudget, default: Gpus) -> tuple[int, Gpus]:
    """Choose the fewest instances that are nearly as fast as possible, and what each gets of the budget's GPUs; fewer,
    if so many do not fit; one with ``default``, if none fit."""
    counts = sorted((count for count in speed.speed if count <= speed.enough), reverse=True)
    cuts = ((count, gpu) for count in counts for gpu in budget.list_possible_cuts(count)[:1])
    return next(cuts, (1, default))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowCharacterization:
    """What was measured of a service or an MPI job at several sizes."""

    name: str
    unit: str
    """What ``seconds`` measures: a request or a run."""

    runs: Mapping[str, tuple[SizedRun, ...]]
    """By size: ``1 instance × 2 cores``, ``2 ranks``."""

    saturation: Saturation
    recommendation: ResourceRecommendation
    missing: tuple[str, ...] = ()
    device: DeviceUsage | None = None
    """What was measured of its GPUs; None: it asks for none."""


def compute_median_seconds(runs: Sequence[SizedRun]) -> float:
    return statistics.median(run.seconds for run in runs)


def _choose_unit(peak_bytes: int) -> int:
    """Return the step between limits to try: at least 1 MiB, and about a hundredth of the peak."""
    return int(max(2**20, 2 ** int(math.log2(max(2, peak_bytes / 100)))))


def _round_up(size: float) -> int:
    return max(2**20, math.ceil(size / 2**16) * 2**16)
