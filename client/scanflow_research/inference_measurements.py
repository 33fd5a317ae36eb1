"""Granularity and affinity of an inference service (thesis chapter 4)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scanflow.characterization.characterization_study import rotate
from scanflow_research.experiment import Experiment, MeasureRound, Observe, find_core_problem
from scanflow_research.experiment_service import MeasuredService, build_application, find_serving_problem, open_deployer
from scanflow_research.figure import Claim, Figure, FigurePanel, Round

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


def _claim_finer(metric: str, statement: str, published: float, *, affinity: str = "ANY", less: bool = False) -> Claim:
    return Claim(
        statement=statement,
        metric=metric,
        arm=f"SUT_2 {affinity}",
        base=f"SUT_1 {affinity}",
        expect="less" if less else "more",
        published=published,
    )


_CUT = tuple(f"SUT_{count} {affinity}" for affinity in ("ANY", "CPUMEM") for count in (1, 2, 4, 8, 16, 32))
_UNPINNED_CUTS = tuple(name for name in _CUT if name.endswith("ANY"))
_CPUMEM = tuple(name for name in _CUT if name.endswith("CPUMEM"))

FIGURES = (
    Figure(
        name="fig4.2",
        source="Thesis, Fig. 4.2",
        title="Granularity and affinity in four client scenarios",
        experiment="inference",
        claims=(
            Claim(
                statement="SingleStream: SUT_2 ANY has a 4 % longer 90th percentile than SUT_1",
                metric="single_p90_ms",
                arm="SUT_2 ANY",
                base="SUT_1 ANY",
                published=1.04,
            ),
            _claim_finer("multi_rate", "MultiStream: SUT_2 is 32 % better than SUT_1 with ANY", 1.32),
            _claim_finer("server_rate", "Server: SUT_2 answers 40 % more than SUT_1 with ANY", 1.40),
            _claim_finer("server_rate", "Server: SUT_2 answers 49 % more with CPUMEM", 1.49, affinity="CPUMEM"),
            _claim_finer("offline_8", "Offline: SUT_2 is 28 % better than SUT_1 with ANY", 1.28),
            _claim_finer("offline_8", "Offline: SUT_2 is 31 % better with CPUMEM", 1.31, affinity="CPUMEM"),
        ),
        panels=(
            FigurePanel(metric="single_p90_ms", label="SingleStream: 90th percentile, ms", arms=_CUT),
            FigurePanel(metric="server_rate", label="Server: queries/s", arms=_CUT),
            FigurePanel(metric="offline_8", label="Offline, batches of 8: samples/s", arms=_CUT),
        ),
    ),
    Figure(
        name="fig4.3",
        source="Thesis, Fig. 4.3",
        title="Queries a second in MultiStream",
        experiment="inference",
        claims=(
            _claim_finer("multi_rate", "SUT_2 is 32 % better than SUT_1 with ANY", 1.32),
            _claim_finer("multi_rate", "SUT_2 is 38 % better than SUT_1 with CPUMEM", 1.38, affinity="CPUMEM"),
            Claim(
                statement="SUT_1 is up to 8 % better than the baseline, which has more threads than cores",
                published=1.08,
                untested="services refuse more threads than they have cores",
            ),
        ),
        panels=(FigurePanel(metric="multi_rate", label="MultiStream: samples/s", arms=_CUT),),
    ),
    Figure(
        name="fig4.4",
        source="Thesis, Fig. 4.4",
        title="Mean latency in Server",
        experiment="inference",
        claims=(
            _claim_finer(
                "server_mean_ms", "finer instances have a shorter mean latency with ANY, by up to 90 %", 0.5, less=True
            ),
            _claim_finer("server_mean_ms", "and with CPUMEM", 0.5, affinity="CPUMEM", less=True),
            Claim(
                statement="SUT_2 is 23 % quicker with CPUMEM than with ANY",
                metric="server_mean_ms",
                arm="SUT_2 CPUMEM",
                base="SUT_2 ANY",
                expect="less",
                published=0.77,
            ),
        ),
        panels=(FigurePanel(metric="server_mean_ms", label="Server: mean latency, ms", arms=_CUT),),
    ),
    *(
        Figure(
            name=f"fig4.{number}",
            source=f"Thesis, Fig. 4.{number}",
            title=f"{what} of single samples in Server, {affinity}",
            experiment="inference",
            claims=(
                Claim(
                    statement=statement, metric=metric, arm=f"SUT_2 {affinity}", base=f"SUT_1 {affinity}", expect="less"
                ),
            ),
            panels=(FigurePanel(metric=curve, label=f"{what}, s, by sample", arms=arms, curve=True),),
        )
        for number, what, affinity, arms, metric, curve, statement in (
            (
                5,
                "Inference time",
                "ANY",
                _UNPINNED_CUTS,
                "server_inference_ms",
                "inference_s",
                "finer instances infer sooner",
            ),
            (
                6,
                "Inference time",
                "CPUMEM",
                _CPUMEM,
                "server_inference_ms",
                "inference_s",
                "finer instances infer sooner",
            ),
            (
                7,
                "Issue delay",
                "ANY",
                _UNPINNED_CUTS,
                "server_delay_ms",
                "delay_s",
                "samples wait less with finer instances",
            ),
            (
                8,
                "Issue delay",
                "CPUMEM",
                _CPUMEM,
                "server_delay_ms",
                "delay_s",
                "samples wait less with finer instances",
            ),
        )
    ),
    Figure(
        name="fig4.9",
        source="Thesis, Fig. 4.9",
        title="Mean latency in Offline",
        experiment="inference",
        claims=(
            _claim_finer("offline_mean_ms", "finer instances have a shorter mean latency with ANY", 0.78, less=True),
            Claim(
                statement="SUT_2 is 3 % quicker with CPUMEM than with ANY",
                metric="offline_mean_ms",
                arm="SUT_2 CPUMEM",
                base="SUT_2 ANY",
                expect="same",
                published=0.97,
            ),
        ),
        panels=(FigurePanel(metric="offline_mean_ms", label="Offline: mean latency, ms", arms=_CUT),),
    ),
    Figure(
        name="fig4.10",
        source="Thesis, Fig. 4.10",
        title="Batches of 1, 2 and 4 in Offline",
        experiment="inference",
        claims=(
            _claim_finer("offline_1", "batches of 1: SUT_2 is 43 % better than SUT_1 with ANY", 1.43),
            _claim_finer("offline_2", "batches of 2: 42 %", 1.42),
            _claim_finer("offline_4", "batches of 4: 33 %", 1.33),
            _claim_finer("offline_1", "batches of 1 with CPUMEM: 53 %", 1.53, affinity="CPUMEM"),
        ),
        panels=tuple(
            FigurePanel(metric=f"offline_{size}", label=f"Offline, batches of {size}: samples/s", arms=_CUT)
            for size in (1, 2, 4)
        ),
    ),
    Figure(
        name="fig4.11",
        source="Thesis, Fig. 4.11",
        title="Offline on four nodes",
        untested="four nodes are needed, and this is one machine",
    ),
    Figure(
        name="fig4.12",
        source="Thesis, Fig. 4.12",
        title="Inference time of single samples in Offline, ANY (the thesis: on four nodes; here: on one machine)",
        experiment="inference",
        claims=(
            _claim_finer(
                "offline_p99_ms",
                "the tail is shorter with finer instances: the 99th percentile by 13 %",
                0.87,
                less=True,
            ),
        ),
        panels=(
            FigurePanel(
                metric="offline_s", label="Inference time, s, by sample, sorted", arms=_UNPINNED_CUTS, curve=True
            ),
        ),
    ),
    Figure(
        name="ingress-scaling",
        source="Secure Inference at Scale in Kubernetes, horizontal and vertical scalability",
        title="Throughput by instances, and by cores of an instance (CPU charts)",
        experiment="inference",
        claims=(
            Claim(
                statement="twice the instances of one core, with twice the clients, answer in proportion",
                metric="pods_rate",
                arm="SUT_2 CPUMEM",
                base="one core",
                expect="at least",
                least=1.7,
                published=2.0,
            ),
            Claim(
                statement="a single client does not use a larger instance in full: two cores are not twice as quick",
                metric="single_p90_ms",
                arm="SUT_1 CPUMEM",
                base="one core",
                expect="at least",
                least=0.55,
            ),
            Claim(
                statement="more but smaller instances have more throughput for their cores than a large one",
                metric="pods_rate",
                arm="SUT_2 CPUMEM",
                base="SUT_1 CPUMEM",
            ),
        ),
        panels=(
            FigurePanel(
                metric="pods_rate", label="four callers for each instance: requests/s", arms=("one core", *_CUT)
            ),
            FigurePanel(metric="single_rate", label="one caller: requests/s", arms=("one core", *_CUT)),
        ),
    ),
)
