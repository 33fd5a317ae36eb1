"""Clients that ask as fast as they are answered: wrk where it is installed, our own generator elsewhere."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.benchmarks import bulk
from tests.benchmarks.measure import NotMeasuredError, run_for_report
from tests.benchmarks.servers import pin_command
from tests.load import LoadError, LoadResult, steady_load

LUA = Path(__file__).parent / "serving" / "peers" / "wrk.lua"


def client_name() -> str:
    return "wrk" if shutil.which("wrk") else "`tests/load.py`"


def busy(
    url: str, body: bytes, *, connections: int, seconds: float, cpus: Sequence[int], folder: Path
) -> dict[str, float]:
    """Return ``p50_us``, ``p99_us`` and ``requests_s`` of a closed loop: the medians of runs of a second each."""
    runs = [
        _second(url, body, connections=connections, cpus=cpus, folder=folder) for _ in range(max(1, round(seconds)))
    ]
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def _second(url: str, body: bytes, *, connections: int, cpus: Sequence[int], folder: Path) -> dict[str, float]:
    if (wrk := shutil.which("wrk")) is None:
        figures = callers(url, body, connections=connections, seconds=1, cpus=cpus).metrics()
        return {"p50_us": figures.p50_s * 1e6, "p99_us": figures.p99_s * 1e6, "requests_s": figures.rate}
    options = ["-t1", f"-c{connections}", "-d1s", "--timeout", "10s", "--latency", "-s", str(LUA)]
    command = pin_command([wrk, *options, url, "--", body.decode()], cpus)
    report = run_for_report(command, folder)
    if failed := report.pop("failed"):
        raise NotMeasuredError(f"{failed:.0f} requests failed")
    return report


def callers(
    url: str,
    body: bytes | None,
    *,
    connections: int,
    seconds: float,
    cpus: Sequence[int] = (),
    headers: Mapping[str, str] | None = None,
    tally: str | None = None,
) -> LoadResult:
    try:
        with steady_load(
            url,
            body,
            connections=connections,
            duration_s=seconds,
            headers=headers,
            cpus=cpus,
            tally=tally,
            timeout_s=60,
        ) as load:
            result = load.read_result(timeout_s=seconds + 120)
    except LoadError as error:
        raise NotMeasuredError(str(error)) from error
    if result.failed:
        raise NotMeasuredError(f"{result.failed} of {result.requests} requests failed: {dict(result.reasons)}")
    return result


def bytes_through(port: int, path: str, *, size: int, clients: int, seconds: float, folder: Path) -> dict[str, float]:
    plan = {"host": "127.0.0.1", "port": port, "path": path, "size": size, "clients": clients, "seconds": seconds}
    return run_for_report([sys.executable, "-P", bulk.__file__, json.dumps(plan)], folder, timeout_s=seconds + 60)


def compute_rate(ends: Mapping[str, Sequence[float]]) -> float:
    """Return how many are finished in a second by all who work together.

    Each counts until it finished its last one: what it had begun when the time was over is neither lost nor won.
    """
    if not ends or not all(ends.values()):
        raise NotMeasuredError("not one was finished: measure for longer")
    return sum(len(mine) / max(mine) for mine in ends.values())


def group_ends(result: LoadResult) -> dict[str, list[float]]:
    began, ends = min(result.due), dict[str, list[float]]()
    for place, due in enumerate(result.due):
        ends.setdefault(result.names[result.who[place]], []).append(due + result.took[place] - began)
    return ends
