"""From which on a service gets no more from its GPU, and how much of its memory an instance needs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from scanflow.accelerators.accelerator_port import Inventory
from scanflow.backends.device_claims import HomeDevices
from scanflow.backends.run_records import DeviceUse
from scanflow.backends.service_change import Deployment
from scanflow.backends.service_records import InstanceRecord, ServiceRecord
from scanflow.characterization.analysis import (
    PRECISION,
    DeviceUsage,
    MemoryKnee,
    ResourceRecommendation,
    WorkflowCharacterization,
    choose_instances,
    classify_saturation,
)
from scanflow.characterization.measurement import SizedRun
from scanflow.errors import InvalidError, UsageError
from scanflow.placement.device_cuts import DeviceBudget
from scanflow.processes.cpu_use import BUSY_CORES
from scanflow.testing.accelerators import GIB, FakeAccelerators, make_gpu, make_mig_gpu
from scanflow_client.characterize_workflow import characterize_service
from scanflow_client.cli import characterize_command
from scanflow_client.cli.characterize_command import find_workflow
from scanflow_client.cli.command_tree import app
from scanflow_client.formatting.characterization_text import format_workflow_characterization
from scanflow_client.tuning_target import TuningTarget
from tests.unit.test_load import say, server
from tests.unit.tuning.test_tuning import Place, request

MIB = 2**20
NEEDED = 1500 * MIB
APP = """
import scanflow as sf

