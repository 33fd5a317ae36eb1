"""The tuner's pick among the cuts of a GPU, beside the best of an exhaustive search: on one service, side by side."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from scanflow.backends.device_claims import HomeDevices
from scanflow.backends.service_records import ServiceRecord
from scanflow.deployer import Deployer, EmbeddedDeployer
from scanflow.errors import ScanflowError
from scanflow.load.load_process import LoadPlan
from scanflow.placement.sysfs import read_topology
from scanflow.settings import Settings
from scanflow.tuning.candidates import Candidate, SearchSpace, describe
from scanflow.tuning.goals import Goal
from scanflow.tuning.service_copy import ServiceCopy, build_copy
from scanflow.tuning.study import Bench, Study
from scanflow_client.predict_io import PredictRequest, to_http
from scanflow_client.service_load import build_load_plan
from scanflow_client.tuning import build_device_budget
from scanflow_client.tuning_target import TuningTarget
from tests.device.machine import has_mps, start_mps

CORES, BATCHES, CONNECTIONS = 4, (16, 64), 128
MODEL = Path(__file__).with_name("gpu_network.py")
HEAD = ("of the tuner and of all", "images/s", "of the best", "J per 1,000", "candidates measured")
APP = """
import scanflow as sf

resources = sf.Resources(cpu={cores}, gpu=1, gpu_memory="4Gi")
node = sf.Service(name="network", implementation="gpu_network.py:Network", resources=resources)
served = sf.Workflow(name="served", type="online", nodes=[node], serving=sf.Serving(grpc_port=0))
app = sf.Application(name="device", workflows=[served])
"""


@dataclass(frozen=True, kw_only=True)
class ComparedSearch:
    """What a search picked, and what all candidates reached."""

    default: Candidate
    pick: Candidate
    trials: int
    rates: dict[Candidate, float]
    """Of every candidate; 0: it cannot be served."""

    energies: dict[Candidate, float]
    """Joules for 1,000 requests, of those where the GPU counts them."""

    def build_rows(self) -> Iterator[Sequence[str]]:
        best = max(self.rates, key=lambda candidate: self.rates[candidate])
        arms = (("as it is", self.default, 1), ("tuner", self.pick, self.trials + 1), ("all", best, len(self.rates)))
        for name, candidate, measured in arms:
            energy = self.energies.get(candidate)
            yield (
                f"{name}: {describe(candidate)}",
                f"{self.rates[candidate]:,.0f}",
                f"{self.rates[candidate] / self.rates[best]:.0%}",
                "-" if energy is None else f"{energy:.3g}",
                str(measured),
            )


def compare_searches(
    space: SearchSpace,
    default: Candidate,
    bench: Bench,
    *,
    rounds: int = 2,
    clock: Callable[[], float] = time.monotonic,
) -> ComparedSearch:
    """Search, and then measure every candidate, so many times in turn."""
    study = Study(space=space, default=default, goal=Goal(), bench=bench, most=50, seconds=3600.0, clock=clock)
    result = study.run()
    rates: dict[Candidate, list[float]] = {candidate: [] for candidate in space.whole}
    energies: dict[Candidate, float] = {}
    for _ in range(rounds):
        for candidate, measured in rates.items():
            try:
                measurement = bench.measure(candidate)
            except ScanflowError:
                measured.append(0.0)
                continue
            measured.append(0.0 if measurement.failed else measurement.rate)
            if measurement.energy_j_per_1000 is not None:
                energies[candidate] = measurement.energy_j_per_1000
    same = {space.find_placement(candidate): candidate for candidate in rates}
    return ComparedSearch(
        default=same[space.find_placement(default)],
        pick=same[space.find_placement(result.winner or default)],
        trials=len(result.trials),
        rates={candidate: statistics.fmean(measured) for candidate, measured in rates.items()},
        energies=energies,
    )


def measure_searches(seconds: float, *, model: Path = MODEL) -> ComparedSearch:
    """Deploy a service on this machine's GPU, by MPS where it is installed, and compare the searches for it. ``model``:
    a file with its class ``Network``."""
    with tempfile.TemporaryDirectory(prefix="scanflow-gpu-") as name:
        folder = Path(name)
        shutil.copy(Path(__file__).with_name("gpu_load.py"), folder)
        shutil.copy(model, folder / "gpu_network.py")
        mps: AbstractContextManager[None] = start_mps(folder) if has_mps() else nullcontext()
        with mps, open_copy(folder, seconds) as (target, devices, copy):
            budget = build_device_budget(target, devices, gpus=None)
            space = SearchSpace(
                topology=read_topology(), cores=CORES, batches=BATCHES, affinities=("any",), gpus=budget
            )
            return compare_searches(space, Candidate(instances=1, cores=float(CORES), gpu=1), copy)


@contextmanager
def open_copy(folder: Path, seconds: float) -> Iterator[tuple[TuningTarget, HomeDevices, ServiceCopy]]:
    (folder / "app.py").write_text(APP.format(cores=CORES), encoding="utf-8")
    settings = Settings(home=folder / "home", backend="local")
    deployer: Deployer = EmbeddedDeployer(settings)
    target = TuningTarget.find(deployer, f"{folder}/app.py:served")

    def build_load(record: ServiceRecord) -> LoadPlan:
        request = to_http(deployer, record.name, PredictRequest(inputs=[[0.5]]), node=None, dtype=None, seldon=False)
        return build_load_plan(record, request, connections=CONNECTIONS)

    copy = ServiceCopy(
        where=deployer,
        app=build_copy(target.app, target.workflow),
        load=build_load,
        source=target.source,
        seconds=seconds,
    )
    with copy:
        yield target, HomeDevices(settings.home), copy
