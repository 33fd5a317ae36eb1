"""A real GPU, with real PyTorch: what steps are granted is what they see, shares are held, and use is read back."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.device_claims import HomeDevices
from scanflow.backends.run_records import RunRecord, TaskRecord, Waiting
from scanflow.placement.device_grants import describe_device
from tests.device.machine import DeviceMachine, has_mps, make_step, read_inventory, start_mps

_DEVICES = read_inventory().devices
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not _DEVICES, reason="no device: not run"),
    pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed"),
]

LOOK = """
import json, os, torch
seen = {"count": torch.cuda.device_count(), "available": torch.cuda.is_available()}
if seen["available"]:
    properties = torch.cuda.get_device_properties(0)
    seen |= {"uuid": str(properties.uuid), "processors": properties.multi_processor_count}
    torch.ones(256 * 2**20, dtype=torch.uint8, device="cuda").sum().item()
print(json.dumps(seen))
"""
ALLOCATE = """
import os, sys, time, torch
torch.ones(1, device="cuda")
gib = float(os.environ["GIB"])
taken = torch.ones(int(gib * 2**30), dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("allocated", flush=True)
time.sleep(float(os.environ["HOLD_S"]))
"""
TURNS = """
import os, time, torch
def note(what):
    with open("turns", "a") as file:
        file.write(f"{os.environ['SCANFLOW_TASK']} {what}\\n")
note("begins")
torch.ones(1, device="cuda").sum().item()
note("ends")
"""


@pytest.fixture
def machine(tmp_path: Path) -> DeviceMachine:
    for name, text in {"look.py": LOOK, "allocate.py": ALLOCATE, "turns.py": TURNS}.items():
        (tmp_path / name).write_text(text)
    return DeviceMachine(tmp_path)


def find_task(record: RunRecord, name: str) -> TaskRecord:
    return next(task for task in record.tasks if task.task == name)


def allocate(name: str, *, gib: float, hold_s: float, **resources: Any) -> sf.Executor:
    step = make_step(name, "allocate.py", **resources)
    return step.replace(env={"GIB": str(gib), "HOLD_S": str(hold_s)})


def test_a_step_sees_the_device_it_was_allocated_and_another_sees_none(machine: DeviceMachine) -> None:
    record = machine.run(make_step("train", "look.py", gpu=1), make_step("plain", "look.py"))
    assert record.state == "succeeded", record
    seen = json.loads(machine.read_output(record, "train"))
    (use,) = find_task(record, "train").devices
    assert (seen["count"], f"GPU-{seen['uuid']}") == (1, use.uuid)
    assert use.uuid in {device.uuid for device in _DEVICES}
    assert json.loads(machine.read_output(record, "plain")) == {"count": 0, "available": False}
    print(f"{describe_device(_DEVICES[0])}, driver {read_inventory().driver}: torch saw {seen}")


def test_more_steps_than_devices_alternate_and_say_that_they_wait(machine: DeviceMachine) -> None:
    steps = [make_step(f"step-{number}", "turns.py", gpu=len(_DEVICES)) for number in range(2)]
    record = machine.run(*steps)
    assert record.state == "succeeded", record
    lines = (machine.folder / "turns").read_text().splitlines()
    assert [line.split()[1] for line in lines] == ["begins", "ends"] * 2
    waits = [event for event in machine.events if isinstance(event, Waiting)]
    assert [wait.what for wait in waits] == ["a GPU for step-1"]
    assert HomeDevices(machine.folder / "home").list_claims() == []
    print(waits[0].why)


def test_memory_that_a_step_holds_is_read_back(machine: DeviceMachine) -> None:
    record = machine.run(allocate("hold", gib=2, hold_s=4, gpu=1))
    (use,) = find_task(record, "hold").devices
    assert record.state == "succeeded", record
    assert use.peak_bytes is not None
    assert 2 * 2**30 <= use.peak_bytes < 5 * 2**30
    print(f"held {use.peak_bytes / 2**30:.2f} GiB, beside {use.others}")


def test_a_step_that_takes_more_than_its_share_of_a_shared_gpu_is_stopped(machine: DeviceMachine) -> None:
    greedy = allocate("greedy", gib=6, hold_s=120, gpu=0.5, gpu_memory="4Gi")
    modest = allocate("modest", gib=1, hold_s=8, gpu=0.5, gpu_memory="4Gi")
    record = machine.run(greedy, modest)
    failure = find_task(record, "greedy").failure
    assert failure is not None
    assert failure.summary == "stopped: it used more than its share of a GPU", failure
    assert find_task(record, "modest").state == "succeeded", record
    print(failure.cause)


@pytest.mark.skipif(not has_mps(), reason="NVIDIA's Multi-Process Service is not installed")
def test_a_share_is_bounded_by_the_multi_process_service(machine: DeviceMachine) -> None:
    whole = json.loads(machine.read_output(machine.run(make_step("look", "look.py", gpu=1)), "look"))
    with start_mps(machine.folder):
        record = machine.run(
            make_step("look", "look.py", gpu=0.25),
            allocate("greedy", gib=6, hold_s=1, gpu=0.25, gpu_memory="4Gi"),
            allocate("modest", gib=1, hold_s=5, gpu=0.25, gpu_memory="4Gi"),
        )
    seen = json.loads(machine.read_output(record, "look"))
    assert seen["processors"] <= whole["processors"] * 0.25
    failure = find_task(record, "greedy").failure
    assert failure is not None
    assert "out of memory" in failure.cause, failure
    modest = find_task(record, "modest")
    assert modest.state == "succeeded", record
    assert {use.sharing for task in record.tasks for use in task.devices} == {"mps"}
    peak = modest.devices[0].peak_bytes
    assert peak is not None
    assert 2**30 <= peak <= 4 * 2**30
    print(
        f"{seen['processors']} of {whole['processors']} processors; {peak / 2**30:.2f} GiB held; {failure.cause:.120}"
    )


def test_more_than_there_is_is_refused_before_anything_runs(machine: DeviceMachine) -> None:
    with pytest.raises(sf.ScanflowError, match="is more than there is here: GPU 0 ") as refused:
        machine.run(make_step("train", "look.py", gpu=len(_DEVICES) + 1))
    with pytest.raises(sf.ScanflowError, match="No GPU here is cut into parts") as uncut:
        machine.run(make_step("train", "look.py", gpu="1g.10gb"))
    print(refused.value, uncut.value, sep="\n")
