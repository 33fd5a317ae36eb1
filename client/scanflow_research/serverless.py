"""Functions as services: image processing and byte reversal (Decker, Kasprzak and Kunkel, Algorithms 2022, 15, 234)."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scanflow.characterization.characterization_study import rotate
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
SIDE = 400
"""The side of an image, in pixels."""

BODY_BYTES = 1 << 20
CALLERS = 8
"""Callers for each instance: with two as in the study, which has a balancer, one instance may get all."""

ONE_INSTANCE, ONE_PER_CORE = "one instance", "one for each core"


def find_problem() -> str | None:
    return find_core_problem() or find_serving_problem()


@contextmanager
def open_rounds(observe: Observe) -> Iterator[MeasureRound]:
    import numpy as np

    from scanflow.placement.sysfs import read_topology

    cores = read_topology().effective_count
    image = np.random.default_rng(1).random((1, SIDE, SIDE, 3), dtype=np.float32)
    body = np.frombuffer(np.random.default_rng(2).bytes(BODY_BYTES), dtype=np.uint8)[np.newaxis]
    app = build_application(
        {name: f"image_functions.py:{name.capitalize()}" for name in ("images", "pauses", "reversal")}
    )
    with open_deployer() as deployer:
        services = {
            name: MeasuredService(deployer=deployer, app=app, name=name) for name in ("images", "pauses", "reversal")
        }

        def measure_rate(name: str, inputs: Any, instances: int, connections: int) -> float:
            observe(f"{name}, {instances} instances")
            service = services[name]
            service.deploy(instances=instances, cores=1, affinity="any")
            service.warm_up(inputs, connections=connections)
            return service.send(inputs, connections=connections, seconds=SECONDS).metrics().rate

        def measure_bare() -> dict[str, float]:
            observe("images, a function call")
            command = [sys.executable, str(PROGRAMS / "image_functions.py"), str(SIDE), str(SECONDS)]
            processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(cores)]
            return {"images": sum(float(process.communicate(timeout=60)[0]) for process in processes)}

        def measure_reversal() -> dict[str, dict[str, float]]:
            observe("reversal")
            service = services["reversal"]
            service.deploy(instances=cores, cores=1, affinity="any")
            service.warm_up(body, connections=1)
            single = service.send(body, connections=1, seconds=SECONDS)
            rates = [BODY_BYTES / took / 2**20 for took in single.took if took > 0]
            mean = statistics.fmean(rates)
            parallel = service.send(body, connections=4 * cores, seconds=SECONDS).metrics().rate * BODY_BYTES / 2**20
            return {
                "single": {
                    "reversal": mean,
                    "geometric": statistics.geometric_mean(rates) / mean,
                    "harmonic": statistics.harmonic_mean(rates) / mean,
                },
                "parallel": {"reversal": parallel},
            }

        def measure_round(number: int) -> Round:
            arms: dict[str, dict[str, float]] = {}
            counts = {ONE_INSTANCE: 1, ONE_PER_CORE: cores}
            for name in rotate(list(counts), number):
                count = counts[name]
                arms[name] = {
                    "images": measure_rate("images", image, count, CALLERS * count),
                    "pauses": measure_rate("pauses", image, count, CALLERS * count),
                }
            return Round(arms={**arms, "function call": measure_bare(), **measure_reversal()})

        yield measure_round


EXPERIMENT = Experiment(
    name="serverless",
    method=(
        f"Functions as scanflow services on this machine, not OpenFaaS or Nuclio: image processing of {SIDE}×{SIDE} "
        "pixels with NumPy, the same with a pause of 0.2 s instead (NP), both with eight callers for each instance; "
        f"and reversal of {BODY_BYTES >> 20} MiB, one request at a time and four for each instance. The baseline "
        "calls the function in a process for each core."
    ),
    rounds=4,
    round_s=60.0,
    find_problem=find_problem,
    open=open_rounds,
)
