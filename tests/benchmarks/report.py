"""The page of figures: one table, how each was measured, and on what machine."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.benchmarks.measure import Metric, Results

__all__ = ["machine", "page", "table"]

PEERS = ("Metaflow", "Prefect", "bare Python")


def page(results: Sequence[Results], *, described: str) -> str:
    """Return ``docs/benchmarks.md``."""
    how = "\n".join(f"- **{result.benchmark.name}**, {_rounds(result)}: {result.benchmark.how}." for result in results)
    return f"""# Benchmarks

Measured side by side in one go: every program once a round, in an empty folder, and another one first each time.
Figures are medians, with the lowest and highest in brackets. A figure with `×` is the median, over the rounds,
of the other's time divided by Scanflow's in the same round. Take the ratios: the seconds are one machine's.

{described}

{table(results)}

## How each is measured

{how}

Repeat it with `make bench`, or one of them with `make bench BENCH_ARGS="--only hello"`. The programs are in
`tests/benchmarks/programs.py`. Metaflow and Prefect are installed from `requirements/bench.txt`, in an environment of
their own.
"""


def table(results: Sequence[Results]) -> str:
    """Return the figures as a Markdown table."""
    rows = ["| what | bar | Scanflow | Metaflow | Prefect | bare Python |", "|---|---|---|---|---|---|"]
    for result in results:
        ours = [name for name in result.benchmark.contenders if name.startswith("Scanflow")]
        for metric in result.benchmark.metrics:
            for name in ours:
                peers = PEERS if name == "Scanflow" else ()
                cells = [_cell(result, peer, metric, beside=True) for peer in peers] or [""] * len(PEERS)
                what = metric.what + name.removeprefix("Scanflow")
                rows.append(f"| {what} | {_bar(metric)} | {_cell(result, name, metric)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def machine(ours: Path, peers: Path) -> str:
    """Return one line on the machine and the versions, without a name or a path."""
    memory = psutil.virtual_memory().total / 1024**3
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    busy = f"{os.getloadavg()[0]:.1f}"
    versions = [
        f"scanflow {_version(ours, 'scanflow')}",
        *(f"{name} {_version(peers, name)}" for name in ("metaflow", "prefect")),
    ]
    return (
        f"Machine: {cores} cores ({_processor()}), {memory:.0f} GiB, {platform.system()}, "
        f"Python {platform.python_version()}; load {busy} when it began. {', '.join(versions)}."
    )


def _rounds(result: Results) -> str:
    count = max((len(samples) for samples in result.samples.values()), default=0)
    return f"{count} round{'' if count == 1 else 's'}"


def _bar(metric: Metric) -> str:
    return "" if metric.bar is None else f"≤ {metric.bar:g} {metric.unit}"


def _cell(result: Results, name: str, metric: Metric, *, beside: bool = False) -> str:
    values = result.values(name, metric.key)
    if not values:
        return "not measured" if name in result.failures else ""
    figure = f"{_digits(statistics.median(values))} {metric.unit} ({_digits(min(values))} to {_digits(max(values))})"
    ratio = result.ratio(name, metric.key) if beside else None
    return figure if ratio is None else f"{figure}, {_digits(ratio)}×"


def _digits(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _version(scripts: Path, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    found = subprocess.run([scripts / "python", "-c", code], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "not installed"
