"""GPUs are searched with the cores: what they may be cut into, what a trial says of them, and what a winner leaves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from scanflow.accelerators.accelerator_port import Device, DeviceProcess, Inventory
from scanflow.backends.device_claims import HomeDevices
from scanflow.backends.device_energy import EnergyMeter
from scanflow.backends.run_records import DeviceUse
from scanflow.backends.service_change import Deployment
from scanflow.backends.service_records import InstanceRecord, ServiceRecord
from scanflow.errors import InvalidError
from scanflow.placement.device_cuts import DeviceBudget
from scanflow.placement.device_grants import DeviceGrant
from scanflow.placement.topology import uniform
from scanflow.testing.accelerators import GIB, FakeAccelerators, make_gpu, make_mig_gpu
from scanflow.tuning.candidates import Candidate, SearchSpace, describe
from scanflow.tuning.goals import Goal, Measurement
from scanflow.tuning.result import Trial, TuningResult
from scanflow.tuning.service_copy import ServiceCopy, build_copy
from scanflow.tuning.study import Study
from scanflow.tuning.warm_start import TuningHistory
from scanflow_client.service_load import build_load_plan
from scanflow_client.tuning import (
    TuningBudget,
    build_cluster_space,
    build_device_budget,
    build_search_space,
    check_copy_gpus,
    tune_service,
)
from scanflow_client.tuning_history import compact
from scanflow_client.tuning_report import TuningReport, format_tuning, suggest_command
from scanflow_client.tuning_target import TuningTarget
from tests.unit.test_load import say, server
from tests.unit.tuning.conftest import SimulatedBench
from tests.unit.tuning.test_tuning import Place, request

APP = """
import scanflow as sf

