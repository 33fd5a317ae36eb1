"""Runs a program on more and more cores and with less and less memory, and says what it needs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from scanflow.app.quantities import counted
from scanflow.characterization.analysis import (
    MemoryKnee,
    ResourceRecommendation,
    Saturation,
    knee,
    next_limit,
    recommend,
    saturation,
)
from scanflow.characterization.measurement import Placement, ProgramRun
from scanflow.errors import InvalidError, StepFailedError
from scanflow.placement.place import place
from scanflow.placement.topology import Topology

_LAST_CACHE = 3
T = TypeVar("T")


class RunProgram(Protocol):
    def __call__(self, where: Placement, limit_bytes: int | None, /) -> ProgramRun: ...


@dataclass(frozen=True, kw_only=True)
class Characterization:
    """What was measured, and what follows from it."""

    runs: Mapping[Placement, tuple[ProgramRun, ...]]
    limits: Mapping[int, ProgramRun]
    """By memory limit, in bytes; none: memory cannot be limited here, or it was not asked for."""

    saturation: Saturation
    knee: MemoryKnee | None
    recommendation: ResourceRecommendation
    missing: tuple[str, ...] = ()
    """What this machine does not count or limit."""


def core_counts(machine: Topology) -> list[int]:
    """Return 1, 2, 4 … and all."""
    most, counts = machine.effective_count, [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return sorted({*counts, most})


def placements(machine: Topology, counts: Sequence[int]) -> list[Placement]:
    """Return where a program runs with so many cores: in one last cache, as far as that has room, and where there are
    several, in as many of them as can be (Wang et al., Table 4)."""
    found = []
    for count in counts:
        if not 1 <= count <= machine.effective_count:
            raise InvalidError(f"{count} cores are not there: this machine has {machine.effective_count}. Say others.")
        (near,) = place(machine, 1, count, "cpu", order="together")
        far = _separate(machine, count)
        if far is None or set(far) == set(near.cpus):
            found.append(Placement(cpus=near.cpus))
        else:
            found += [Placement(cpus=near.cpus, caches="shared"), Placement(cpus=far, caches="separate")]
    return found


def _separate(machine: Topology, count: int) -> tuple[int, ...] | None:
    """Return CPUs of different cores, from each last cache in turn; None: there is one cache, or one CPU."""
    groups: dict[int | None, list[int]] = {}
    usable = set(machine.effective_cpus)
    for core in machine.ordered_cores:
        cpu = next((cpu for cpu in core.cpus if cpu in usable), None)
        if cpu is not None:
            groups.setdefault(machine.cache_group(cpu, _LAST_CACHE), []).append(cpu)
    if len(groups) < 2 or count < 2:
        return None
    turns = [
        cpu for row in range(max(map(len, groups.values()))) for one in groups.values() for cpu in one[row : row + 1]
    ]
    return tuple(sorted(turns[:count])) if len(turns) >= count else None


def characterize(
    run: RunProgram,
    where: Sequence[Placement],
    *,
    rounds: int = 3,
    search_memory: bool = True,
    missing: Sequence[str] = (),
    observe: Callable[[str], None] = lambda _text: None,
) -> Characterization:
    """Run a program on each placement in turn, ``rounds`` times, and then with limits of its memory.

    Raises:
        StepFailedError: it fails, or does not end, with all the memory that there is.
    """
    runs: dict[Placement, list[ProgramRun]] = {one: [] for one in where}
    for turn in range(rounds):
        for one in rotate(where, turn):
            observe(f"round {turn + 1} of {rounds}: {describe_placement(one)}")
            found = run(one, None)
            if found.outcome != "succeeded":
                raise StepFailedError(_why(found, one))
            runs[one].append(found)
    best = _best_of_each(runs)
    scaling = saturation({count: [each.seconds for each in runs[one]] for count, one in best.items()})
    mine = runs[best[scaling.cores]]
    limits = _limits(run, best[scaling.cores], mine, observe) if search_memory else {}
    bound = knee({limit: one.outcome == "succeeded" for limit, one in limits.items()})
    return Characterization(
        runs={one: tuple(several) for one, several in runs.items()},
        limits=limits,
        saturation=scaling,
        knee=bound,
        recommendation=recommend(scaling, mine, bound),
        missing=tuple(missing),
    )


def rotate(measured: Sequence[T], turn: int) -> list[T]:
    """Return what is measured in turn with another one first each time, so that what drifts falls on each."""
    shift = turn % len(measured)
    return [*measured[shift:], *measured[:shift]]


def describe_placement(one: Placement) -> str:
    """Return ``2 cores, separate caches``."""
    return f"{counted(len(one.cpus), 'core')}{f', {one.caches} caches' if one.caches else ''}"


def _best_of_each(runs: Mapping[Placement, Sequence[ProgramRun]]) -> dict[int, Placement]:
    """Return the placement that is quickest, by number of cores."""
    found: dict[int, Placement] = {}
    for one in sorted(runs, key=lambda one: statistics.median(each.seconds for each in runs[one])):
        found.setdefault(len(one.cpus), one)
    return dict(sorted(found.items()))


def _limits(
    run: RunProgram, where: Placement, free: Sequence[ProgramRun], observe: Callable[[str], None]
) -> dict[int, ProgramRun]:
    peak = max(one.peak_bytes for one in free)
    found: dict[int, ProgramRun] = {}
    while (limit := next_limit(peak, {one: ran.outcome == "succeeded" for one, ran in found.items()})) is not None:
        observe(f"with {limit / 2**20:.0f} MiB of memory")
        found[limit] = run(where, limit)
    return dict(sorted(found.items(), reverse=True))


def _why(found: ProgramRun, one: Placement) -> str:
    if found.outcome == "timed out":
        took = f"{found.seconds:.0f} s"
        return f"The program did not end within {took} on {describe_placement(one)}. Give it longer: --timeout 1h"
    last = f" It wrote last: {found.last_lines}" if found.last_lines else ""
    return f"The program {found.outcome} on {describe_placement(one)}, exit code {found.exit_code}.{last}"
