"""Online inference beside other servers: what a request costs, how large bodies fare, what a change costs."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks import tls
from tests.benchmarks.changes import CHANGES, CONNECTIONS, measure_changes
from tests.benchmarks.clients import busy, bytes_through, callers, client_name, compute_rate, group_ends
from tests.benchmarks.measure import Benchmark, Metric, Places, Sampler, Section, run
from tests.benchmarks.servers import Probe, alone, cores, oip
from tests.benchmarks.starters import PROGRAMS, Starter, mlflow, mlserver, starlette, start_scanflow

JSON = {"content-type": "application/json"}
BYTES = {"content-type": "application/octet-stream", "accept": "application/octet-stream"}
IMAGE_SIDE = 224
MIB = 1024 * 1024

COST = Section(
    group="serving",
    title="What a request costs",
    columns=("Scanflow", "Starlette", "MLServer", "MLflow", "bare metal"),
    text=(
        "Each server has one core, and its client another. Starlette is a bare application on uvicorn with uvloop and "
        "httptools that reads and writes the same JSON; MLServer runs its model in its own process "
        "(`parallel_workers: 0`), which is its quickest here; MLflow is `mlflow models serve`, whose own JSON is "
        "asked. The no-op components say `blocking = False`, as Starlette's handlers are called on the loop too: one "
        "that says nothing is called in a thread, so that it cannot stop the loop, and took 1.40× the latency (3 "
        "rounds, by itself)."
    ),
)
CHANGE = Section(
    group="serving",
    title="Latency and failed requests during a change",
    columns=("Scanflow",),
    text="On two cores, the command, starting instances and the client share the cores of the instances that answer.",
)
CUT = Section(
    group="serving",
    title="One instance or two on two cores: ResNet50",
    columns=("1 instance × 2 cores", "2 instances × 1 core"),
    text="Random weights, one image of 224 × 224 a request, as binary tensors; each instance pinned to its cores.",
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    seconds: float = 3.0
    image_seconds: float = 10.0
    bytes_seconds: float = 1.0
    resnet_seconds: float = 3.0
    requests: int = 20_000
    rate: float = 2000.0
    tls_requests: int = 2000


FULL = Sizes()
QUICK = Sizes(
    seconds=0.5, image_seconds=2.5, bytes_seconds=0.2, resnet_seconds=1.0, requests=2000, rate=200.0, tls_requests=100
)
"""Long enough to show that everything runs, and too short to tell anything."""

BODIES = {"1 B": 1, "1 KiB": 1024, "64 KiB": 64 * 1024, "1 MiB": MIB, "16 MiB": 16 * MIB}
CALLERS = (1, 2, 4)


def serving(places: Places, sizes: Sizes = FULL) -> list[Benchmark]:
    return [
        _noop(places, sizes),
        tls.benchmark(keep_alive=sizes.tls_requests, new=sizes.tls_requests // 10),
        _alone(places),
        _bytes(places, sizes),
        _images(places, sizes),
        _changes(places, sizes),
        _resnet(places, sizes),
    ]


def _noop(places: Places, sizes: Sizes) -> Benchmark:
    oip_probe = Probe(path="/v2/models/noop/infer", body=oip("input", [1, 2, 3, 4]), headers=JSON)
    mlflow_probe = Probe(path="/invocations", body=json.dumps({"inputs": [[1, 2, 3, 4]]}).encode(), headers=JSON)

    def sample_requests(starter: Starter, probe: Probe) -> Sampler:
        def sample(folder: Path) -> Mapping[str, float]:
            with starter(folder) as server:
                memory = server.memory_mb()
                client = cores()[1]
                url = server.url(probe.path)
                busy(url, probe.body, connections=8, seconds=sizes.seconds / 4, cpus=client, folder=folder)
                load = busy(url, probe.body, connections=1, seconds=sizes.seconds, cpus=client, folder=folder)
                many = busy(url, probe.body, connections=8, seconds=sizes.seconds, cpus=client, folder=folder)
            return {
                "p50_us": load["p50_us"],
                "requests_s": many["requests_s"],
                "ready_s": server.ready_s,
                "memory_mb": memory,
            }

        return sample

    return Benchmark(
        name="noop",
        section=COST,
        metrics=[
            Metric("p50_us", "no-op inference: median latency", "µs", bar=1.25, against="Starlette"),
            Metric(
                "requests_s",
                "the same: requests a second, 8 connections",
                "/s",
                bar=0.8,
                at_least=True,
                against="Starlette",
            ),
            Metric("ready_s", "the same: start of the command to the first answer", "s"),
            Metric("memory_mb", "the same: memory of all its processes, idle", "MB"),
        ],
        contenders={
            "Scanflow": sample_requests(start_scanflow(places, "noop", [], oip_probe, cpus=cores()[0]), oip_probe),
            "Starlette": sample_requests(starlette(places, oip_probe), oip_probe),
            "MLServer": sample_requests(mlserver(places, oip_probe), oip_probe),
            "MLflow": sample_requests(mlflow(places, mlflow_probe), mlflow_probe),
        },
        how=(
            "`scanflow deploy app.py:noop` (its supervisor included in the memory), `uvicorn`, `mlserver start`, "
            f"`mlflow models serve`; one row of four numbers as JSON, asked by {client_name()} from one "
            f"connection and from 8, the median of {sizes.seconds:g} runs of a second each, after a warm-up"
        ),
        rounds=3,
        warm_up=False,
    )


def _alone(places: Places) -> Benchmark:
    probe = Probe(path="/v2/models/noop/infer", body=oip("input", [1, 2, 3, 4]), headers=JSON)

    def sample(folder: Path) -> Mapping[str, float]:
        with alone(places.python, PROGRAMS / "noop", "Noop", "noop", folder, probe=probe) as server:
            return {"ready_s": server.ready_s, "memory_mb": server.memory_mb()}

    return Benchmark(
        name="instance",
        section=COST,
        metrics=[
            Metric("ready_s", "one no-op instance: start of its process until it answers", "s", bar=2),
            Metric("memory_mb", "the same: its memory, idle", "MB", bar=64),
        ],
        contenders={"Scanflow": sample},
        how=(
            "`python -m scanflow_serving` without a supervisor; from its start to the first right answer, asked "
            "every 5 ms; memory as the kernel counts it, pages that are shared counted once"
        ),
        rounds=5,
        warm_up=False,
    )


def _bytes(places: Places, sizes: Sizes) -> Benchmark:
    probe = Probe(path="/v2/models/reverse/infer", body=b"12", headers=BYTES)

    def sample_requests(starter: Starter) -> Sampler:
        def sample(folder: Path) -> Mapping[str, float]:
            with starter(folder) as server:
                return {
                    f"{name}, {clients}": bytes_through(
                        server.port, probe.path, size=size, clients=clients, seconds=sizes.bytes_seconds, folder=folder
                    )[_unit(size)[0]]
                    for name, size in BODIES.items()
                    for clients in (1, 4)
                }

        return sample

    return Benchmark(
        name="bytes",
        section=COST,
        metrics=[
            Metric(
                f"{name}, {clients}",
                f"bytes reversed, {name} a body, {clients} client{'' if clients == 1 else 's'}",
                _unit(size)[1],
                bar=400 if size == 16 * MIB else 0.8 if size <= 1024 else None,
                at_least=True,
                against="Starlette" if size <= 1024 else None,
            )
            for name, size in BODIES.items()
            for clients in (1, 4)
        ],
        contenders={
            "Scanflow": sample_requests(start_scanflow(places, "reverse", [], probe)),
            "Starlette": sample_requests(starlette(places, probe, cpus=())),
        },
        how=(
            "the bytes of a body come back in reverse, `application/octet-stream` both ways; from one instance on any "
            f"core, by `tests/benchmarks/bulk.py` for {sizes.bytes_seconds:g} s each; requests, or MiB sent, over "
            "the time taken"
        ),
        rounds=3,
        warm_up=False,
    )


def _unit(size: int) -> tuple[str, str]:
    return ("requests_s", "/s") if size <= 1024 else ("mib_s", "MiB/s")


def _images(places: Places, sizes: Sizes) -> Benchmark:
    options = ["--instances", "2", "--cores", "1", "--affinity", "cpu"]

    def measure_service(folder: Path) -> Mapping[str, float]:
        picture = _picture(places)
        probe = Probe(path="/v2/models/images/infer", body=picture, headers=BYTES)
        with start_scanflow(places, "images", options, probe)(folder) as server:
            result = callers(
                server.url(probe.path),
                picture,
                connections=4,
                seconds=sizes.image_seconds,
                headers=BYTES,
                tally="x-scanflow-instance",
            )
        return {"images_s": compute_rate(group_ends(result))}

    def bare(folder: Path) -> Mapping[str, float]:
        cpus = sorted(os.sched_getaffinity(0))[:2]
        program = PROGRAMS / "images" / "bare.py"
        printed = run([places.python, program, str(sizes.image_seconds), *map(str, cpus)], folder)
        return {"images_s": compute_rate(json.loads(printed))}

    return Benchmark(
        name="images",
        section=COST,
        metrics=[
            Metric(
                "images_s", "images of 3 MiB transformed, 2 cores", "/s", bar=0.95, at_least=True, against="bare metal"
            )
        ],
        contenders={"Scanflow": measure_service, "bare metal": bare},
        how=(
            "the image workload of the study with Pillow (blur, two noises, enhance, negate, normalize, reduce noise, "
            "swirl, wave), about a second of a core for each image; 2 instances of one core each, asked from 4 "
            f"connections for {sizes.image_seconds:g} s; bare metal is the same function in two pinned processes"
        ),
        rounds=3,
        warm_up=False,
    )


def _picture(places: Places) -> bytes:
    code = "import sys, transform; sys.stdout.buffer.write(transform.picture())"
    done = subprocess.run([places.python, "-c", code], cwd=PROGRAMS / "images", capture_output=True, check=True)
    return done.stdout


def _changes(places: Places, sizes: Sizes) -> Benchmark:
    def sample(folder: Path) -> Mapping[str, float]:
        shutil.copytree(PROGRAMS / "changes", folder, dirs_exist_ok=True)
        run([places.python, "models.py"], folder, timeout_s=120)
        return measure_changes(places.ours / "scanflow", folder, requests=sizes.requests, rate=sizes.rate)

    metrics = []
    for key, what in CHANGES.items():
        lost = CONNECTIONS if key in {"crash", "failover"} else 0  # what the killed had read: one a connection
        metrics += [
            Metric(f"{key}_failed", f"{what}: failed of {sizes.requests:,} requests and more", "", bar=lost),
            Metric(f"{key}_ratio", "the same: p99 during, over p99 before", "×", bar=2),
            Metric(f"{key}_before_ms", "the same: p99 before", "ms"),
            Metric(f"{key}_during_ms", "the same: p99 during", "ms"),
        ]
    return Benchmark(
        name="changes",
        section=CHANGE,
        metrics=metrics,
        contenders={"Scanflow": sample},
        how=(
            f"a registered ONNX model, 2 instances of a core each, asked {sizes.rate:g} times a second from 8 "
            "connections whether or not it answers, latency counted from when a request was due; each change is made "
            "after a third of the requests by its command, and `during` is until the command says that it is done (for "
            "killed instances: until the service is whole again), a second at least"
        ),
        rounds=2,
        warm_up=False,
    )


def _resnet(places: Places, sizes: Sizes) -> Benchmark:
    probe = _image_probe()

    def cut(instances: int, threads: int) -> Sampler:
        options = ["--instances", str(instances), "--cores", str(threads), "--affinity", "cpu"]

        def sample(folder: Path) -> Mapping[str, float]:
            metrics = {}
            with start_scanflow(places, "resnet", options, probe)(folder) as server:
                url = server.url(probe.path)
                callers(url, probe.body, connections=4, seconds=sizes.resnet_seconds / 2, headers=probe.headers)
                for count in CALLERS:
                    figures = callers(
                        url, probe.body, connections=count, seconds=sizes.resnet_seconds, headers=probe.headers
                    ).metrics()
                    metrics[f"requests_s_{count}"] = figures.rate
                    metrics[f"p50_ms_{count}"] = figures.p50_s * 1000
                    metrics[f"p99_ms_{count}"] = figures.p99_s * 1000
            return metrics

        return sample

    labels = {"requests_s": ("requests a second", "/s"), "p50_ms": ("p50", "ms"), "p99_ms": ("p99", "ms")}
    return Benchmark(
        name="resnet",
        section=CUT,
        metrics=[
            Metric(f"{key}_{count}", f"{count} caller{'' if count == 1 else 's'}: {what}", unit)
            for count in CALLERS
            for key, (what, unit) in labels.items()
        ],
        contenders={CUT.columns[0]: cut(1, 2), CUT.columns[1]: cut(2, 1)},
        how=(
            "Keras' ResNet50 as a component; `scanflow deploy app.py:resnet --instances N --cores C --affinity cpu`; "
            f"each caller sends its next image when it was answered, for {sizes.resnet_seconds:g} s"
        ),
        rounds=3,
        warm_up=False,
    )


def _image_probe() -> Probe:
    values = bytes(struct.pack("<f", 0.5)) * (IMAGE_SIDE * IMAGE_SIDE * 3)
    tensor = {
        "name": "input",
        "shape": [1, IMAGE_SIDE, IMAGE_SIDE, 3],
        "datatype": "FP32",
        "parameters": {"binary_data_size": len(values)},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"content-type": "application/octet-stream", "inference-header-content-length": str(len(head))}
    return Probe(path="/v2/models/resnet/infer", body=head + values, headers=headers)
