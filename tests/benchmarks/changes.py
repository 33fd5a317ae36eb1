"""Changes of a service while it is asked at a steady rate: what fails, and what the slowest see."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scanflow.backends.local.services.service_layout import ServicesHome
from scanflow.backends.local.services.state.observed import read_observed
from scanflow.backends.service_records import ServiceRecord
from tests.benchmarks.measure import NotMeasuredError, run
from tests.benchmarks.servers import Probe, deploy_service, oip
from tests.load import LoadError, steady_load, wait_for

CHANGES = {
    "swap": "another version swapped in",
    "canary": "a canary given 10 %, then taken back",
    "crash": "one of two instances killed",
    "failover": "both killed, a backup answering",
    "cut": "2 × 1 core to 1 × 2 and back",
}
LEAST_S = 1.0
"""A change that takes less counts as if it took as long, so that there is a 99th percentile to speak of."""

CONNECTIONS = 8
MAX_DURATION_S = 300.0
WHOLE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class _Service:
    scanflow: Path
    folder: Path

    def do(self, *arguments: str) -> str:
        return run([self.scanflow, *arguments], self.folder, timeout_s=120)

    def record(self) -> ServiceRecord:
        # A command for each look would take the very cores that are measured.
        state = read_observed(ServicesHome(self.folder / "scanflow" / "services").service("changing"))
        if state is None:
            raise NotMeasuredError("nothing is known of the service")
        return state.record

    def kill(self, count: int) -> None:
        had = [instance.pid for instance in self.record().instances if instance.pid is not None]
        for pid in had[:count]:
            os.kill(pid, signal.SIGKILL)
        until, pause = time.monotonic() + WHOLE_S, threading.Event()
        while time.monotonic() < until:
            record = self.record()
            pids = {instance.pid for instance in record.instances if instance.state == "ready"}
            if record.state == "ready" and len(pids) == len(had) and not pids & set(had[:count]):
                return
            pause.wait(0.2)
        raise NotMeasuredError(f"after {count} killed it was never whole again: {self.record()}")


def measure_changes(scanflow: Path, folder: Path, *, requests: int, rate: float) -> Mapping[str, float]:
    """Make each of the changes under a load of its own, of at least so many requests, and some after the change."""
    probe = Probe(
        path="/v2/models/changing/infer", body=oip("x", [1, 2, 3, 4]), headers={"content-type": "application/json"}
    )
    ours = _Service(scanflow=scanflow, folder=folder)
    actions: dict[str, Callable[[], Any]] = {
        "swap": lambda: ours.do("promote", "changing", "models:/changing/2"),
        "canary": lambda: _run_all(
            ours, ["traffic", "changing", "models:/changing/1", "-w", "10%"], ["rollback", "changing"]
        ),
        "crash": lambda: ours.kill(1),
        "failover": lambda: ours.kill(2),
        "cut": lambda: _run_all(
            ours, ["scale", "changing", "1", "--cores", "2"], ["scale", "changing", "2", "--cores", "1"]
        ),
    }
    metrics: dict[str, float] = {}
    standby = Probe(path="/v2/models/standby/infer", body=probe.body, headers=probe.headers)
    options = ["--instances", "2", "--cores", "1", "--affinity", "cpu"]
    with (
        deploy_service(scanflow, "standby", [], folder, probe=standby),
        deploy_service(scanflow, "changing", options, folder, probe=probe) as server,
    ):
        for name, action in actions.items():
            metrics |= _under_load(name, action, server.url(probe.path), probe.body, requests=requests, rate=rate)
    return metrics


def _run_all(ours: _Service, *commands: Sequence[str]) -> None:
    for command in commands:
        ours.do(*command)


def _under_load(
    name: str, action: Callable[[], Any], url: str, body: bytes, *, requests: int, rate: float
) -> dict[str, float]:
    try:
        with steady_load(
            url, body, connections=CONNECTIONS, duration_s=MAX_DURATION_S, rate=rate, timeout_s=10
        ) as load:
            wait_for(load, requests // 3)
            began = time.monotonic()
            action()
            threading.Event().wait(max(0.0, began + LEAST_S - time.monotonic()))
            ended = time.monotonic()
            wait_for(load, max(requests, load.progress[0] + requests // 10))
            load.stop()
            result = load.read_result()
    except LoadError as error:
        raise NotMeasuredError(f"{name}: {error}") from error
    answered = [due + took for due, took in zip(result.due, result.took, strict=True)]
    before = result.compute_metrics([i for i, at in enumerate(answered) if at < began])
    during = result.compute_metrics([i for i, at in enumerate(answered) if at >= began and result.due[i] < ended])
    if result.failed:
        print(f"    {name}: {dict(result.reasons)}", flush=True)
    return {
        f"{name}_failed": result.failed,
        f"{name}_ratio": during.p99_s / before.p99_s,
        f"{name}_before_ms": before.p99_s * 1000,
        f"{name}_during_ms": during.p99_s * 1000,
    }
