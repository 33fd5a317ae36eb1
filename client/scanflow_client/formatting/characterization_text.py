"""Characterizations of programs, services and jobs, as tables and the resources to request."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scanflow.app.quantities import format_count, format_duration
from scanflow.characterization.analysis import compute_median_seconds
from scanflow.characterization.characterization_study import describe_placement
from scanflow.processes.cpu_use import BUSY_CORES
from scanflow_client.formatting.text import format_amount
from scanflow_client.formatting.text_table import Screen, Table

if TYPE_CHECKING:
    from scanflow.characterization.analysis import DeviceUsage, MemoryKnee, Saturation, WorkflowCharacterization
    from scanflow.characterization.characterization_study import Characterization
    from scanflow.characterization.measurement import ProgramRun, SizedRun

_KINDS = {
    "linear": "help in proportion",
    "sublinear": "help, but less than in proportion",
    "flat": "do not help",
    "collapse": "make it slower",
}


def format_characterization(characterization: Characterization) -> Screen:
    """Return the measurements by cores and by memory, and the resources to request."""
    first = min(characterization.saturation.speed)
    alone = statistics.median(
        run.seconds for placement, runs in characterization.runs.items() if len(placement.cpus) == first for run in runs
    )
    rows = [
        _format_row(describe_placement(placement), runs, alone) for placement, runs in characterization.runs.items()
    ]
    columns = ("on", "took", "speed", "cores used", "peak memory", "switches/s", "involuntary", "migrations", "misses")
    screen: list[str | Table] = [
        Table(columns, rows),
        describe_saturation(characterization.saturation),
        *_describe_disturbance(characterization.runs),
    ]
    if characterization.limits:
        limits = [
            (_format_mebibytes(limit), run.outcome, format_duration(run.seconds))
            for limit, run in characterization.limits.items()
        ]
        screen.append(Table(("memory limit", "it", "took"), limits))
    if characterization.knee is not None:
        screen.append(f"It runs with {_describe_knee(characterization.knee)}.")
    screen += [f"Not measured: {what}" for what in characterization.missing]
    return [*screen, f"Request: resources={characterization.recommendation}"]


def format_workflow_characterization(result: WorkflowCharacterization) -> Screen:
    """Return the measurements of a service or a job by size, and the resources to request."""
    alone = compute_median_seconds(next(iter(result.runs.values())))
    has_gpus = any(run.gpu_bytes is not None for runs in result.runs.values() for run in runs)
    rows = [
        (
            size,
            f"{format_amount(1 / compute_median_seconds(runs), 4)}/s"
            if result.unit == "request"
            else format_duration(compute_median_seconds(runs)),
            f"{alone / compute_median_seconds(runs):.2f}×",
            f"{statistics.median(run.cores for run in runs):.2f}",
            _format_mebibytes(max(run.peak_bytes for run in runs)),
            *([_format_gpu_memory(runs)] if has_gpus else []),
        )
        for size, runs in result.runs.items()
    ]
    measure = "requests" if result.unit == "request" else "took"
    columns = ("size", measure, "speed", "cores used", "peak memory", *(["GPU memory"] if has_gpus else []))
    missing = [f"Not measured: {what}" for what in result.missing]
    usage = result.device
    instances = f", instances={usage.instances}" if usage is not None and usage.instances > 1 else ""
    return [
        Table(columns, rows),
        describe_saturation(result.saturation),
        *([] if usage is None else describe_device_usage(usage)),
        *_describe_disturbance(result.runs),
        *missing,
        f"Request: resources={result.recommendation}{instances}",
    ]


def _format_gpu_memory(runs: Sequence[SizedRun]) -> str:
    seen = [run.gpu_bytes for run in runs if run.gpu_bytes is not None]
    return _format_mebibytes(max(seen)) if seen else "-"


def describe_saturation(scaling: Saturation) -> str:
    if len(scaling.speed) == 1:
        return "Its scaling is unknown: it ran with one number of cores only."
    enough = format_count(scaling.enough, "core")
    return f"{scaling.kind.capitalize()}: more cores {_KINDS[scaling.kind]}. Close to its fastest: {enough}."


def describe_device_usage(usage: DeviceUsage) -> list[str]:
    """Return from which on a service gets no more from its GPUs, and the memory that an instance needs there."""
    lines = []
    if len(usage.by_instances.speed) > 1:
        lines.append(
            f"On the GPU, more instances {_KINDS[usage.by_instances.kind]}. Close to its fastest: "
            f"{format_count(usage.by_instances.enough, 'instance')}."
        )
    if len(usage.by_batch.speed) > 1:
        lines.append(
            f"On the GPU, larger batches {_KINDS[usage.by_batch.kind]}. Close to its fastest: batches of "
            f"{usage.by_batch.enough}."
        )
    if usage.knee is not None:
        lines.append(f"On the GPU, an instance runs with {_describe_knee(usage.knee)}.")
    return lines


def _describe_disturbance(runs_by_size: Mapping[Any, Sequence[ProgramRun] | Sequence[SizedRun]]) -> list[str]:
    """Return whether others used the machine meanwhile, which may be why more is not faster."""
    others = [run.others for runs in runs_by_size.values() for run in runs]
    disturbed = [cores for cores in others if cores > BUSY_CORES]
    if not disturbed:
        return []
    measurements, most = format_count(len(others), "measurement"), max(disturbed)
    line = f"Other processes used the machine in {len(disturbed)} of {measurements}, by up to {most:.1f} cores"
    return [f"{line}, and may have changed how it scales. Measure again when it is quiet."]


def _describe_knee(knee: MemoryKnee) -> str:
    failed = f", but not with {_format_mebibytes(knee.too_few)}" if knee.too_few else ""
    return f"{_format_mebibytes(knee.enough)}{failed}"


def _format_row(name: str, runs: Sequence[ProgramRun], alone: float) -> list[str]:
    took = statistics.median(run.seconds for run in runs)
    switches = [run.voluntary_switches + run.involuntary_switches for run in runs]
    rate = statistics.median(count / run.seconds for count, run in zip(switches, runs, strict=True))
    involuntary_share = sum(run.involuntary_switches for run in runs) / max(1, sum(switches))
    return [
        name,
        f"{format_duration(took)} ({min(run.seconds for run in runs):.3g} to {max(run.seconds for run in runs):.3g})",
        f"{alone / took:.2f}×",
        f"{statistics.median(run.cores for run in runs):.2f}",
        _format_mebibytes(max(run.peak_bytes for run in runs)),
        format_amount(rate, 4),
        f"{involuntary_share:.0%}",
        _format_median_count([run.migrations for run in runs]),
        _format_median_count([run.cache_misses for run in runs]),
    ]


def _format_median_count(values: Sequence[int | None]) -> str:
    counts = [value for value in values if value is not None]
    return f"{statistics.median(counts):,.0f}" if counts else "-"


def _format_mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def build_characterization_json(characterization: Characterization) -> dict[str, Any]:
    """Return a characterization in JSON types."""
    from dataclasses import asdict

    return {
        "runs": [
            {"cpus": list(placement.cpus), "caches": placement.caches, "runs": [asdict(run) for run in runs]}
            for placement, runs in characterization.runs.items()
        ],
        "limits": [{"limit_bytes": limit, **asdict(run)} for limit, run in characterization.limits.items()],
        "saturation": asdict(characterization.saturation),
        "knee": None if characterization.knee is None else asdict(characterization.knee),
        "recommendation": asdict(characterization.recommendation),
        "missing": list(characterization.missing),
    }
