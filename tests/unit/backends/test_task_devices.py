"""The GPUs of a run's steps: which they get, and in which order."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

import scanflow as sf
from scanflow.accelerators.accelerator_port import DeviceProcess
from scanflow.app.plan import plan_workflow
from scanflow.backends.device_claims import HomeDevices
from scanflow.backends.local.batch.step_devices import DeviceQueue, plan_devices
from scanflow.backends.local.batch.task_devices import MISSING_S, TaskDevices, check_step_devices, explain_waits
from scanflow.backends.local.mpi.job_step import LAUNCH
from scanflow.errors import UnsupportedError
from scanflow.names import RunName, StepName
from scanflow.placement.device_grants import DeviceDemand
from scanflow.placement.topology import uniform
from scanflow.testing.accelerators import GIB, FakeAccelerators, make_gpu, make_mig_gpu
from scanflow.text.failures import Failure

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
    assert own.take(step, StepName("train"), tmp_path / "attempt", 0.0) == ""
    assert [use.number for use in own.describe(tmp_path / "attempt")] == [number]


class Run:
    """The steps of a run on a machine whose GPUs a test says; its clock goes as the test lets it."""

    def __init__(self, home: Path, *steps: sf.Executor) -> None:
        self.now, self.home = 0.0, home
        self.machine = FakeAccelerators(make_gpu(0), make_gpu(1))
        workflow = sf.Workflow(name="w", nodes=steps)
        devices = HomeDevices(home, lambda: self.machine)
        self.devices = TaskDevices(devices, RunName("calm-otter-417"), workflow, lambda: MACHINE, lambda: self.now)
        self.queue: DeviceQueue[str] = DeviceQueue(self.devices, lambda: self.now)

    def take(self, step: sf.Executor, name: str, attempt: int = 1) -> str:
        self.now += 1
        return self.queue.take(name, step, StepName(name), self.home / f"{name}-{attempt}")

    def try_again(self, step: sf.Executor, name: str) -> str:
        self.queue.retry()
        assert self.queue.find_next() == name
        self.queue.pop_next()
        return self.take(step, name)

    def list_numbers(self, name: str, attempt: int = 1) -> list[int]:
        return [use.number for use in self.devices.describe(self.home / f"{name}-{attempt}")]


def ask(name: str, gpu: float | str) -> sf.Executor:
    return sf.Executor(name=name, mainfile="train.py", resources=sf.Resources(gpu=gpu))


def test_those_that_ask_for_the_same_stand_in_line_and_others_beside_it(tmp_path: Path) -> None:
    whole, part = ask("whole", 1), ask("part", "1g.10gb")
    run = Run(tmp_path, whole, part)
    run.machine.inventory = replace(run.machine.inventory, devices=(make_gpu(0), make_mig_gpu(1, "1g.10gb", 1)))
    assert run.take(whole, "a") == ""
    assert run.take(whole, "b") == "GPU 0 is granted to calm-otter-417/a"
    assert run.take(whole, "c") == "b waits before it"
    assert run.take(part, "d") == "", "it waits for nothing that they wait for"
    assert run.queue.find_next() is None, "nothing has become free"
    run.devices.release(tmp_path / "a-1")
    assert run.try_again(whole, "b") == ""
    assert run.queue.find_next() == "c", "there may be another for the next"
    assert len(run.queue) == 1


def test_a_task_without_cores_lets_those_of_other_runs_go_first(tmp_path: Path) -> None:
    whole, both = ask("whole", 1), ask("both", 2)
    run, other = Run(tmp_path, whole, both), Run(tmp_path, whole)
    other.now = 100.0
    assert run.take(whole, "a") == ""
    assert run.take(both, "b").startswith("1 of 2 free")
    assert "kept for calm-otter-417/b" in other.take(whole, "c")
    run.queue.pause(StepName("b"))
    assert other.try_again(whole, "c") == ""


def test_what_was_there_when_the_run_began_is_waited_for_a_while(tmp_path: Path) -> None:
    both = ask("both", 2)
    run = Run(tmp_path, both)
    run.machine.change(0, fault="GPU is lost")
    assert run.take(both, "a").startswith("gpu=2 is more")
    run.now += MISSING_S - 2
    assert run.try_again(both, "a") != ""
    run.machine.change(0, fault="")
    assert run.try_again(both, "a") == "", "it was reset"
    run.devices.release(tmp_path / "a-1")
    run.machine.change(0, fault="GPU is lost")
    assert run.take(both, "b") != "", "the time counts anew"
    run.now += MISSING_S
    with pytest.raises(UnsupportedError, match="GPU is lost"):
        run.try_again(both, "b")


def test_a_step_that_failed_is_tried_again_on_another_gpu(tmp_path: Path) -> None:
    whole = ask("whole", 1)
    run = Run(tmp_path, whole)
    for attempt, number in ((1, 0), (2, 1)):
        assert run.take(whole, "a", attempt) == ""
        assert run.list_numbers("a", attempt) == [number]
        run.devices.explain_failure(tmp_path / f"a-{attempt}", Failure(summary="exit code 1"))
        run.devices.release(tmp_path / f"a-{attempt}")
    assert run.take(whole, "a", 3) == ""
    assert run.list_numbers("a", 3) == [0], "there is no other"


def test_a_job_that_asks_for_too_much_is_named_as_it_is_written(tmp_path: Path) -> None:
    devices = HomeDevices(tmp_path, lambda: FakeAccelerators(make_gpu(0), make_gpu(1)))
    step = sf.Executor(
        name="job", function=LAUNCH, parameters={"workload": {"n_tasks": 3}}, resources=sf.Resources(gpu=1)
    )
    with pytest.raises(UnsupportedError, match=r"^MPIWorkload 'job': 3 tasks x gpu=1 are more than"):
        check_step_devices(sf.Workflow(name="w", nodes=[step]), devices)


def test_a_plan_says_how_many_gpus_there_are_and_which_steps_would_wait_for_one(tmp_path: Path) -> None:
    devices = HomeDevices(tmp_path, lambda: FakeAccelerators(make_gpu(0), make_gpu(1), make_gpu(2, fault="lost")))
    steps = [sf.Executor(name=name, mainfile="a.py", resources=sf.Resources(gpu=1)) for name in "abc"]
    workflow = sf.Workflow(name="w", nodes=[*steps, sf.Executor(name="d", mainfile="a.py")])
    plan = plan_workflow(workflow, machine_cores=8, machine_memory_bytes=GIB)
    now = plan_devices(plan, workflow, lambda: devices)
    assert (plan.peak_gpus, now.peak_gpus, now.machine_gpus, now.notes) == (3, 2, 2, ())
    devices.take(tmp_path / "means", "means/1", DeviceDemand(count=2))
    who = "GPU 0 is granted to means/1; GPU 1 is granted to means/1; GPU 2 has failed: lost"
    assert plan_devices(plan, workflow, lambda: devices).notes == (
        f"gpu=1 is not free now: {who}. a, b, c would wait.",
    )
    wide = sf.Workflow(name="w", nodes=[step.replace(name=f"{step.name}{n}") for step in steps for n in range(2)])
    (note,) = plan_devices(plan, wide, lambda: devices).notes
    assert note.endswith(". 6 steps would wait.")


def test_a_plan_says_which_gpus_a_job_would_wait_for(tmp_path: Path) -> None:
    devices = HomeDevices(tmp_path, lambda: FakeAccelerators(make_gpu(0), make_gpu(1)))
    devices.take(tmp_path / "means", "means/1", DeviceDemand())
    step = sf.Executor(
        name="job", function=LAUNCH, parameters={"workload": {"n_tasks": 2}}, resources=sf.Resources(gpu=1)
    )
    assert explain_waits(sf.Workflow(name="w", nodes=[step]), devices) == (
        "2 tasks x gpu=1 are not free now: 1 of 2 free; GPU 0 is granted to means/1. job would wait.",
    )


def test_that_a_step_holds_more_is_said_at_most_every_few_seconds(tmp_path: Path) -> None:
    accelerators, now, attempt = FakeAccelerators(make_gpu(0)), [0.0], tmp_path / "attempt"
    step = sf.Executor(name="train", mainfile="train.py", resources=sf.Resources(gpu=1))
    workflow, home = sf.Workflow(name="w", nodes=[step]), HomeDevices(tmp_path, lambda: accelerators)
    own = TaskDevices(home, RunName("calm-otter-417"), workflow, lambda: MACHINE, lambda: now[0])
    assert own.take(step, StepName("train"), attempt, 0.0) == ""
    attempt.mkdir()
    started = {"pid": os.getsid(0), "birth": "", "shim": os.getpid(), "shim_birth": "", "began": 0}
    (attempt / "started").write_text(json.dumps(started))

    def look(at: float, held: int) -> list[Path]:
        now[0] = at
        accelerators.change(0, processes=(DeviceProcess(pid=os.getpid(), memory_bytes=held),))
        own.watch()
        return own.list_growth()

    moments = ((0, 0), (1, 5), (2, 9), (6, 7), (11, 9), (20, 10))
    assert [len(look(at, held)) for at, held in moments] == [0, 1, 0, 1, 0, 1]
