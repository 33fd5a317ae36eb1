"""What a pod reads back of the GPUs that it was granted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scanflow.accelerators.accelerator_port import Accelerators, NoAccelerators
from scanflow.accelerators.visible import HOLDER_VARIABLE, SHARE_VARIABLE
from scanflow.backends.pod_devices import read_pod_devices
from scanflow.testing.accelerators import GIB, FakeAccelerators, make_gpu, make_mig_gpu

POD = {HOLDER_VARIABLE: "pod"}
FIRST, SECOND = make_gpu(0, memory_used_bytes=3 * GIB), make_gpu(1)
PARTS = make_mig_gpu(2, "1g.10gb", 2)


def read(accelerators: Accelerators, **environ: str) -> list[dict[str, Any]]:
    uses = read_pod_devices({**POD, **environ}, lambda: accelerators)
    return [use.model_dump(exclude_defaults=True) for use in uses]


def test_a_pod_says_which_gpus_its_driver_lists_and_how_full_they_are() -> None:
    gpus = FakeAccelerators(FIRST, SECOND)
    first = {"number": 0, "uuid": FIRST.uuid, "name": "NVIDIA H100", "sharing": "exclusive"}
    assert read(gpus)[0] == {**first, "memory_bytes": 80 * GIB, "peak_bytes": 3 * GIB, "used_bytes": 3 * GIB}
    assert [use["number"] for use in read(gpus)] == [0, 1]
    assert [use["number"] for use in read(gpus, NVIDIA_VISIBLE_DEVICES=SECOND.uuid)] == [1]
    assert [use["number"] for use in read(gpus, NVIDIA_VISIBLE_DEVICES="all")] == [0, 1]
    assert [use["number"] for use in read(gpus, NVIDIA_VISIBLE_DEVICES="/var/run/nvidia-container-devices")] == [0, 1]


@pytest.mark.parametrize(("variables", "sharing"), [({}, "time slicing"), ({"CUDA_MPS_PIPE_DIRECTORY": "/mps"}, "mps")])
def test_what_others_hold_of_a_shared_gpu_is_not_taken_for_its_own(variables: dict[str, str], sharing: str) -> None:
    gpus = FakeAccelerators(replace(FIRST, busy_share=0.9, power_w=400.0))
    (use,) = read(gpus, **{SHARE_VARIABLE: "0.25"}, **variables)
    assert (use["sharing"], use["share"]) == (sharing, 0.25)
    assert {"peak_bytes", "used_bytes", "busy_share", "power_w"}.isdisjoint(use)


def test_a_pod_says_how_busy_a_gpu_of_its_own_is_and_what_power_it_takes() -> None:
    (use,) = read(FakeAccelerators(replace(FIRST, busy_share=0.9, power_w=400.0)))
    assert (use["busy_share"], use["power_w"]) == (0.9, 400.0)


def test_a_part_is_listed_and_not_the_gpu_that_it_is_of() -> None:
    part = PARTS.mig_instances[1].uuid
    (use,) = read(FakeAccelerators(PARTS), NVIDIA_VISIBLE_DEVICES=part)
    assert (use["uuid"], use["name"], use["memory_bytes"]) == (part, "NVIDIA H100 1g.10gb", 10 * GIB)


def test_without_the_drivers_library_it_lists_those_of_the_container_runtime() -> None:
    none = NoAccelerators("no nvidia-ml-py")
    assert read(none, NVIDIA_VISIBLE_DEVICES=f"{FIRST.uuid},MIG-1") == [
        {"number": 0, "uuid": FIRST.uuid, "sharing": "exclusive"},
        {"number": 1, "uuid": "MIG-1", "sharing": "mig"},
    ]
    assert read(none, NVIDIA_VISIBLE_DEVICES="all") == []


def test_a_container_without_a_request_reads_nothing() -> None:
    def fail() -> Accelerators:
        raise AssertionError

    assert read_pod_devices({}, fail) == ()
    assert read_pod_devices({HOLDER_VARIABLE: "runs/calm-otter-417/steps/train/1"}, fail) == ()
