"""The page of figures: a table for each section, how each was measured, and on what machine."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.benchmarks.measure import Metric, Places, Results, Section

GROUPS = {
    "work": "Batch workflows",
    "serving": "Online inference",
    "control": "The control plane and agents",
    "cluster": "Kubernetes",
}

PAGE = """# Benchmarks

Scanflow and other programs are measured in rounds. In each round every program runs once, in an empty folder, and
another one is first. A cell has the median of the rounds, with the lowest and highest value in brackets. A number with
`×` is a ratio: the program's value divided by the value in the first column, of the same round; the median of the
rounds. Compare the ratios, since the other numbers depend on the machine. `bar` is the target.

{blocks}

## Repeat it

| command | what it measures |
|---|---|
| `make bench` | everything |
| `make bench BENCH_ARGS="--only serving"` | one part |
| `make bench BENCH_ARGS="--only hello noop"` | single benchmarks, by the names in bold on this page |

The measured programs are in `tests/benchmarks/programs.py` and `tests/benchmarks/serving/`. The other frameworks are
installed from `requirements/bench.txt` and `requirements/bench-serving.txt`, in environments of their own.
"""


def page(blocks: dict[str, str]) -> str:
    whole = [f"<!-- begin {group} -->\n{text}\n<!-- end {group} -->" for group, text in blocks.items()]
    return PAGE.format(blocks="\n\n".join(whole))


def with_blocks(text: str, blocks: dict[str, str]) -> str:
    had = dict(re.findall(r"<!-- begin (\w+) -->\n(.*?)\n<!-- end \1 -->", text, flags=re.DOTALL))
    groups = {group: blocks.get(group, had.get(group)) for group in GROUPS}
    return page({group: block for group, block in groups.items() if block is not None})


def block(group: str, results: Sequence[Results], *, described: str) -> str:
    parts = [f"## {GROUPS[group]}", described]
    sections = list(dict.fromkeys(result.benchmark.section for result in results))
    for section in sections:
        mine = [result for result in results if result.benchmark.section is section]
        parts += [f"### {section.title}"] if len(sections) > 1 else []
        parts += [section.text] if section.text else []
        parts += [table(section, mine)]
    parts += ["### How each is measured", "\n".join(_how(result) for result in results)]
    return "\n\n".join(parts)


def table(section: Section, results: Sequence[Results]) -> str:
    first, *others = section.columns
    bars = any(metric.bar is not None for result in results for metric in result.benchmark.metrics)
    head = ["what", *(["bar"] if bars else []), first, *others]
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for result in results:
        for metric in result.benchmark.metrics:
            for name in [name for name in result.benchmark.contenders if name.startswith(first)]:
                cells = [_cell(result, peer, metric, over=first) if name == first else "" for peer in others]
                what = metric.what + name.removeprefix(first)
                bar = [_bar(result, metric, name)] if bars else []
                rows.append(f"| {' | '.join([what, *bar, _cell(result, name, metric), *cells])} |")
    return "\n".join(rows)


def machine(places: Places) -> str:
    memory = psutil.virtual_memory().total / 1024**3
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    busy = f"{os.getloadavg()[0]:.1f}"
    return (
        f"Machine: {cores} cores ({_processor()}), {memory:.0f} GiB, {platform.system()}, "
        f"Python {platform.python_version()}; load {busy} when it began. {', '.join(_versions(places))}."
    )


def _versions(places: Places) -> list[str]:
    wanted = {
        places.ours: ("scanflow", "tensorflow-cpu", "pillow"),
        places.peers: ("metaflow", "prefect", "starlette", "uvicorn"),
        places.servers: ("mlserver", "mlflow"),
    }
    return [f"{name} {_version(scripts, name)}" for scripts, names in wanted.items() for name in names]


def _how(result: Results) -> str:
    count = max((len(samples) for samples in result.samples.values()), default=0)
    rounds = f"{count} round{'' if count == 1 else 's'}"
    return f"- **{result.benchmark.name}**, {rounds}: {result.benchmark.how}."


def _bar(result: Results, metric: Metric, name: str) -> str:
    if metric.bar is None:
        return ""
    sign = "≥" if metric.at_least else "≤"
    if metric.against is None:
        return f"{sign} {metric.bar:g} {metric.unit}"
    reached = result.ratio(name, metric.key, over=metric.against)
    is_ = "" if reached is None else f"; it is {_digits(reached)}×"
    return f"{sign} {metric.bar:g}× {metric.against}{is_}"


def _cell(result: Results, name: str, metric: Metric, *, over: str | None = None) -> str:
    values = result.values(name, metric.key)
    if not values:
        return "not measured" if name in result.failures else ""
    figure = f"{_digits(statistics.median(values))} {metric.unit}".strip()
    if len(values) > 1:
        figure += f" ({_digits(min(values))} to {_digits(max(values))})"
    ratio = result.ratio(name, metric.key, over=over) if over else None
    return figure if ratio is None else f"{figure}, {_digits(ratio)}×"


def _digits(value: float) -> str:
    if value == int(value) and abs(value) < 100:
        return f"{value:.0f}"
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
    try:
        process = subprocess.run([scripts / "python", "-c", code], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "not installed"
    return process.stdout.strip() or "not installed"