node = sf.Service(name="cnn", implementation="a.py:A", resources=sf.Resources(cpu={cpu}, {gpu}))
app = sf.Application(name="shop", team="t", workflows=[sf.Workflow(name="serve", type="online", nodes=[node])])
"""
FOUR = uniform(sockets=1, cores_per_socket=4)


@pytest.fixture
def make_target(tmp_path: Path) -> Any:
    def make(gpu: str = "gpu=1", place: Place | None = None, cpu: int = 4) -> TuningTarget:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        (folder / "app.py").write_text(APP.format(gpu=gpu, cpu=cpu))
        return TuningTarget.find(place or Place("http://127.0.0.1:1"), f"{folder}/app.py:serve")  # type: ignore[arg-type]

    return make


@pytest.fixture
def make_devices(tmp_path: Path) -> Any:
    def make(*devices: Device) -> HomeDevices:
        return HomeDevices(tmp_path / "home", lambda: FakeAccelerators(*devices))

    return make


def list_cuts(space: SearchSpace) -> dict[int, int | float | str]:
    return {candidate.instances: candidate.gpu for candidate in space.whole}


@pytest.mark.parametrize(
    ("gpu", "gpus", "cuts"),
    [
        ("gpu=1", None, {1: 1, 2: 0.5, 4: 0.25}),
        ("gpu=0.5", None, {1: 0.5, 2: 0.25, 4: 0.125}),
        ("gpu=1", 2, {1: 2, 2: 1, 4: 0.5}),
        ("gpu=1, gpu_memory='30Gi'", None, {1: 1, 2: 0.5}),
    ],
)
def test_the_gpus_that_a_service_has_are_its_budget_unless_another_is_given(
    make_target: Any, make_devices: Any, gpu: str, gpus: int | None, cuts: dict[int, float]
) -> None:
    target = make_target(gpu)
    budget = build_device_budget(target, make_devices(make_gpu(0), make_gpu(1)), gpus=gpus)
    assert budget is not None
    limited = replace(budget, inventory=Inventory(devices=(make_gpu(0),))) if gpus is None else budget
    space, default = build_search_space(target, FOUR, [], cores=None, batches=[], gpus=limited)
    assert list_cuts(space) == cuts
    assert (default.instances, default.gpu) == (1, target.shape.gpu)


def test_parts_that_an_administrator_cut_are_found_from_a_service_that_has_some(
    make_target: Any, make_devices: Any
) -> None:
    target = make_target("gpu='1g.10gb'")
    budget = build_device_budget(target, make_devices(make_mig_gpu(0, "1g.10gb", 4)), gpus=1)
    space, default = build_search_space(target, FOUR, [], cores=None, batches=[], gpus=budget)
    assert default.gpu == "1g.10gb"
    assert list_cuts(space) == {4: "1g.10gb"}
    assert [(refused.instances, refused.gpu) for refused in space.refused_cuts] == [(1, 1), (2, 0.5), (4, 0.25)]


def test_a_service_without_gpus_has_none_to_divide(make_target: Any, make_devices: Any) -> None:
    target = make_target("memory='1Gi'")
    assert build_device_budget(target, make_devices(make_gpu(0)), gpus=None) is None
    with pytest.raises(InvalidError, match=r"'serve' asks for no GPU, .*resources=sf.Resources\(gpu=1\)"):
        build_device_budget(target, make_devices(make_gpu(0)), gpus=1)
    with pytest.raises(InvalidError, match=r"'serve' asks for no GPU"):
        build_cluster_space(target, cores=None, batches=[], gpus=1)


def refuse_copy(target: TuningTarget, devices: HomeDevices, gpus: int | None = None) -> str:
    """Return why there is no search."""
    budget = build_device_budget(target, devices, gpus=gpus)
    with pytest.raises(InvalidError) as raised:
        build_search_space(target, FOUR, [], cores=None, batches=[], gpus=budget)
    return str(raised.value)


def test_where_the_copy_cannot_have_a_gpu_the_search_is_refused_with_who_has_it(
    make_target: Any, make_devices: Any
) -> None:
    busy = make_gpu(0, processes=(DeviceProcess(pid=1, name="notebook"),))
    beside = refuse_copy(make_target(), make_devices(busy))
    assert "GPU 0 is used by notebook 1. Wait" in beside
    assert "elete or scale down meanwhile the service that has them" in beside
    none = refuse_copy(make_target(), make_devices())
    assert none.startswith("A copy of 'serve' cannot have its GPUs here: gpu=1 asks for a GPU, and there is none here")
    assert "elete" not in none, "there is no service that has them"


@pytest.mark.parametrize(
    ("owners", "instances", "advice"),
    [
        (
            ("serve/1", "serve/2"),
            2,
            ". Scale 'serve' down meanwhile (scanflow scale serve 1), or delete it, and name its file: ",
        ),
        (("serve/1",), 1, ". Delete 'serve' meanwhile, and name its file: "),
        (("other/1",), 1, ". Wait until they are free, or delete or scale down meanwhile the service that has them."),
        (("serve/1", "other/1"), 1, ". Delete 'serve' meanwhile, and name its file: "),
    ],
)
def test_how_a_gpu_becomes_free_depends_on_who_has_it(
    make_target: Any, make_devices: Any, owners: tuple[str, ...], instances: int, advice: str
) -> None:
    devices = tuple(make_gpu(number) for number in range(len(owners)))
    target = make_target()
    shape = target.shape.model_copy(update={"instances": instances})
    record = Place("http://127.0.0.1:1").deploy(Deployment(target.app, "serve"))
    target = replace(target, record=record.model_copy(update={"shape": shape}))
    claims = tuple(
        DeviceGrant(uuid=gpu.uuid, device=gpu.uuid, number=gpu.number, owner=owner)
        for gpu, owner in zip(devices, owners, strict=True)
    )
    budget = DeviceBudget(gpus=1, inventory=Inventory(devices=devices), claims=claims)
    with pytest.raises(InvalidError) as raised:
        check_copy_gpus(target, budget, instances, 1)
    assert advice in str(raised.value)


def test_more_gpus_than_there_are_are_refused(make_target: Any, make_devices: Any) -> None:
    with pytest.raises(InvalidError, match=r"--gpus 5 .* here: GPU 0 NVIDIA H100 \(80 GiB\), GPU 1 NVIDIA H100"):
        build_device_budget(make_target(), make_devices(make_gpu(0), make_gpu(1)), gpus=5)


def test_where_nothing_can_be_tried_no_search_begins(
    make_target: Any, make_devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scanflow.placement.sysfs.read_topology", lambda: uniform(sockets=1, cores_per_socket=2))
    place = Place("http://127.0.0.1:1")
    budget, devices = TuningBudget(), make_devices(make_gpu(0), make_gpu(1))

    def search(resources: str, gpus: int | None) -> str:
        target = make_target(resources, place, cpu=1)
        with pytest.raises(InvalidError) as raised:
            tune_service(place, target, request, Goal(), budget, gpus=gpus, devices=devices)  # type: ignore[arg-type]
        return str(raised.value)

    refusal = search("gpu=1", 1)
    assert refusal.startswith(
        "With 1 core and 1 GPU, there is nothing to compare 'serve' as it is with: 1 × 1 core, gpu=1, any."
    )
    assert " Left out: 2 × gpu=0.5: " in refusal
    assert refusal.endswith("(--cores 2), other GPUs (--gpus N), or sizes of batches (--batches 4,16).")
    assert "GPU" not in search("memory='1Gi'", None)
    assert place.deployed == []


def test_on_a_cluster_pods_have_the_gpus_in_equal_shares(make_target: Any) -> None:
    space, default = build_cluster_space(make_target(), cores=None, batches=[])
    assert list_cuts(space) == {1: 1, 2: 0.5, 4: 0.25}
    assert describe(default) == "1 × 4 cores, gpu=1, any"
    with pytest.raises(InvalidError, match=r"gpu='1g.10gb', a part, which cannot be divided further"):
        build_cluster_space(make_target("gpu='1g.10gb'"), cores=None, batches=[])


def test_the_best_cut_of_a_gpu_is_found_with_a_part_of_an_exhaustive_search_s_trials() -> None:
    """Like the table of docs/gpu.md: small batches gain by cuts, and large ones fill the GPU by themselves."""

    def rate(candidate: Candidate) -> float:
        small = {1: 1176.0, 2: 2261.0, 4: 4447.0, 8: 5000.0}[candidate.instances]
        full = {1: 14259.0, 2: 14354.0, 4: 14082.0, 8: 13000.0}[candidate.instances]
        bound = {"any": 0.98, "cpu": 1.0, "cpumem": 1.0, "cpumempin": 0.97}[candidate.affinity]
        return bound * {None: small, 16: 0.6 * full, 64: full}[candidate.batch]

    devices = DeviceBudget(gpus=1, inventory=Inventory(devices=(make_gpu(0),), mps_directory="/tmp/nvidia-mps"))
    space = SearchSpace(topology=uniform(sockets=2, cores_per_socket=4), cores=8, batches=(16, 64), gpus=devices)
    best, near, spent = max(map(rate, space.whole)), 0, []
    for seed in range(20):
        study = Study(
            space=space,
            default=Candidate(instances=1, cores=8.0, gpu=1),
            goal=Goal(),
            bench=(bench := SimulatedBench(rate, noise=0.02, seed=seed)),
            clock=bench.clock,
            most=50,
            seconds=1e6,
        ).run()
        assert study.winner is not None
        near += rate(study.winner) >= 0.95 * best
        spent.append(len(study.trials) / len(space.whole))
    assert near >= 19
    assert max(spent) <= 0.4


def test_what_was_found_on_another_machine_is_adapted_to_the_gpus_here() -> None:
    devices = DeviceBudget(gpus=1, inventory=Inventory(devices=(make_gpu(0),)))
    space = SearchSpace(topology=FOUR, cores=4, gpus=devices)
    history = TuningHistory(
        ranking=(Candidate(instances=4, cores=1.0, gpu="1g.10gb"), Candidate(instances=2, cores=2.0, gpu=0.5)),
        default=Candidate(instances=1, cores=4.0),
        ratio=1.5,
        trials=9,
    )
    adapted = history.adapt(space)
    assert [candidate.gpu for candidate in (*adapted.ranking, adapted.default)] == [0.25, 0.5, 1]
    assert {it.gpu for it in history.adapt(SearchSpace(topology=FOUR, cores=4)).ranking} == {0}


def test_a_history_names_gpus_where_there_are_some() -> None:
    assert compact(Candidate(instances=2, cores=1.0)) == {"instances": 2, "cores": 1.0}
    assert compact(Candidate(instances=2, cores=1.0, gpu=0.5)) == {"instances": 2, "cores": 1.0, "gpu": 0.5}


@dataclass
class GpuPlace(Place):
    """A deployer of services, each instance of which has its share of GPU 0 and holds memory there."""

    def deploy(self, deployment: Deployment, **options: Any) -> ServiceRecord:
        record = super().deploy(deployment, **options)
        share = record.shape.gpu
        assert isinstance(share, int | float)
        use = DeviceUse(number=0, uuid="GPU-0", sharing="mps", share=share, peak_bytes=3 * GIB)
        instances = tuple(
            InstanceRecord(instance=str(number), state="ready").with_details(devices=[use.model_dump()])
            for number in range(record.shape.instances)
        )
        self.running[record.name] = record.model_copy(update={"instances": instances})
        return self.running[record.name]


@pytest.mark.processes
def test_each_cut_is_deployed_from_nothing_and_its_memory_and_energy_are_measured(make_target: Any) -> None:
    counters = iter(range(0, 10**6, 500))

    class Counting(FakeAccelerators):
        def read(self) -> Inventory:
            self.change(0, energy_j=float(next(counters)))
            return super().read()

    gpus = Counting(make_gpu(0, uuid="GPU-0"))
    with server(lambda handler, number: say(handler)) as url:
        place = GpuPlace(url.removesuffix("/infer"))
        target = make_target("gpu=1", place)
        copy = ServiceCopy(
            where=place,  # type: ignore[arg-type]
            app=build_copy(target.app, target.workflow),
            load=lambda record: build_load_plan(record, request(record.name), connections=1),
            seconds=0.05,
            count_energy=lambda uuids: EnergyMeter(uuids, lambda: gpus),
        )
        with copy:
            for candidate in (Candidate(instances=1, cores=4.0, gpu=1), Candidate(instances=4, cores=1.0, gpu=0.25)):
                measurement = copy.measure(candidate)
                assert measurement.gpu_bytes == candidate.instances * 3 * GIB
                assert measurement.energy_j_per_1000 == pytest.approx(1000 * 500 / measurement.requests)
    assert [deployment.sizing.gpu for deployment in place.deployed if deployment.sizing] == [1, 0.25]
    assert place.deleted == ["serve-tune"] * 3, "before each, and at the end"


@pytest.mark.processes
def test_a_search_measures_the_cuts_that_the_machine_has_and_says_which_it_left_out(
    make_target: Any, make_devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scanflow.placement.sysfs.read_topology", lambda: FOUR)
    monkeypatch.setattr("scanflow.tuning.study.FRESH_PAIRS", 1)
    monkeypatch.setattr("scanflow.tuning.study.SEARCH_PAIRS", 1)
    with server(lambda handler, number: say(handler)) as url:
        place = GpuPlace(url.removesuffix("/infer"))
        report = tune_service(
            place,  # type: ignore[arg-type]
            make_target("gpu=1, gpu_memory='30Gi'", place),
            request,
            Goal(),
            TuningBudget(trials=1, minutes=60),
            devices=make_devices(make_gpu(0)),
            seconds=0.05,
            connections=1,
        )
    assert [trial.candidate.gpu for trial in report.result.trials] == [0.5]
    summary = report.summary()
    assert (summary["cores"], summary["gpus"]) == (4, 1.0)
    assert [(refused["instances"], refused["gpu"]) for refused in summary["refused_cuts"]] == [(4, 0.25)]
    assert "Left out: 4 × gpu=0.25: " in "\n".join(map(str, format_tuning(report)))


def make_report(target: TuningTarget) -> TuningReport:
    default, best = (
        Candidate(instances=1, cores=4.0, gpu=1),
        Candidate(instances=4, cores=1.0, gpu=0.25, affinity="cpu"),
    )

    def measure(rate: float, count: int, **more: Any) -> tuple[Measurement, ...]:
        figures: dict[str, Any] = {"p50_s": 0.01, "p90_s": 0.02, "p99_s": 0.03, "requests": 9, **more}
        return tuple(Measurement(rate=rate, **figures) for _ in range(count))

    first = measure(100.0, 2, gpu_bytes=2 * GIB, energy_j_per_1000=1120.4)
    trial = Trial(candidate=best, default=first, measured=measure(200.0, 2, gpu_bytes=3 * GIB, energy_j_per_1000=35.5))
    fresh = Trial(candidate=best, default=measure(100.0, 6), measured=measure(200.0, 6))
    result = TuningResult(goal=Goal(), default=default, trials=(trial,), best=best, fresh=fresh, alternatives=3)
    return TuningReport(target=target, result=result, cores=4, gpus=1.0)


def test_what_is_better_is_said_with_its_memory_and_energy_and_the_command_that_applies_it(make_target: Any) -> None:
    report = make_report(make_target())
    head, table, *_ = format_tuning(report)
    assert str(head).startswith("serve on 4 cores and 1 GPU for requests/s")
    assert tuple(table.headers) == (  # type: ignore[union-attr]
        "candidate", "requests/s", "p50", "p90", "p99", "GPU memory", "J per 1,000", "better by",
    )  # fmt: skip
    assert [list(row)[5:7] for row in table.rows] == [["2 GiB", "1,120"], ["3 GiB", "35.5"]]  # type: ignore[union-attr]
    command = suggest_command(report)
    assert command is not None
    assert command.endswith("app.py:serve --instances 4 --cores 1 --gpu 0.25 --affinity cpu")