node = sf.Service(name="cnn", implementation="a.py:A", resources=sf.Resources(cpu=1, gpu={gpu}))
app = sf.Application(name="shop", team="t", workflows=[sf.Workflow(name="serve", type="online", nodes=[node])])
"""
ONE = Inventory(devices=(make_gpu(0),))


@dataclass
class LimitedPlace(Place):
    """A deployer of services on a GPU: an instance needs so much of its memory, and takes more if it may."""

    def deploy(self, deployment: Deployment, **options: Any) -> ServiceRecord:
        record = super().deploy(deployment, **options)
        limit = record.shape.gpu_memory_bytes
        if limit is not None and limit < NEEDED:
            raise UsageError("instance 1 ended: CUDA out of memory")
        batching = deployment.online.services[0].batching
        peak = 2 * GIB + (0 if batching is None else batching.max_size * MIB)
        use = DeviceUse(number=0, uuid="GPU-0", sharing="time slicing", peak_bytes=peak)
        instances = tuple(
            InstanceRecord(instance=str(number), state="ready").with_details(devices=[use.model_dump()])
            for number in range(record.shape.instances)
        )
        self.running[record.name] = record.model_copy(update={"instances": instances})
        return self.running[record.name]


def characterize(
    tmp_path: Path, *devices: Any, gpu: str = "1", sees_processes: bool = True
) -> WorkflowCharacterization:
    (tmp_path / "app.py").write_text(APP.format(gpu=gpu))
    accelerators = FakeAccelerators(*devices, sees_processes=sees_processes)
    with server(lambda handler, number: say(handler)) as url:
        place = LimitedPlace(url.removesuffix("/infer"))
        result = characterize_service(
            place,  # type: ignore[arg-type]
            TuningTarget.find(place, f"{tmp_path}/app.py:serve"),  # type: ignore[arg-type]
            request,
            [1, 2],
            rounds=1,
            seconds=0.05,
            batches=[1, 8],
            devices=HomeDevices(tmp_path / "home", lambda: accelerators),
        )
    assert place.running == {}
    return result


@pytest.mark.processes
def test_a_service_is_measured_with_more_instances_larger_batches_and_less_memory_of_its_gpu(tmp_path: Path) -> None:
    result = characterize(tmp_path, make_gpu(0))
    assert {size: runs[0].gpu_bytes for size, runs in result.runs.items()} == {
        "1 × 1 core, gpu=1, cpu": 2 * GIB,
        "1 × 2 cores, gpu=1, cpu": 2 * GIB,
        "2 × 1 core, gpu=0.5, cpu": 4 * GIB,
        "1 × 2 cores, gpu=1, cpu, batches of 1": 2 * GIB + MIB,
        "1 × 2 cores, gpu=1, cpu, batches of 8": 2 * GIB + 8 * MIB,
    }
    usage = result.device
    assert usage is not None
    assert (set(usage.by_instances.speed), set(usage.by_batch.speed)) == ({1, 2}, {1, 8})
    assert usage.knee is not None
    assert usage.knee.too_few < NEEDED <= usage.knee.enough <= PRECISION**2 * NEEDED + 2 * MIB + 2 * GIB / 40
    assert result.recommendation.gpu == {1: 1, 2: 0.5}[usage.instances]
    assert result.recommendation.gpu_memory_bytes is not None
    assert result.recommendation.gpu_memory_bytes >= 1.2 * usage.knee.enough
    json.dumps(asdict(result))


@pytest.mark.processes
def test_where_memory_of_a_gpu_cannot_be_limited_it_is_said(tmp_path: Path) -> None:
    result = characterize(tmp_path, make_mig_gpu(0, "1g.10gb", 2), gpu="'1g.10gb'")
    assert result.device is not None
    assert (result.device.knee, result.device.limits) == (None, {})
    assert result.missing[-1] == "limits of its GPU's memory: a part has its own"
    assert (result.recommendation.gpu, result.recommendation.gpu_memory_bytes) == ("1g.10gb", None)


@pytest.mark.processes
def test_where_nothing_holds_a_process_to_a_share_only_whole_gpus_are_measured(tmp_path: Path) -> None:
    result = characterize(tmp_path, make_gpu(0), sees_processes=False)
    assert not any("gpu=0.5" in size for size in result.runs)
    assert "Multi-Process Service" in result.missing[-1]


def test_where_a_copy_cannot_have_the_gpu_nothing_is_measured(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=r"A copy of 'serve' cannot have its GPUs here: gpu=1 asks"):
        characterize(tmp_path)


def test_with_a_request_a_file_alone_is_an_application_as_for_tune(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "app.py"
    path.write_text(APP.format(gpu=1))
    monkeypatch.setattr(characterize_command, "open_deployer", lambda: Place("http://127.0.0.1:1"))
    measured: list[str] = []

    def measure(_deployer: object, target: TuningTarget, *_: object, **__: object) -> WorkflowCharacterization:
        measured.append(target.workflow.name)
        raise InvalidError("nothing is measured here")

    monkeypatch.setattr("scanflow_client.characterize_workflow.characterize_service", measure)
    CliRunner().invoke(app, ["characterize", str(path), "--data", "[[1.0]]"])
    assert measured == ["serve"]
    with pytest.raises(UsageError, match="this is a program"):
        CliRunner().invoke(app, ["characterize", "python", "train.py", "--data", "[[1.0]]"], catch_exceptions=False)
    assert find_workflow([str(path)]) is None, "without one it may be a program"


@given(
    seconds=st.dictionaries(st.sampled_from([1, 2, 4, 8]), st.floats(0.1, 1.0), min_size=1),
    memory=st.none() | st.integers(1, 90),
)
def test_no_more_instances_are_recommended_than_fit_the_gpu_and_none_that_help_little(
    seconds: dict[int, float], memory: int | None
) -> None:
    speed = classify_saturation({count: [value] for count, value in seconds.items()})
    needed = None if memory is None else memory * GIB
    instances, gpu = choose_instances(speed, DeviceBudget(gpus=1, inventory=ONE, memory_bytes=needed), 1)
    assert instances == 1 or instances in seconds
    assert instances <= max(1, speed.enough)
    assert instances * (memory or 0) <= 80 or instances == 1
    assert isinstance(gpu, int | float)
    assert instances * gpu <= 1
    larger = [count for count in seconds if instances < count <= speed.enough]
    assert all(count * (memory or 0) > 80 for count in larger)


def test_what_a_gpu_gives_is_said() -> None:
    usage = DeviceUsage(
        by_instances=classify_saturation({1: [4.0], 2: [2.0], 4: [1.9]}),
        by_batch=classify_saturation({1: [1.0], 16: [0.1], 64: [0.09]}),
        limits={2 * GIB: True, GIB: False},
        knee=MemoryKnee(enough=2 * GIB, too_few=GIB),
        instances=2,
    )
    result = WorkflowCharacterization(
        name="serve",
        unit="request",
        runs={"1 × 1 core": (characterized_run(),)},
        saturation=classify_saturation({1: [1.0]}),
        recommendation=ResourceRecommendation(cpu=1.0, memory_bytes=GIB, gpu=0.5, gpu_memory_bytes=2 * GIB),
        device=usage,
    )
    _, _, *lines, request = format_workflow_characterization(result)
    assert lines == [
        "On the GPU, more instances do not help. Close to its fastest: 2 instances.",
        "On the GPU, larger batches do not help. Close to its fastest: batches of 16.",
        "On the GPU, an instance runs with 2,048 MiB, but not with 1,024 MiB.",
    ]
    assert str(request).endswith(', gpu=0.5, gpu_memory="2048Mi"), instances=2')


def test_what_others_used_meanwhile_is_said() -> None:
    def characterize_beside(*others: float) -> list[str]:
        runs = {"1 × 1 core": tuple(replace(characterized_run(), others=cores) for cores in others)}
        result = WorkflowCharacterization(
            name="serve",
            unit="request",
            runs=runs,
            saturation=classify_saturation({1: [1.0]}),
            recommendation=ResourceRecommendation(cpu=1.0, memory_bytes=GIB),
        )
        return [str(line) for line in format_workflow_characterization(result)[2:-1]]

    assert characterize_beside(0.0, BUSY_CORES) == []
    (line,) = characterize_beside(0.0, 0.2, 1.34)
    assert line.startswith("Other processes used the machine in 2 of 3 measurements, by up to 1.3 cores, and may have")


def characterized_run() -> SizedRun:
    return SizedRun(seconds=1.0, cores=1.0, peak_bytes=MIB, gpu_bytes=GIB)
