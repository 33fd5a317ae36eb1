"""Versions of a model and the memory of a GPU, under a real supervisor, with a stub of NVIDIA's library and stand-ins
for instances."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scanflow.accelerators.accelerator_port import Device, DeviceProcess
from scanflow.testing.accelerators import GIB, make_gpu
from tests.integration.test_gpus import sees_processes
from tests.nvml import StubbedMachine
from tests.waiting import PATIENCE_S, wait_until

STANDIN = Path(__file__).with_name("standin_instance.py")
CALL = """
import json, sys
from pathlib import Path
import scanflow as sf
from scanflow.errors import ScanflowError
from tests.integration.local_services import Services

home, standin, what, fields = sys.argv[1:]
services = Services(Path(home), "class Model: ...", program=(standin,))
error, fields = "", json.loads(fields)
try:
    if what == "deploy":
        services.deploy(resources=sf.Resources(gpu=1), **fields)
    elif what == "change":
        services.change(**fields)
    elif what == "delete":
        services.delete_all()
except ScanflowError as problem:
    error = str(problem)
records = [record.model_dump(mode="json") for record in services.local.services()]
print(json.dumps({"error": error, "messages": services.messages, "records": records}))
"""
Call = Callable[..., dict[str, Any]]


@pytest.fixture
def machine(tmp_path: Path) -> StubbedMachine:
    return StubbedMachine(tmp_path, make_gpu(0, memory=40 * GIB))


@pytest.fixture
def call(home: Path, machine: StubbedMachine) -> Iterator[Call]:
    for version, size in ((1, 8), (2, 30), (3, 5)):
        folder = home / "work" / str(version)
        folder.mkdir(parents=True)
        (folder / "MLmodel").write_text("flavors:\n  pytorch:\n    model_data: data\n")
        with (folder / "weights").open("wb") as file:
            file.truncate(size * GIB)

    def run(what: str, **fields: Any) -> dict[str, Any]:
        command = [sys.executable, "-c", CALL, str(home), str(STANDIN), what, json.dumps(fields)]
        environ = {**os.environ, **machine.variables}
        ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S)
        assert ran.returncode == 0, ran.stderr
        answer: dict[str, Any] = json.loads(ran.stdout)
        return answer

    yield run
    run("delete")


def list_devices(answer: dict[str, Any]) -> list[tuple[str, int]]:
    (record,) = answer["records"]
    return [(instance["instance"], instance["devices"][0]["number"]) for instance in record["instances"]]


def get_pid(answer: dict[str, Any]) -> int:
    pid: int = answer["records"][0]["instances"][-1]["pid"]
    return pid


def make_device(number: int, held: int = 0, pid: int | None = None) -> Device:
    processes = (DeviceProcess(pid=pid, memory_bytes=held * GIB),) if pid else ()
    return make_gpu(number, memory=40 * GIB, memory_used_bytes=held * GIB, processes=processes)


@sees_processes
def test_a_version_that_does_not_fit_is_refused_or_gets_instances_of_its_own(
    call: Call, machine: StubbedMachine
) -> None:
    deployed = call("deploy", model="models:/digits/1")
    assert (deployed["error"], list_devices(deployed)) == ("", [("1", 0)])
    pid = get_pid(deployed)
    machine.set_devices(make_device(0, 11, pid))
    wait_until(lambda: call("list")["records"][0]["instances"][0]["devices"][0]["peak_bytes"], "it is read back")

    refused = call("change", model="models:/digits/2", weight=0.5)
    assert refused["error"].startswith("'w': instance 1 needs 11 GiB of the 40 GiB that it may hold of GPU 0, and")
    alone = call("change", model="models:/digits/2")
    assert "no other gpu=1 is free for an instance with the new one: GPU 0 is granted to w/1" in alone["error"]
    again = call("deploy", model="models:/digits/2")  # the new instance would share the GPU with the old one
    assert "too little of its memory for models:/digits/2, which needs at least 30 GiB" in again["error"]
    assert get_pid(call("list")) == pid

    fits = call("change", model="models:/digits/3", weight=0.5)
    assert fits["error"] == ""
    assert any("models:/digits/3 adds at least 5 GiB" in message for message in fits["messages"])
    assert call("change", rollback=True)["error"] == ""
    assert get_pid(call("list")) == pid

    machine.set_devices(make_device(0, 11, pid), make_device(1))
    swapped = call("change", model="models:/digits/2")
    assert swapped["error"] == ""
    assert any("New instances with another gpu=1 are started" in message for message in swapped["messages"])
    wait_until(lambda: list_devices(call("list")) == [("2", 1)], "the new instance has replaced the old one")
    assert call("list")["records"][0]["revisions"][0]["models"] == {"model": "models:/digits/2"}
