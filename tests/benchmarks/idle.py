"""What a server, its tracker and four agents take with nothing to do: the tutorial with a table, after its training."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from tests.benchmarks.measure import Benchmark, Metric, Places, Section, pss_mib, run

SECTION = Section(
    group="control",
    title="A server, its tracker and four agents, with nothing to do",
    columns=("Scanflow",),
    text="CPU time of the server, MLflow's, the agents and their shims, and their memory (proportional set sizes).",
)
_PROGRAMS = ("scanflow_server", "scanflow_agents")
_SHORT_INTERVAL = re.compile(r'"interval_s": \d+, ')


def idle(places: Places, *, settles_s: float, seconds: float, rounds: int = 3) -> Benchmark:
    """``settles_s``: between the start of the agents and the measurement, which takes ``seconds``."""

    def sample(folder: Path) -> Mapping[str, float]:
        tutorial, scanflow = folder / "tabular", places.ours / "scanflow"
        shutil.copytree(places.checkout / "tutorials" / "tabular", tutorial)
        file = tutorial / "app.py"
        metrics: dict[str, float] = {}

        def command(*words: str) -> None:
            run([scanflow, *words], tutorial, extra={"SCANFLOW_HOME": str(folder / "home")}, timeout_s=300)

        def measure_agents(key: str) -> None:
            command("agents", "--start", str(file))
            if key == "short":
                asks: list[str | Path] = [places.python, "send.py", "18", "45"]
                run(asks, tutorial, extra={"SCANFLOW_HOME": str(folder / "home")}, timeout_s=300)
            threading.Event().wait(settles_s)
            metrics.update({f"{key}_{name}": value for name, value in _measure(folder, seconds).items()})
            command("agents", "--stop", "tabular")

        try:
            command("up")
            command("run", f"{file}:training")
            command("deploy", f"{file}:serve")
            measure_agents("short")
            file.write_text(_SHORT_INTERVAL.sub("", file.read_text()))
            measure_agents("default")
        finally:
            command("delete", "serve")
            command("down")
        return metrics

    return Benchmark(
        name="idle",
        section=SECTION,
        metrics=[
            Metric("short_cpu", "intervals of 1 to 2 s: of a core", "%", bar=3),
            Metric("short_server", "the same: by the server and MLflow's", "%"),
            Metric("short_mib", "the same: memory of all six", "MiB", bar=700),
            Metric("default_cpu", "intervals as they are by default: of a core", "%", bar=0.5),
            Metric("default_server", "the same: by the server and MLflow's", "%"),
            Metric("default_mib", "the same: memory of all six", "MiB", bar=700),
        ],
        contenders={"Scanflow": sample},
        how=(
            "`tutorials/tabular`: `scanflow up`, its training, its service, its four agents, and 600 requests; "
            f"{settles_s:g} s later nobody asks for anything any more, and for {seconds:g} s the CPU time of the six "
            "processes and their shims is counted; then the same without the tutorial's `interval_s`"
        ),
        rounds=rounds,
        warm_up=False,
    )


def _measure(home: Path, seconds: float) -> dict[str, float]:
    ours = [process for process in psutil.process_iter() if _is_ours(process, home)]
    server = [process for process in ours if any("scanflow_server" in word for word in process.cmdline())]
    before, began = _cpu_s(ours), time.perf_counter()
    server_before = _cpu_s(server)
    threading.Event().wait(seconds)
    took_s = time.perf_counter() - began
    return {
        "cpu": 100 * (_cpu_s(ours) - before) / took_s,
        "server": 100 * (_cpu_s(server) - server_before) / took_s,
        "mib": sum(map(pss_mib, ours)),
    }


def _is_ours(process: psutil.Process, home: Path) -> bool:
    """Say whether it is the server, an agent, or the shim of one."""
    try:
        if not process.environ().get("SCANFLOW_HOME", "").startswith(str(home)):
            return False
        lines = [process.cmdline(), *(child.cmdline() for child in process.children())]
    except (psutil.Error, OSError):
        return False
    return any(program in word for line in lines for word in line for program in _PROGRAMS)


def _cpu_s(processes: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))
