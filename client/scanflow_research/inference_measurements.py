"""Granularity and affinity of an inference service (thesis chapter 4)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scanflow.characterization.characterization_study import rotate
from scanflow_research.experiment import Experiment, MeasureRound, Observe, find_core_problem
from scanflow_research.experiment_service import MeasuredService, build_application, find_serving_problem, open_deployer
from scanflow_research.figure import Round

if TYPE_CHECKING:
    from scanflow.load.load_process import LoadResult

SECONDS = 2.5
"""The duration of one load."""

SERVER_S = 5.0
SERVER_LOAD = 2.0
"""The load per throughput of the single instance, which the thesis' 200 queries/s exceed, too (Fig. 4.7)."""

CALLERS = 4
"""Callers for each core in Offline: with fewer, all connections may go to one instance."""

STREAM_SAMPLES = 8
"""Samples in flight in MultiStream: as many as a LoadGen query has."""

BATCHES = (1, 2, 4, 8)


def find_problem() -> str | None:
    return find_core_problem(" to cut them") or find_serving_problem()


def define_arms(cores: int) -> dict[str, dict[str, Any]]:
    """Return the sizing of each arm: Table 4.1 with the cores of this machine."""
    arms: dict[str, dict[str, Any]] = {}
    for count in (1, 2, 4, 8, 16, 32):
        if cores % count == 0:
            sizing = {"instances": count, "cores": cores // count, "threads": cores // count}
            arms |= {
                f"SUT_{count} {affinity.upper()}": {**sizing, "affinity": affinity} for affinity in ("any", "cpumem")
            }
    arms["one core"] = {"instances": 1, "cores": 1, "affinity": "cpu", "threads": 1}
    return arms


@contextmanager
def open_rounds(observe: Observe) -> Iterator[MeasureRound]:
    import numpy as np

    from scanflow.load.arrivals import build_constant_rate
    from scanflow.placement.sysfs import read_topology

    cores = read_topology().effective_count
    arms = define_arms(cores)
    image = np.random.default_rng(1).random((max(BATCHES), 224, 224, 3), dtype=np.float32)
    callers = CALLERS * cores
    capacity: list[float] = []

    with open_deployer() as deployer:
        app = build_application({"network": "network.py:ImageClassifier"}, deadline=300.0)
        service = MeasuredService(deployer=deployer, app=app, name="network")

        def measure_arm(name: str, number: int, curves: dict[str, dict[str, list[float]]]) -> dict[str, float]:
            sizing = arms[name]
            service.deploy(**sizing)
            service.warm_up(image[:1], connections=callers)
            observe(f"{name}, SingleStream")
            single = service.send(image[:1], connections=1, seconds=SECONDS).metrics()
            observe(f"{name}, {CALLERS} callers for each instance")
            pods = service.send(image[:1], connections=CALLERS * sizing["instances"], seconds=SECONDS).metrics()
            metrics = {"single_p90_ms": 1000 * single.p90_s, "single_rate": single.rate, "pods_rate": pods.rate}
            if name == "one core":
                return metrics
            observe(f"{name}, MultiStream")
            multi = service.send(image[:1], connections=STREAM_SAMPLES, seconds=SECONDS).metrics()
            metrics["multi_rate"] = multi.rate
            for size in BATCHES:
                observe(f"{name}, Offline, batches of {size}")
                load = service.send(image[:size], connections=callers, seconds=SECONDS * max(1, size / 2))
                metrics[f"offline_{size}"] = size * load.metrics().rate
                if size == max(BATCHES):
                    metrics["offline_mean_ms"] = 1000 * load.metrics().mean_s
                    metrics["offline_p99_ms"] = 1000 * load.metrics().p99_s
                    curves.setdefault("offline_s", {})[name] = sorted(_compute_inference_times(load))
            if not capacity:
                capacity.append(metrics["offline_1"])
            observe(f"{name}, Server")
            due = build_constant_rate(SERVER_LOAD * capacity[0], SERVER_S).generate_arrivals(poisson=number)
            load = service.send(image[:1], connections=callers, arrivals=due)
            metrics["server_rate"] = load.metrics().rate
            metrics["server_mean_ms"] = 1000 * load.metrics().mean_s
            inference = _compute_inference_times(load)
            metrics["server_inference_ms"] = 1000 * statistics.fmean(inference)
            metrics["server_delay_ms"] = 1000 * statistics.fmean(load.waited)
            curves.setdefault("inference_s", {})[name] = inference
            curves.setdefault("delay_s", {})[name] = list(load.waited)
            return metrics

        def measure_round(number: int) -> Round:
            curves: dict[str, dict[str, list[float]]] = {}
            order = rotate(list(arms), number)
            if not capacity:  # its rate determines the load of Server
                order.sort(key=lambda name: name != "SUT_1 ANY")
            measured = {name: measure_arm(name, number, curves) for name in order}
            return Round(arms={name: measured[name] for name in arms}, curves=curves)

        yield measure_round


def _compute_inference_times(load: LoadResult) -> list[float]:
    """Return the time of each request at the service, in seconds, in the order in which they were due."""
    return [took - waited for took, waited in zip(load.took, load.waited, strict=True)]


MODEL = "Keras' ResNet50 with random weights, or where Keras is not installed a network of matrix products"

EXPERIMENT = Experiment(
    name="inference",
    method=(
        f"{MODEL}: images of 224×224×3 as float32, by our model server on this machine: the cores cut into instances "
        f"as in Table 4.1, any cores (ANY) or cores and memory of their own (CPUMEM). Loads of {SECONDS:g} s: "
        f"SingleStream one caller; MultiStream {STREAM_SAMPLES} samples in flight; Offline {CALLERS} callers for each "
        f"core, in batches, larger ones for a longer time; Server a Poisson process of "
        f"{SERVER_LOAD:g} times what SUT_1 ANY answers, for {SERVER_S:g} s."
    ),
    rounds=3,
    round_s=220.0,
    find_problem=find_problem,
    open=open_rounds,
)
