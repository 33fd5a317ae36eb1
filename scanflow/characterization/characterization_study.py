"""Characterizes a program: runs it on more and more cores and with less and less memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from scanflow.app.quantities import format_count
from scanflow.characterization.analysis import (
    MemoryKnee,
    ResourceRecommendation,
    Saturation,
    choose_next_limit,
    classify_saturation,
    find_knee,
    recommend,
)
from scanflow.characterization.measurement import Placement, ProgramRun
from scanflow.errors import InvalidError, StepFailedError
from scanflow.placement.cpu_order import interleave
from scanflow.placement.place import place
from scanflow.placement.topology import Topology

_LAST_CACHE = 3
T = TypeVar("T")


class RunProgram(Protocol):
    def __call__(self, where: Placement, limit_bytes: int | None, /) -> ProgramRun: ...


@dataclass(frozen=True, kw_only=True)
class Characterization:
    """The runs of a program, and the conclusions from them."""

    runs: Mapping[Placement, tuple[ProgramRun, ...]]
    limits: Mapping[int, ProgramRun]
    """Runs by memory limit in bytes; empty: memory cannot be limited here, or was not requested."""

    saturation: Saturation
    knee: MemoryKnee | None
    recommendation: ResourceRecommendation
    missing: tuple[str, ...] = ()
    """The quantities that this machine cannot count or limit."""


def choose_core_counts(machine: Topology) -> list[int]:
    """Return 1, 2, 4 … and the number of all cores."""
    most, counts = machine.effective_count, [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return sorted({*counts, most})


def choose_placements(machine: Topology, counts: Sequence[int]) -> list[Placement]:
    """Choose placements for these numbers of cores: in one last-level cache, as far as it has room, and where there are
    several, spread over as many as possible (Wang et al., Table 4)."""
    chosen = []
    for count in counts:
        if not 1 <= count <= machine.effective_count:
            raise InvalidError(
                f"{count} cores are not available: this machine has {machine.effective_count}. Choose other numbers."
            )
        (near,) = place(machine, 1, count, "cpu", order="together")
        far = _spread_over_caches(machine, count)
        if far is None or set(far) == set(near.cpus):
            chosen.append(Placement(cpus=near.cpus))
        else:
            chosen += [Placement(cpus=near.cpus, caches="shared"), Placement(cpus=far, caches="separate")]
    return chosen


def _spread_over_caches(machine: Topology, count: int) -> tuple[int, ...] | None:
    """Return CPUs of different cores, from each last cache in turn; None: there is one cache, or one CPU."""
    groups: dict[int | None, list[int]] = {}
    usable = set(machine.effective_cpus)
    for core in machine.ordered_cores:
        cpu = next((cpu for cpu in core.cpus if cpu in usable), None)
        if cpu is not None:
            groups.setdefault(machine.cache_group(cpu, _LAST_CACHE), []).append(cpu)
    if len(groups) < 2 or count < 2:
        return None
    turns = interleave(list(groups.values()))
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
    runs: dict[Placement, list[ProgramRun]] = {placement: [] for placement in where}
    for turn in range(rounds):
        for placement in rotate(where, turn):
            observe(f"round {turn + 1} of {rounds}: {describe_placement(placement)}")
            measurement = run(placement, None)
            if measurement.outcome != "succeeded":
                raise StepFailedError(_explain_failure(measurement, placement))
            runs[placement].append(measurement)
    best = _select_quickest(runs)
    scaling = classify_saturation(
        {count: [program_run.seconds for program_run in runs[placement]] for count, placement in best.items()}
    )
    best_runs = runs[best[scaling.enough]]
    limits = _search_memory_limits(run, best[scaling.enough], best_runs, observe) if search_memory else {}
    bound = find_knee({limit: program_run.outcome == "succeeded" for limit, program_run in limits.items()})
    return Characterization(
        runs={placement: tuple(program_runs) for placement, program_runs in runs.items()},
        limits=limits,
        saturation=scaling,
        knee=bound,
        recommendation=recommend(scaling, best_runs, bound),
        missing=tuple(missing),
    )


def rotate(measured: Sequence[T], turn: int) -> list[T]:
    """Rotate the list of measurements by the turn, so that drift affects each equally."""
    shift = turn % len(measured)
    return [*measured[shift:], *measured[:shift]]


def describe_placement(placement: Placement) -> str:
    """Return ``2 cores, separate caches``."""
    return f"{format_count(len(placement.cpus), 'core')}{f', {placement.caches} caches' if placement.caches else ''}"


def _select_quickest(runs: Mapping[Placement, Sequence[ProgramRun]]) -> dict[int, Placement]:
    """Select the quickest placement for each number of cores."""
    quickest: dict[int, Placement] = {}
    for placement in sorted(
        runs, key=lambda placement: statistics.median(program_run.seconds for program_run in runs[placement])
    ):
        quickest.setdefault(len(placement.cpus), placement)
    return dict(sorted(quickest.items()))


def _search_memory_limits(
    run: RunProgram, where: Placement, free: Sequence[ProgramRun], observe: Callable[[str], None]
) -> dict[int, ProgramRun]:
    peak = max(program_run.peak_bytes for program_run in free)
    runs: dict[int, ProgramRun] = {}
    while (
        limit := choose_next_limit(
            peak, {tried_limit: program_run.outcome == "succeeded" for tried_limit, program_run in runs.items()}
        )
    ) is not None:
        observe(f"with {limit / 2**20:.0f} MiB of memory")
        runs[limit] = run(where, limit)
    return dict(sorted(runs.items(), reverse=True))


def _explain_failure(measurement: ProgramRun, placement: Placement) -> str:
    if measurement.outcome == "timed out":
        took = f"{measurement.seconds:.0f} s"
        return (
            f"The program did not finish within {took} on {describe_placement(placement)}. Allow more time: --timeout "
            "1h"
        )
    where = describe_placement(placement)
    last = f" Its last lines: {measurement.last_lines}" if measurement.last_lines else ""
    return f"The program {measurement.outcome} on {where}, exit code {measurement.exit_code}.{last}"
