"""Samples, taken in turns: every contender once a round, in an empty folder, so that a busy minute hits all alike."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

Sampler = Callable[[Path], Mapping[str, float]]
"""Measures once, in the empty folder it is given, and returns the value of each metric by its key."""

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the contenders are installed."""

    ours: Path
    peers: Path
    """Metaflow, Prefect and a bare web application."""

    servers: Path
    """MLServer and MLflow."""

    checkout: Path

    @property
    def python(self) -> Path:
        return self.ours / "python"

    @property
    def peer_python(self) -> Path:
        return self.peers / "python"


class NotMeasuredError(Exception):
    """A contender could not be measured; the text has its last lines."""


@dataclass(frozen=True)
class Metric:
    key: str
    what: str
    unit: str
    bar: float | None = None
    at_least: bool = False
    """The bar is the least that Scanflow must reach."""

    against: str | None = None
    """The bar is a multiple of what this contender has, in the same round."""


@dataclass(frozen=True, kw_only=True)
class Section:
    group: str
    """Sections of a group are written together; ``--only`` knows its name."""

    title: str
    columns: Sequence[str]
    """The contenders, in order. Figures are set against those of the first."""

    text: str = ""
    """What a reader must know beforehand."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    name: str
    section: Section
    metrics: Sequence[Metric]
    contenders: Mapping[str, Sampler]
    how: str
    rounds: int = 5
    warm_up: bool = True
    """Whether one round goes unrecorded first, so that byte code and page cache are warm for all."""


@dataclass(kw_only=True)
class Results:
    benchmark: Benchmark
    samples: dict[str, list[Mapping[str, float]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def values(self, contender: str, key: str) -> list[float]:
        return [sample[key] for sample in self.samples.get(contender, []) if key in sample]

    def median(self, contender: str, key: str) -> float | None:
        values = self.values(contender, key)
        return statistics.median(values) if values else None

    def ratio(self, peer: str, key: str, *, over: str) -> float | None:
        """Return the median over rounds of ``peer`` / ``over``, each pair from the same round."""
        pairs = zip(self.values(peer, key), self.values(over, key), strict=False)
        ratios = [theirs / ours for theirs, ours in pairs if ours > 0]
        return statistics.median(ratios) if ratios else None


def interleave(
    benchmark: Benchmark, contenders: Sequence[str], *, rounds: int | None, say: Callable[[str], None]
) -> Results:
    """Measure each of ``contenders`` once a round; who goes first changes from round to round."""
    taking_part = [name for name in benchmark.contenders if name in contenders]
    results = Results(benchmark=benchmark, samples={name: [] for name in taking_part})
    total = rounds or benchmark.rounds
    for number in range(-1 if benchmark.warm_up else 0, total):
        turn = number % len(taking_part) if taking_part else 0
        for name in taking_part[turn:] + taking_part[:turn]:
            if name in results.failures:
                continue
            folder = Path(tempfile.mkdtemp(prefix="bench-"))
            try:
                sample = benchmark.contenders[name](folder)
            except NotMeasuredError as failure:
                results.failures[name] = str(failure)
                say(f"  {name}: could not be measured: {failure}")
                continue
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            if number >= 0:
                results.samples[name].append(sample)
                say(
                    f"  round {number + 1}/{total} {name}: "
                    + ", ".join(f"{key} {value:.4g}" for key, value in sample.items())
                )
    return results


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    variables = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR") if name in os.environ}
    mine = {
        "HOME": str(home),
        "SCANFLOW_HOME": str(home / "scanflow"),
        "METAFLOW_HOME": str(home / "metaflow"),
        "METAFLOW_USER": "bench",
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    return variables | mine | dict(extra or {})


def run(
    command: Sequence[str | Path], folder: Path, *, timeout_s: float = 600, extra: Mapping[str, str] | None = None
) -> str:
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env=environment(folder, extra),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotMeasuredError(str(error)) from error
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise NotMeasuredError(f"{Path(words[0]).name} exited with {done.returncode}: " + " / ".join(last))
    return done.stdout


def wall_s(
    command: Sequence[str | Path], folder: Path, *, timeout_s: float = 600, extra: Mapping[str, str] | None = None
) -> float:
    start = time.perf_counter()
    run(command, folder, timeout_s=timeout_s, extra=extra)
    return time.perf_counter() - start


def run_for_report(command: Sequence[str | Path], folder: Path, *, timeout_s: float = 600) -> dict[str, float]:
    lines = run(command, folder, timeout_s=timeout_s).strip().splitlines()
    try:
        return {key: float(value) for key, value in json.loads(lines[-1]).items()}
    except (IndexError, ValueError, AttributeError) as error:
        raise NotMeasuredError(f"no figures on the last line of {Path(str(command[-1])).name}") from error


def watch(
    command: Sequence[str | Path], folder: Path, *, extra: Mapping[str, str], timeout_s: float
) -> dict[str, float]:
    """Return the wall time (``seconds``) and the highest memory of all processes a command starts (``mib``).

    Memory is the sum of proportional set sizes (shared pages counted once), looked at every 0.2 s. Processes are known
    by a mark in their environment, so one that outlives its parent is counted as well.
    """
    mark = uuid.uuid4().hex
    peak = 0.0
    done = threading.Event()

    def look() -> None:
        nonlocal peak
        while not done.wait(0.2):
            peak = max(peak, sum(pss_mib(process) for process in psutil.process_iter() if _has_mark(process, mark)))

    watcher = threading.Thread(target=look, daemon=True)
    start = time.perf_counter()
    watcher.start()
    try:
        run(command, folder, timeout_s=timeout_s, extra={**extra, "SCANFLOW_BENCH_MARK": mark})
    finally:
        seconds = time.perf_counter() - start
        done.set()
        watcher.join()
    return {"seconds": seconds, "mib": peak}


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get("SCANFLOW_BENCH_MARK") == mark
    except (psutil.Error, OSError):
        return False


def pss_mib(process: psutil.Process) -> float:
    try:
        memory = process.memory_full_info()
        return float(getattr(memory, "pss", memory.rss)) / MIB  # only Linux tells the proportional size
    except (psutil.Error, OSError):
        return 0.0
