"""What a program needs, as tables and a line to copy."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scanflow.app.quantities import counted, format_duration
from scanflow.characterization.study import describe_placement
from scanflow_client.formatting.table import Screen, Table

if TYPE_CHECKING:
    from scanflow.characterization.analysis import Saturation
    from scanflow.characterization.measurement import ProgramRun
    from scanflow.characterization.study import Characterization
    from scanflow_client.characterize_workflow import WorkflowCharacterization

_KINDS = {
    "linear": "more cores help in proportion",
    "sublinear": "more cores help, and less than in proportion",
    "flat": "more cores do not help",
    "collapse": "with more cores it becomes slower",
}


def characterization_screen(found: Characterization) -> Screen:
    """Return what was measured by cores, by memory, and what to ask for."""
    first = min(found.saturation.speed)
    alone = statistics.median(
        one.seconds for where, runs in found.runs.items() if len(where.cpus) == first for one in runs
    )
    rows = [_row(describe_placement(where), runs, alone) for where, runs in found.runs.items()]
    columns = (
        "on",
        "took",
        "speed",
        "cores used",
        "peak memory",
        "switches/s",
        "of them made to",
        "migrations",
        "misses",
    )
    screen: list[str | Table] = [Table(columns, rows), describe_saturation(found.saturation)]
    if found.limits:
        limits = [(_mebibytes(limit), one.outcome, format_duration(one.seconds)) for limit, one in found.limits.items()]
        screen.append(Table(("memory limit", "it", "took"), limits))
    if found.knee is not None:
        killed = f"; with {_mebibytes(found.knee.too_few)} it does not" if found.knee.too_few else ""
        screen.append(f"It runs with {_mebibytes(found.knee.enough)}{killed}.")
    screen += [f"Not measured: {what}" for what in found.missing]
    return [*screen, f"Ask for: resources={found.recommendation}"]


def workflow_screen(result: WorkflowCharacterization) -> Screen:
    """Return what a service or a job took by its size, and what to ask for."""
    from scanflow_client.characterize_workflow import median_seconds

    alone = median_seconds(next(iter(result.runs.values())))
    rows = [
        (
            size,
            f"{1 / median_seconds(runs):.4g}/s" if result.unit == "request" else format_duration(median_seconds(runs)),
            f"{alone / median_seconds(runs):.2f}×",
            f"{statistics.median(run.cores for run in runs):.2f}",
            _mebibytes(max(run.peak_bytes for run in runs)),
        )
        for size, runs in result.runs.items()
    ]
    measure = "requests" if result.unit == "request" else "took"
    columns = ("size", measure, "speed", "cores used", "peak memory")
    missing = [f"Not measured: {what}" for what in result.missing]
    return [
        Table(columns, rows),
        describe_saturation(result.saturation),
        *missing,
        f"Ask for: resources={result.recommendation}",
    ]


def workflow_as_json(result: WorkflowCharacterization) -> dict[str, Any]:
    """Return all of it as JSON can hold it."""
    from dataclasses import asdict

    return asdict(result)


def describe_saturation(scaling: Saturation) -> str:
    if len(scaling.speed) == 1:
        return "How it scales is not known: it ran with one number of cores only."
    enough = counted(scaling.cores, "core")
    return f"{scaling.kind.capitalize()}: {_KINDS[scaling.kind]}. Nearly as fast as it gets: {enough}."


def _row(name: str, runs: Sequence[ProgramRun], alone: float) -> list[str]:
    took = statistics.median(one.seconds for one in runs)
    switches = [one.voluntary_switches + one.involuntary_switches for one in runs]
    rate = statistics.median(count / one.seconds for count, one in zip(switches, runs, strict=True))
    made = sum(one.involuntary_switches for one in runs) / max(1, sum(switches))
    return [
        name,
        f"{format_duration(took)} ({min(one.seconds for one in runs):.3g} to {max(one.seconds for one in runs):.3g})",
        f"{alone / took:.2f}×",
        f"{statistics.median(one.cores for one in runs):.2f}",
        _mebibytes(max(one.peak_bytes for one in runs)),
        f"{rate:.4g}",
        f"{made:.0%}",
        _counted([one.migrations for one in runs]),
        _counted([one.cache_misses for one in runs]),
    ]


def _counted(values: Sequence[int | None]) -> str:
    known = [one for one in values if one is not None]
    return f"{statistics.median(known):,.0f}" if known else "-"


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def as_json(found: Characterization) -> dict[str, Any]:
    """Return all of it as JSON can hold it."""
    from dataclasses import asdict

    return {
        "runs": [
            {"cpus": list(where.cpus), "caches": where.caches, "runs": [asdict(one) for one in runs]}
            for where, runs in found.runs.items()
        ],
        "limits": [{"limit_bytes": limit, **asdict(one)} for limit, one in found.limits.items()],
        "saturation": asdict(found.saturation),
        "knee": None if found.knee is None else asdict(found.knee),
        "recommendation": asdict(found.recommendation),
        "missing": list(found.missing),
    }
