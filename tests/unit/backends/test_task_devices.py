"""The GPUs of a run's steps: those near the cores that a step may use go first."""

from __future__ import annotations

from pathlib import Path

import pytest

import scanflow as sf
from scanflow.backends.device_claims import HomeDevices
from scanflow.backends.local.batch.task_devices import TaskDevices
from scanflow.names import RunName, StepName
from scanflow.placement.topology import uniform
from scanflow.testing.accelerators import FakeAccelerators, make_gpu

MACHINE = uniform(sockets=2, cores_per_socket=2)


@pytest.mark.parametrize(
    ("allowed", "avoids", "number"),
    [
        (None, (), 0),
        ((2, 3), (), 1),  # as a queue binds the process that starts runs
        (None, ("serve",), 1),
        ((0, 1), ("serve",), 0),  # a service has all its cores, which it shares then
    ],
)
def test_a_step_gets_a_gpu_near_the_cores_that_it_may_use(
    tmp_path: Path, allowed: tuple[int, ...] | None, avoids: tuple[str, ...], number: int
) -> None:
    devices = HomeDevices(tmp_path, lambda: FakeAccelerators(make_gpu(0, numa_node=0), make_gpu(1, numa_node=1)))
    folder = tmp_path / "services" / "serve"
    folder.mkdir(parents=True)
    (folder / "grants.json").write_text('{"shared": false, "grants": [{"cpus": [0, 1], "memory_nodes": [0]}]}')
    affinity = sf.Affinity(avoid_services=avoids) if avoids else None
    step = sf.Executor(name="train", mainfile="train.py", resources=sf.Resources(gpu=1), affinity=affinity)
    workflow = sf.Workflow(name="w", nodes=[step])
    machine = MACHINE.replace(allowed=allowed)
    own = TaskDevices(devices, RunName("calm-otter-417"), workflow, lambda: machine)
    assert own.take(step, StepName("train"), tmp_path / "attempt") == ""
    assert [use.number for use in own.describe(tmp_path / "attempt")] == [number]
