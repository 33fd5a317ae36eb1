"""How late an agent with many strategies fires, in a process of its own with its real schedules and state."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import scanflow as sf
from scanflow.app.application_files import dump_document
from tests.benchmarks.control_server import TOKEN, give_token
from tests.server import bearer
from tests.waiting import wait_until

MODULE = """
import time
import scanflow as sf
from scanflow.agent import Strategy, primitives as do
from scanflow.agent.sensors.sensor import sensor

PLAIN = {plain}

def make(index):
    if index < PLAIN:
        def look():
            return time.time()
    else:
        async def look():
            return time.time()
    made = sensor(sf.every(seconds=1), name=f"look_{{index}}")(look)
    Strategy(name=f"decide_{{index}}", when=made, if_=lambda began: began < 0, then=do.run_workflow("training"))

for index in range({count}):
    make(index)
"""


@contextmanager
def _host_agent(module: str) -> Iterator[tuple[str, int]]:
    with tempfile.TemporaryDirectory(prefix="scanflow-lag-") as name:
        folder = Path(name)
        (folder / "lag.py").write_text(module, encoding="utf-8")
        step = sf.Executor(name="train", mainfile="lag.py")
        app = sf.Application(
            name="lag",
            app_dir=name,
            workflows=[sf.Workflow(name="training", nodes=[step])],
            agents=[sf.Agent(name="many", modules=["lag.py"])],
        )
        spec = {"application": dump_document(app), "agent": "many", "home": str(folder / "home")}
        give_token(folder / "home")
        (folder / "agent.json").write_text(json.dumps(spec), encoding="utf-8")
        with (folder / "log").open("wb") as log:
            agent = subprocess.Popen([sys.executable, "-m", "scanflow_agents", name], stderr=log, stdout=log)
        try:
            wait_until((folder / "address.json").exists, "the agent is there")
            yield json.loads((folder / "address.json").read_text())["url"], agent.pid
        finally:
            agent.send_signal(signal.SIGTERM)
            agent.wait(timeout=30)


def measure(count: int, plain: int, seconds: float) -> dict[str, float]:
    """Return the percentiles of the lag in seconds, and how many due times were fired and missed."""
    with _host_agent(MODULE.format(count=count, plain=plain)) as (url, pid):
        before = _cpu(pid)
        threading.Event().wait(seconds)  # what is measured
        cpu = _cpu(pid) - before
        sensors = _get(f"{url}/sensors")
        lags: list[float] = []
        after = 0
        while entries := _get(f"{url}/journal?limit=10000&after={after}"):
            after = entries[-1]["id"]
            lags += [_lag(entry["body"]) for entry in entries if entry["kind"] == "sample"]
    return {
        "samples": len(lags),
        **{f"{name}_s": value for name, value in percentiles(lags).items()},
        "fired": sum(sensor["fired"] for sensor in sensors),
        "missed": sum(sensor["missed"] for sensor in sensors),
        "errors": sum(sensor["errors"] for sensor in sensors),
        "cpu_share": cpu / seconds,
    }


def _get(url: str) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, headers=bearer(TOKEN)), timeout=60) as answer:
        return json.load(answer)


def percentiles(values: list[float]) -> dict[str, float]:
    """Return the median, the 99th percentile (the nearest rank: a value that was measured) and the longest."""
    values = sorted(values)
    rank = max(0, -int(-0.99 * len(values) // 1) - 1)
    return {"p50": statistics.median(values), "p99": values[rank], "worst": values[-1]}


def _lag(sample: dict[str, object]) -> float:
    due = datetime.fromisoformat(str(sample["cause"]).removeprefix("interval:")).timestamp()
    began = sample["value"]
    assert isinstance(began, float), sample
    return began - due


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
