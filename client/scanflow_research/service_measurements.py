"""Colocation, failover and load balancing of a service (thesis Fig. 5.14 and 5.15; Secure Inference at Scale in
Kubernetes, session affinity)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scanflow.app.application import Application
from scanflow.app.serving import Serving
from scanflow.characterization.characterization_study import rotate
from scanflow.errors import StepFailedError
from scanflow_research.experiment import Experiment, MeasureRound, Observe, find_core_problem
from scanflow_research.experiment_service import (
    PROGRAMS,
    MeasuredService,
    build_application,
    find_serving_problem,
    open_deployer,
)
from scanflow_research.figure import Round

SECONDS = 4.0
BATCH_MEBIBYTES = 1536
RETURN_S = 60.0
"""The longest that a service may take to come back."""

INSTANCE = "x-scanflow-instance"


def find_problem() -> str | None:
    return find_core_problem(", which stand for two nodes") or find_serving_problem()


@contextmanager
def open_rounds(observe: Observe) -> Iterator[MeasureRound]:
    import numpy as np

    from scanflow.placement.sysfs import read_topology

    image = np.random.default_rng(1).random((1, 128, 128, 3), dtype=np.float32)
    with TemporaryDirectory(prefix="scanflow-reproduce-") as folder, open_deployer() as deployer:
        down = Path(folder) / "down"
        app = define_services(down)
        main = MeasuredService(deployer=deployer, app=app, name="main")
        spare = MeasuredService(deployer=deployer, app=app, name="spare")
        spare.deploy(instances=1, cores=1, affinity="any")
        main.deploy(instances=1, cores=1, affinity="cpu")
        main.warm_up(image, connections=2)

        def measure_colocation(number: int) -> dict[str, dict[str, float]]:
            (instance,) = deployer.service("main").instances
            own = set(instance.cpus)
            other = [cpu for cpu in read_topology().effective_cpus if cpu not in own][: len(own)]
            arms = {}
            for name in rotate(["together", "apart"], number):
                observe(f"a batch workflow and an online one {name}")
                cpus = sorted(own) if name == "together" else other
                with run_batch_work(cpus) as wait_for_batch:
                    load = main.send(image, connections=2, seconds=SECONDS).metrics()
                    arms[name] = {"online_rate": load.rate, "online_p95_ms": 1000 * load.p95_s}
                    arms[name]["batch_s"] = wait_for_batch()
            return arms

        def measure_failover() -> dict[str, dict[str, float]]:
            observe("failover to the backup and back")
            _distinguish(main, spare)
            before = measure_shares(main, spare, image, 1.0)
            down.touch()
            for instance in deployer.service("main").instances:
                if instance.pid is not None:
                    os.kill(instance.pid, signal.SIGKILL)
            _wait_until(lambda: deployer.service("main").ready == 0)
            during = measure_shares(main, spare, image, SECONDS)
            down.unlink()
            _wait_until(lambda: deployer.service("main").state == "ready")
            after = measure_shares(main, spare, image, 1.0)
            return {"before": before, "no replica ready": during, "back": after}

        def measure_balance() -> dict[str, dict[str, float]]:
            observe("requests by instance")
            main.deploy(instances=2)
            arms = {}
            for name, connections in (("one connection", 1), ("16 connections", 16)):
                load = main.send(image, connections=connections, seconds=SECONDS / 2, tally=INSTANCE)
                arms[name] = {"largest_share": 100 * max(load.tally.values()) / sum(load.tally.values())}
            main.deploy(instances=1)
            return arms

        def measure_round(number: int) -> Round:
            return Round(arms={**measure_colocation(number), **measure_failover(), **measure_balance()})

        yield measure_round


def define_services(down: Path) -> Application:
    """Return a service with a backup. It does not start while the file ``down`` exists."""
    app = build_application({"main": "image_functions.py:FragileImages", "spare": "image_functions.py:Images"})
    main, spare = app.workflows
    nodes = [main.services[0].replace(parameters={"down": str(down)})]
    serving = (main.serving or Serving()).replace(backup="spare")
    return app.replace(workflows=(main.replace(nodes=nodes, serving=serving), spare))


@contextmanager
def run_batch_work(cpus: list[int]) -> Iterator[Any]:
    """Run a batch program on these CPUs; provide a function that waits for it and returns its seconds."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    began = time.monotonic()
    try:
        command = [sys.executable, str(PROGRAMS / "transfer.py"), "recognize", str(BATCH_MEBIBYTES)]
        process = subprocess.Popen(command)
    finally:
        os.sched_setaffinity(0, before)

    def wait_for_end() -> float:
        if process.wait(300) != 0:
            raise StepFailedError(f"The batch program ended with {process.returncode}.")
        return time.monotonic() - began

    try:
        yield wait_for_end
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()


def measure_shares(main: MeasuredService, spare: MeasuredService, inputs: Any, seconds: float) -> dict[str, float]:
    """Return the shares of requests that the service's own instances answered, that the backup answered, and that were
    answered at all, in percent."""
    load = main.send(inputs, connections=2, seconds=seconds, tally=INSTANCE)
    answered = max(1, sum(load.tally.values()))
    by_backup = sum(load.tally.get(name, 0) for name in _list_instances(spare))
    return {
        "main": 100 * (1 - by_backup / answered),
        "backup": 100 * by_backup / answered,
        "answered": 100 * (1 - load.failed / max(1, load.requests)),
    }


def _list_instances(service: MeasuredService) -> set[str]:
    return {instance.instance for instance in service.deployer.service(service.name).instances}


def _distinguish(main: MeasuredService, spare: MeasuredService) -> None:
    """Replace the backup's instance until its number differs from the service's: requests are counted by number."""
    cores = 1
    while _list_instances(main) & _list_instances(spare):
        cores = 3 - cores
        spare.deploy(cores=cores)


def _wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, or a timeout: the measurement then shows that it did not."""
    until, pause = time.monotonic() + RETURN_S, threading.Event()
    while not condition() and time.monotonic() < until:
        pause.wait(0.2)


EXPERIMENT = Experiment(
    name="services",
    method=(
        "A service of one core, two callers in a closed loop, on this machine. Beside it a batch program on the same "
        "core, or on another one: a core stands for a node. Then its instance is killed and does not start again, and "
        "a backup answers; then it starts again. Then two instances, and requests over one connection and over 16."
    ),
    rounds=5,
    round_s=35.0,
    find_problem=find_problem,
    open=open_rounds,
)
