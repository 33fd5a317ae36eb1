"""How late an agent with many strategies fires: ``python -m tests.benchmarks.agents_lag``.

One agent in a process of its own, with its real schedules, state and strategies; every sensor fires each second and
notes when it began. Prints the lag's percentiles, what was missed, and how long an event takes to become an intent at
a server that does nothing else. Asserts nothing. The suite ``control`` has the same lag among its figures.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import scanflow as sf
from scanflow.app.files import dump_json
from tests.benchmarks.control_server import TOKEN, give_token
from tests.server import bearer
from tests.waiting import until

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

ON_EVENT = """
import scanflow as sf
from scanflow.agent import Strategy, primitives as do

Strategy(name="alarm", when=sf.on_event("run.failed"), then=do.run_workflow("training"))
"""


@contextmanager
def _hosted(module: str, server: str | None) -> Iterator[tuple[str, int]]:
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
        spec = {
            "application": json.loads(dump_json(app)),
            "agent": "many",
            "server": server,
            "home": str(folder / "home"),
        }
        give_token(folder / "home")
        (folder / "agent.json").write_text(json.dumps(spec), encoding="utf-8")
        with (folder / "log").open("wb") as log:
            agent = subprocess.Popen([sys.executable, "-m", "scanflow_agents", name], stderr=log, stdout=log)
        try:
            until((folder / "here.json").exists, "the agent is there")
            yield json.loads((folder / "here.json").read_text())["url"], agent.pid
        finally:
            agent.send_signal(signal.SIGTERM)
            agent.wait(timeout=30)


def measure(count: int, plain: int, seconds: float) -> dict[str, float]:
    """Return the percentiles of the lag in seconds, and how many due times were fired and missed."""
    with _hosted(MODULE.format(count=count, plain=plain), None) as (url, pid):
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
        **_in_seconds(lags),
        "fired": sum(one["fired"] for one in sensors),
        "missed": sum(one["missed"] for one in sensors),
        "errors": sum(one["errors"] for one in sensors),
        "cpu_share": cpu / seconds,
    }


def answer(count: int) -> dict[str, float]:
    """Return how long it takes from an event's arrival at an agent until the server has the intent, in seconds."""
    arrived: dict[str, float] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path.endswith("/intents"):
                arrived[body["key"]] = time.perf_counter()
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        took: list[float] = []
        with _hosted(ON_EVENT, f"http://127.0.0.1:{server.server_address[1]}") as (url, _):
            for number in range(1, count + 1):
                event = json.dumps([{"id": number, "at": 1.0, "type": "run.failed"}]).encode()
                asked = urllib.request.Request(
                    f"{url}/inbox", event, {"content-type": "application/json", **bearer(TOKEN)}
                )
                began = time.perf_counter()
                urllib.request.urlopen(asked, timeout=30).close()
                took.append(_arrival(arrived, f"many/alarm/event:{number}") - began)
        server.shutdown()
    return _in_seconds(took)


def _get(url: str) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, headers=bearer(TOKEN)), timeout=60) as answer:
        return json.load(answer)


def _arrival(arrived: dict[str, float], key: str) -> float:
    until(lambda: key in arrived, "the intent came")
    return arrived[key]


def percentiles(values: list[float]) -> dict[str, float]:
    """Return the median, the 99th percentile (the nearest rank: a value that was measured) and the longest."""
    values = sorted(values)
    rank = max(0, -int(-0.99 * len(values) // 1) - 1)
    return {"p50": statistics.median(values), "p99": values[rank], "worst": values[-1]}


def _in_seconds(values: list[float]) -> dict[str, float]:
    return {f"{name}_s": value for name, value in percentiles(values).items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure with async functions, with plain ones, and how quickly an event is answered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sensors", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args(arguments)
    for what, plain in (("async", 0), ("plain", given.sensors)):
        found = measure(given.sensors, plain, given.seconds)
        told = "  ".join(f"{name} {value:.3f}" for name, value in found.items())
        print(f"{given.sensors} {what} sensors at 1 s for {given.seconds:g} s: {told}")
    told = "  ".join(f"{name} {value:.4f}" for name, value in answer(200).items())
    print(f"event to intent at the server: {told}")


def _lag(sample: dict[str, object]) -> float:
    due = datetime.fromisoformat(str(sample["cause"]).removeprefix("interval:")).timestamp()
    began = sample["value"]
    assert isinstance(began, float), sample
    return began - due


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
