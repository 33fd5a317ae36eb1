"""GPUs of this machine, with the shipped double and with a stub of NVIDIA's library: granted, waited for, read back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.accelerators.accelerator_port import Device, DeviceProcess, Inventory
from scanflow.backends.device_claims import HomeDevices
from scanflow.backends.local.batch.backend import LocalBackend
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import Event, RunRecord, TaskRecord, TaskStarted, Waiting
from scanflow.errors import UsageError
from scanflow.processes.shims import read_started
from scanflow.settings import Settings
from scanflow.testing.accelerators import GIB, FakeAccelerators, make_gpu, make_mig_gpu
from tests.conftest import COMMAND, Cli
from tests.http_requests import HTTP
from tests.nvml import StubbedMachine
from tests.serving import read_instance
from tests.waiting import PATIENCE_S, wait_until

SHOW = """
import json, os, sys
names = [name for name in os.environ if name.startswith(("CUDA_", "SCANFLOW_GPU"))]
with open(os.environ["SCANFLOW_OUTPUT_DIR"] + "/seen.json", "w") as file:
    json.dump({name: os.environ[name] for name in names}, file)
"""
LEDGER = """
import os
def note(what):
    with open("ledger", "a") as file:
        file.write(os.environ["SCANFLOW_TASK"] + " " + what + "\\n")
"""
HOLD = """
import os, time
open("holding", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
"""

sees_processes = pytest.mark.skipif(
    str(Path("/proc/self/ns/pid").readlink()) != "pid:[4026531836]",
    reason="in a container with process ids of its own nobody sees who is on a GPU",
)


class Machine:
    """Runs workflows of one home on a machine whose GPUs a test says."""

    def __init__(self, home: Path, folder: Path, accelerators: FakeAccelerators) -> None:
        self.accelerators, self.folder, self.events = accelerators, folder, list[Event]()
        self.backend = LocalBackend(Settings(home=home, slots=4), accelerators=lambda: accelerators)
        self.home = home

    def define(self, *steps: sf.Executor) -> RunDefinition:
        workflow = sf.Workflow(name="w", nodes=steps)
        app = sf.Application(name="shop", team="people", workflows=[workflow], app_dir=str(self.folder))
        return RunDefinition(app, workflow)

    def run(self, *steps: sf.Executor, observe: Callable[[Event], None] = lambda _: None) -> RunRecord:
        def note(event: Event) -> None:
            self.events.append(event)
            observe(event)

        entered = self.backend.enter(self.define(*steps))
        return self.backend.drive(entered.name, environment=lambda _: {}, observe=note)

    def read_seen(self, record: RunRecord, step: str) -> dict[str, str]:
        seen: dict[str, str] = json.loads((Path(record.folder) / "outputs" / step / "seen.json").read_text())
        return seen


@pytest.fixture
def make_machine(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "mps"))
    (tmp_path / "show.py").write_text(SHOW)
    (tmp_path / "hold.py").write_text(HOLD)

    def make(*devices: Device, **options: Any) -> Machine:
        return Machine(home, tmp_path, FakeAccelerators(*devices, **options))

    return make


def script(name: str, file: str = "show.py", **fields: Any) -> sf.Executor:
    options = {field: fields.pop(field) for field in ("env", "retries", "cache") if field in fields}
    return sf.Executor(name=name, mainfile=file, resources=sf.Resources(**fields), **options)


def find_task(record: RunRecord, name: str) -> TaskRecord:
    return next(task for task in record.tasks if task.task == name)


def list_waits(machine: Machine) -> list[tuple[str, str]]:
    return [(event.what, event.why) for event in machine.events if isinstance(event, Waiting)]


def test_a_step_sees_the_gpu_it_was_given_and_one_that_asks_for_none_sees_none(
    make_machine: Callable[..., Machine],
) -> None:
    machine = make_machine(make_gpu(0), make_gpu(1))
    record = machine.run(script("train", gpu=1), script("both", gpu=2), script("plain"))
    assert record.state == "succeeded"
    uuids = [device.uuid for device in machine.accelerators.inventory.devices]
    assert machine.read_seen(record, "train")["CUDA_VISIBLE_DEVICES"] in uuids
    assert machine.read_seen(record, "both")["CUDA_VISIBLE_DEVICES"] == ",".join(uuids)
    assert machine.read_seen(record, "plain")["CUDA_VISIBLE_DEVICES"] == ""
    (use,) = find_task(record, "train").devices
    assert (use.uuid, use.name, use.sharing, use.share) == (use.uuid, "NVIDIA H100", "exclusive", 1.0)
    assert use.memory_bytes == 80 * GIB
    assert find_task(record, "plain").devices == ()


def test_where_no_gpu_can_be_allocated_nothing_is_hidden(
    make_machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = make_machine()
    assert "CUDA_VISIBLE_DEVICES" not in machine.read_seen(machine.run(script("plain")), "plain")


def test_a_share_is_bounded_and_a_part_is_given_by_its_uuid(make_machine: Callable[..., Machine]) -> None:
    machine = make_machine(make_gpu(0), make_mig_gpu(1, "1g.10gb", 1), mps_directory="/tmp/nvidia-mps")
    record = machine.run(script("half", gpu=0.5, gpu_memory="8Gi"), script("part", gpu="1g.10gb"))
    half = machine.read_seen(record, "half")
    assert half["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert half["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M"
    assert half["SCANFLOW_GPU_MEMORY_BYTES"] == str(8 * GIB)
    assert machine.read_seen(record, "part")["CUDA_VISIBLE_DEVICES"].startswith("MIG-")


def test_steps_wait_for_a_free_gpu_and_say_so_while_others_go_on(
    make_machine: Callable[..., Machine], tmp_path: Path
) -> None:
    machine = make_machine(make_gpu(0))
    (tmp_path / "work.py").write_text(f"{LEDGER}\nnote('begins')\n{HOLD}\nnote('ends')")
    (tmp_path / "free.py").write_text("import os, time\nwhile not os.path.exists('holding'): time.sleep(0.01)\n"
                                      "open('go', 'w').close()")  # fmt: skip
    shown: dict[str, str | None] = {}

    def look(event: Event) -> None:
        if isinstance(event, Waiting):
            shown.update((task.task, task.waits_for) for task in machine.backend.show(str(event.run)).tasks)

    record = machine.run(
        script("first", "work.py", gpu=1), script("second", "work.py", gpu=1), script("free", "free.py"), observe=look
    )
    assert record.state == "succeeded"
    assert shown == {"first": None, "second": f"a GPU: GPU 0 is granted to {record.name}/first", "free": None}
    assert {task.waits_for for task in record.tasks} == {None}
    lines = (tmp_path / "ledger").read_text().splitlines()
    assert [line.split()[1] for line in lines] == ["begins", "ends", "begins", "ends"]  # never two at a time
    assert list_waits(machine) == [("a GPU for second", f"GPU 0 is granted to {record.name}/first")]


def test_many_tasks_share_two_gpus_in_turn(make_machine: Callable[..., Machine]) -> None:
    machine = make_machine(make_gpu(0), make_gpu(1))
    many = script("many", gpu=1).replace(for_each=list(range(12)), parameters={"index": sf.item})
    record = machine.run(many)
    assert [task.state for task in record.tasks] == ["succeeded"] * 12
    assert {task.devices[0].number for task in record.tasks} == {0, 1}
    assert len(list_waits(machine)) == 1  # once a step
    assert HomeDevices(machine.home).list_claims() == []


def test_a_gpu_that_another_program_uses_is_waited_for(make_machine: Callable[..., Machine]) -> None:
    program = DeviceProcess(pid=1, memory_bytes=12 * GIB, name="notebook")
    machine = make_machine(make_gpu(0, processes=(program,)))

    def free(event: Event) -> None:
        if isinstance(event, Waiting):
            machine.accelerators.change(0, processes=())

    record = machine.run(script("train", gpu=1), observe=free)
    assert record.state == "succeeded"
    assert list_waits(machine) == [("a GPU for train", "GPU 0 is used by notebook 1 (12 GiB)")]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gpu": 2}, "Executor 'train': gpu=2 is more than there is here: GPU 0 NVIDIA H100 .80 GiB.."),
        ({"gpu": "1g.10gb"}, "Executor 'train': gpu='1g.10gb' names a part that no GPU here has."),
        ({"gpu": 1, "gpu_memory": "100Gi"}, "Executor 'train': gpu=1 with 100 GiB is more than there is here"),
        ({"env": {"CUDA_VISIBLE_DEVICES": "0"}}, "Executor 'train': its env sets CUDA_VISIBLE_DEVICES='0', by which"),
        ({"gpu": 1, "env": {"CUDA_VISIBLE_DEVICES": ""}}, "Executor 'train': its env sets CUDA_VISIBLE_DEVICES=''"),
    ],
)
def test_what_the_machine_never_has_is_refused_before_anything_runs(
    make_machine: Callable[..., Machine], fields: dict[str, Any], message: str
) -> None:
    machine = make_machine(make_gpu(0))
    with pytest.raises(UsageError, match=message):
        machine.run(script("plain"), script("train", **fields))
    assert machine.backend.runs(limit=5) == []
    with pytest.raises(UsageError, match=message):
        machine.backend.check(machine.define(script("train", **fields)))


def test_a_step_may_hide_all_gpus_from_itself(make_machine: Callable[..., Machine]) -> None:
    machine = make_machine(make_gpu(0))
    record = machine.run(script("plain", env={"CUDA_VISIBLE_DEVICES": "-1"}))
    assert machine.read_seen(record, "plain")["CUDA_VISIBLE_DEVICES"] == "-1"


class WatchedAccelerators(FakeAccelerators):
    """A double on which the step ``holder`` holds memory, once it runs; it may go on when that was read."""

    def __init__(self, *devices: Device, held_bytes: int, beside: tuple[DeviceProcess, ...] = ()) -> None:
        super().__init__(*devices)
        self._held_bytes, self._beside = held_bytes, beside
        self.attempt: Path | None = None
        self.was_read: Callable[[], None] = lambda: None
        self._reads = 0

    def read(self) -> Inventory:
        if self.attempt is not None and (started := read_started(self.attempt)) is not None:
            self._reads += 1
            process = DeviceProcess(pid=int(started["pid"]), memory_bytes=self._held_bytes, name="python")
            self.change(0, processes=(process, *self._beside))
            if self._reads > 1:  # what the first one showed was looked at
                self.was_read()
        return super().read()


def run_holder(machine: Machine, accelerators: WatchedAccelerators, **fields: Any) -> RunRecord:
    def find_attempt(event: Event) -> None:
        if isinstance(event, TaskStarted):
            entered = machine.backend.show(str(event.run))
            accelerators.attempt = Path(entered.folder) / "steps" / event.task / str(event.attempt)

    return machine.run(script("holder", "hold.py", **fields), observe=find_attempt)


def test_what_a_step_used_and_who_was_beside_it_is_read_back(home: Path, tmp_path: Path) -> None:
    (tmp_path / "hold.py").write_text(HOLD)
    beside = DeviceProcess(pid=1, memory_bytes=GIB, name="other")
    accelerators = WatchedAccelerators(make_gpu(0), held_bytes=3 * GIB, beside=(beside,))
    machine, running = Machine(home, tmp_path, accelerators), list[TaskRecord]()

    def look() -> None:
        (run,) = machine.backend.runs(limit=1)
        running.append(find_task(machine.backend.show(run.name), "holder"))
        if running[-1].devices[0].peak_bytes or len(running) > 9:
            (tmp_path / "go").touch()

    accelerators.was_read = look
    record = run_holder(machine, accelerators, gpu=1)
    (use,) = find_task(record, "holder").devices
    assert (running[-1].state, running[-1].devices[0].peak_bytes) == ("running", 3 * GIB), "told while it runs"
    assert record.state == "succeeded"
    assert (use.peak_bytes, use.others) == (3 * GIB, ("other 1 (1 GiB)",))


def test_a_step_that_takes_more_than_its_share_of_a_shared_gpu_is_stopped_with_the_reason(
    home: Path, tmp_path: Path
) -> None:
    (tmp_path / "hold.py").write_text(HOLD)
    accelerators = WatchedAccelerators(make_gpu(0), held_bytes=41 * GIB)
    record = run_holder(Machine(home, tmp_path, accelerators), accelerators, gpu=0.5)
    task = find_task(record, "holder")
    assert (record.state, task.state) == ("failed", "failed")
    assert task.failure is not None
    assert task.failure.summary == "stopped: it used more than its share of a GPU"
    assert "Its processes held 41 GiB of GPU 0, and its share is 40 GiB. Ask for more" in task.failure.cause


def test_a_step_within_its_share_goes_on(home: Path, tmp_path: Path) -> None:
    (tmp_path / "hold.py").write_text(HOLD)
    accelerators = WatchedAccelerators(make_gpu(0), held_bytes=40 * GIB)
    accelerators.was_read = (tmp_path / "go").touch
    assert run_holder(Machine(home, tmp_path, accelerators), accelerators, gpu=0.5).state == "succeeded"


def test_a_device_that_fails_in_the_midst_is_named_in_the_failure(
    make_machine: Callable[..., Machine], tmp_path: Path
) -> None:
    (tmp_path / "crash.py").write_text("raise RuntimeError('CUDA error: unknown error')")
    machine = make_machine(make_gpu(0))

    def fail(event: Event) -> None:
        if isinstance(event, TaskStarted):
            machine.accelerators.change(0, fault="GPU is lost")

    task = find_task(machine.run(script("train", "crash.py", gpu=1), observe=fail), "train")
    assert task.failure is not None
    assert task.failure.summary == "exit code 1; GPU 0 has failed: GPU is lost"


def test_a_device_that_fails_is_named_also_where_its_step_succeeds(
    make_machine: Callable[..., Machine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, seen = make_machine(make_gpu(0, busy_share=0.9)), list[Inventory]()
    read = machine.accelerators.read

    def watch() -> Inventory:
        if (tmp_path / "holding").exists():
            machine.accelerators.change(0, fault="GPU is lost")
            seen.append(read())
            if len(seen) == 3:
                (tmp_path / "go").touch()
        return read()

    monkeypatch.setattr(machine.accelerators, "read", watch)
    record = machine.run(script("train", "hold.py", gpu=1))
    (use,) = find_task(record, "train").devices
    assert (record.state, use.fault, use.busy_share) == ("succeeded", "GPU is lost", None)


APP = """
import scanflow as sf
train = sf.Executor(name="train", mainfile="{file}", resources=sf.Resources(gpu={gpu}))
app = sf.Application(name="{name}", workflows=[sf.Workflow(name="w", nodes=[train])])
"""


def write_app(folder: Path, name: str, file: str, gpu: int = 1) -> Path:
    path = folder / f"{name}.py"
    path.write_text(APP.format(name=name, file=file, gpu=gpu))
    return path


def test_the_command_line_grants_the_gpus_that_nvidias_library_names(
    cli: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = StubbedMachine(tmp_path, make_gpu(0))
    for name, value in machine.variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "show.py").write_text("import os; print('sees', os.environ['CUDA_VISIBLE_DEVICES'])")
    ran = cli("run", str(write_app(tmp_path, "shop", "show.py")))
    assert ran.returncode == 0, ran.stderr
    assert f"sees {make_gpu(0).uuid}" in cli("logs", "@latest", "train").stdout
    shown = json.loads(cli("show", "@latest", "--json").stdout)
    assert shown["tasks"][0]["devices"][0]["uuid"] == make_gpu(0).uuid
    machine.set_devices()
    refused = cli("run", str(tmp_path / "shop.py"))
    assert refused.returncode != 0
    assert "gpu=1 asks for a GPU, and there is none here: NVIDIA's driver 580.0 finds no GPU." in refused.stderr


FUNCTION_APP = """
import os
import scanflow as sf

@sf.step(resources=sf.Resources(gpu=1))
def train() -> str:
    return os.environ["CUDA_VISIBLE_DEVICES"]

@sf.step
def report(device: str) -> str:
    return device + " and " + repr(os.environ["CUDA_VISIBLE_DEVICES"])

trained = train.bind()
app = sf.Application(name="shop", workflows=[sf.Workflow(name="w", nodes=[trained, report.bind(trained)])])
"""


def test_a_function_sees_the_gpu_that_it_was_given(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = StubbedMachine(tmp_path, make_gpu(0))
    for name, value in machine.variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "app.py").write_text(FUNCTION_APP)
    ran = cli("run", "app.py")
    assert ran.returncode == 0, ran.stderr
    assert f"{make_gpu(0).uuid} and ''" in cli("output", "@latest", "report").stdout


def test_a_gpu_stays_with_a_step_with_a_killed_driver(home: Path, tmp_path: Path) -> None:
    machine = StubbedMachine(tmp_path, make_gpu(0))
    environ = {**os.environ, **machine.variables}
    (tmp_path / "hold.py").write_text(HOLD)
    (tmp_path / "show.py").write_text(SHOW)
    write_app(tmp_path, "held", "hold.py")
    write_app(tmp_path, "later", "show.py")
    with subprocess.Popen([*COMMAND, "run", "held.py"], cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL) as driver:
        wait_until((tmp_path / "holding").exists, "the step runs")
        driver.send_signal(signal.SIGKILL)
    devices = HomeDevices(home)
    (claim,) = devices.list_claims()
    assert claim.who.endswith("/train")
    with subprocess.Popen(
        [*COMMAND, "run", "later.py"],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as waiting:
        assert waiting.stdout is not None
        lines = []
        while "a GPU for train" not in (line := waiting.stdout.readline()):
            lines.append(line)
            assert line, "".join(lines)
        assert [claim.who for claim in devices.list_claims()] == [claim.who]
        (tmp_path / "go").touch()
        waiting.stdout.read()
        assert waiting.wait(PATIENCE_S) == 0
    assert devices.list_claims() == []
    run = claim.who.partition("/")[0]
    resumed = subprocess.run([*COMMAND, "resume", run], cwd=tmp_path, env=environ, check=False, timeout=PATIENCE_S)
    assert resumed.returncode == 0
    (use,) = find_task(LocalBackend(Settings(home=home)).show(run), "train").devices
    assert use.uuid == make_gpu(0).uuid, "it is known, though its claim is gone"


def test_a_run_that_waits_for_more_gpus_is_not_overtaken_by_one_that_came_later(home: Path, tmp_path: Path) -> None:
    machine = StubbedMachine(tmp_path, make_gpu(0), make_gpu(1))
    environ, devices = {**os.environ, **machine.variables}, HomeDevices(home)
    (tmp_path / "hold.py").write_text(HOLD)
    (tmp_path / "show.py").write_text(SHOW)
    write_app(tmp_path, "held", "hold.py")
    write_app(tmp_path, "both", "show.py", gpu=2)
    write_app(tmp_path, "later", "show.py")

    def run(name: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, "run", f"{name}.py"],
            cwd=tmp_path,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    with run("held") as held:
        wait_until((tmp_path / "holding").exists, "the first step runs")
        with run("both") as both:
            read_until(both, "a GPU for train: 1 of 2 free")
            with run("later") as later:
                read_until(later, "GPU 1 is kept for")
                assert [claim.who.endswith("/train") for claim in devices.list_claims()] == [True], "GPU 1 is free"
                (tmp_path / "go").touch()
                assert [process.wait(PATIENCE_S) for process in (held, both, later)] == [0, 0, 0]
    began = [read_begin(home, name) for name in ("held", "both", "later")]
    assert began == sorted(began)
    assert devices.list_claims() == []


def read_until(process: subprocess.Popen[str], text: str) -> None:
    """Read what a process prints until a line has a text."""
    assert process.stdout is not None
    lines = []
    while text not in (line := process.stdout.readline()):
        lines.append(line)
        assert line, "".join(lines)


def read_begin(home: Path, app: str) -> float:
    """Return when the step of an application's only run began."""
    backend = LocalBackend(Settings(home=home))
    (summary,) = backend.runs(app=app, limit=2)
    began = backend.show(str(summary.name)).tasks[0].began
    assert began is not None
    return began


@sees_processes
def test_doctor_topology_plan_and_show_say_which_gpus_there_are(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = StubbedMachine(tmp_path, make_gpu(0), make_mig_gpu(1, "1g.10gb", 1))
    for name, value in machine.variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "show.py").write_text(SHOW)
    app = write_app(tmp_path, "shop", "show.py")
    planned = cli("plan", str(app)).stdout
    assert "gpu=1" in planned
    assert " cores, 1 of 1 GPUs and " in planned
    assert cli("run", str(app)).returncode == 0
    assert "GPUs of train: GPU 0 NVIDIA H100, 80 GiB" in cli("show", "@latest").stdout
    topology = cli("topology").stdout
    assert "GPU 0 NVIDIA H100 (80 GiB): 0 B used; free" in topology
    assert "  part 1, 1g.10gb: 0 B used; free" in topology
    devices = json.loads(cli("topology", "--json").stdout)["devices"]
    assert [device["mig_enabled"] for device in devices] == [False, True]
    output = cli("doctor").stdout
    assert "given in turns; a step that takes more memory than its share is stopped" in output
    assert "nvidia-cuda-mps-control -d" in output
    machine.start_mps()
    assert "bounded by NVIDIA's Multi-Process Service" in cli("doctor").stdout
    machine.set_devices(make_gpu(0, fault="it is lost"))
    failed = cli("doctor")
    assert failed.returncode != 0
    assert "failed: GPU is lost" in failed.stdout


SERVICE_APP = """
import scanflow as sf

def make(name):
    node = sf.Service(name="model", implementation="model.py:Model", resources=sf.Resources(gpu=1))
    return sf.Workflow(name=name, type="online", nodes=[node], serving=sf.Serving(grpc_port=0))

app = sf.Application(name="shop", workflows=[make("first"), make("second")])
"""
SERVICE_MODEL = """
import os

class Model:
    def predict(self, X):
        if X[0][0] < 0:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return [os.environ["CUDA_VISIBLE_DEVICES"]]
"""


@sees_processes
def test_an_instance_gets_a_gpu_that_another_service_and_a_step_cannot_have(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = StubbedMachine(tmp_path, make_gpu(0))
    for name, value in machine.variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "app.py").write_text(SERVICE_APP)
    (tmp_path / "model.py").write_text(SERVICE_MODEL)
    planned = cli("plan", "app.py:first").stdout
    assert "gpu=1" in planned
    assert "GPU memory: what a second version would need is known once it serves." in planned
    deployed = cli("deploy", "app.py:first")
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    assert make_gpu(0).uuid in cli("predict", "first", "--data", "[[1.0]]").stdout
    (service,) = json.loads(cli("services", "--json").stdout)
    assert service["instances"][0]["devices"][0]["uuid"] == make_gpu(0).uuid
    assert "granted to first/1" in cli("topology").stdout
    assert "GPUs of instance 1: GPU 0 NVIDIA H100, 80 GiB" in cli("services", "first").stdout
    process = DeviceProcess(pid=service["instances"][0]["pid"], memory_bytes=3 * GIB)
    machine.set_devices(make_gpu(0, processes=(process,)))
    wait_until(lambda: "used 3 GiB of 80 GiB" in cli("services", "first").stdout, "its memory is read back")
    machine.set_devices(make_gpu(0))
    planned = cli("plan", "app.py:second").stdout
    assert "first/1. " in planned, "who has the only one"
    refused = cli("deploy", "app.py:second")
    assert refused.returncode != 0
    assert "granted to first/1." in refused.stderr
    broken = cli("predict", "first", "--data", "[[-1.0]]")
    assert "cannot use its GPU any more: RuntimeError: CUDA error: an illegal memory access" in broken.stderr
    pid = service["instances"][0]["pid"]
    wait_until(
        lambda: (now := read_instance(cli, "first"))["pid"] not in {pid, None} and now["state"] == "ready",
        "it is replaced",
    )
    again = cli("deploy", "app.py:first")  # the old and the new one share it meanwhile
    assert again.returncode == 0, again.stdout + again.stderr
    assert make_gpu(0).uuid in cli("predict", "first", "--data", "[[1.0]]").stdout
    two = cli("scale", "first", "2")
    assert two.returncode != 0
    assert "2 instances x gpu=1 are more than there is here, which is enough for 1" in two.stderr
    assert cli("delete", "first").returncode == 0
    assert cli("deploy", "app.py:second").returncode == 0


def test_a_service_is_scaled_by_how_busy_its_gpus_are_and_says_why(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = StubbedMachine(tmp_path, *(make_gpu(number, busy_share=0.0, power_w=70.0) for number in range(3)))
    for name, value in machine.variables.items():
        monkeypatch.setenv(name, value)
    scaling = 'gpu=1), scaling=sf.Scaling(metric="gpu", target=0.7, max=3, polling=1)'
    (tmp_path / "app.py").write_text(SERVICE_APP.replace("gpu=1)", scaling))
    (tmp_path / "model.py").write_text(SERVICE_MODEL)
    deployed = cli("deploy", "app.py:first")
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    (use,) = read_instance(cli, "first")["devices"]
    assert (use["busy_share"], use["power_w"]) == (0.0, 70.0)
    busy = [make_gpu(number, busy_share=0.93 if number == use["number"] else 0.0, power_w=400.0) for number in range(3)]
    machine.set_devices(*busy)

    def is_scaled() -> bool:
        (service,) = json.loads(cli("services", "--json").stdout)
        return len(service["instances"]) == 2 and service["state"] == "ready"

    wait_until(is_scaled, "an instance is added for the busy GPU")
    explained = json.loads(cli("scale", "first", "--explain", "--json").stdout)
    assert (explained["metric"], explained["target"], explained["wanted"]) == ("gpu", 0.7, 2)
    assert explained["sample"] == pytest.approx(0.465)
    assert "% busy, " in cli("services", "first").stdout
    (service,) = json.loads(cli("services", "--json").stdout)
    uuids = sorted(instance["devices"][0]["uuid"] for instance in service["instances"])

    def is_exported() -> bool:
        lines = HTTP.get(f"{service['url']}/metrics").text.splitlines()
        names = [line.partition(" ")[0] for line in lines if line.startswith("scanflow_gpu_busy_share")]
        return sorted(names) == [f'scanflow_gpu_busy_share{{service="first",uuid="{uuid}"}}' for uuid in uuids]

    wait_until(is_exported, "an instance's metrics have the GPUs of all")
    machine.set_devices(*(make_gpu(number) for number in range(3)))
    refused = cli("deploy", "app.py:first")
    assert refused.returncode != 0
    assert "'first': Scaling.metric='gpu': " in refused.stderr


MPI_APP = """
import scanflow as sf
job = sf.MPIWorkload(
    name="job", mainfile="rank.sh", n_tasks=2, oversubscribe=True, resources_per_task=sf.Resources(cpu=1, gpu=1)
)
app = sf.Application(name="shop", workflows=[sf.Workflow(name="w", type="mpi", nodes=[job])])
"""


@pytest.mark.mpi
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no MPI is installed")
def test_each_rank_of_an_mpi_job_sees_a_gpu_of_its_own(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = StubbedMachine(tmp_path, make_gpu(0), make_gpu(1))
    for name, value in machine.variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "app.py").write_text(MPI_APP)
    (tmp_path / "rank.sh").write_text("#!/bin/sh\necho sees $CUDA_VISIBLE_DEVICES\n")
    (tmp_path / "rank.sh").chmod(0o755)
    ran = cli("run", "app.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    logs = cli("logs", "@latest", "job").stdout
    assert f"[0] sees {make_gpu(0).uuid}\n" in logs
    assert f"[1] sees {make_gpu(1).uuid}\n" in logs
    machine.set_devices(make_gpu(0))
    refused = cli("run", "app.py")
    assert refused.returncode != 0
    assert "MPIWorkload 'job': 2 tasks" in refused.stderr


@pytest.mark.mpi
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no MPI is installed")
def test_each_rank_of_an_mpi_job_has_its_share_of_a_gpu(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = StubbedMachine(tmp_path, make_gpu(0))
    machine.start_mps()
    for name, value in machine.variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "app.py").write_text(MPI_APP.replace("gpu=1", "gpu=0.25, gpu_memory='8Gi'"))
    (tmp_path / "rank.sh").write_text(
        "#!/bin/sh\necho $CUDA_VISIBLE_DEVICES $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $SCANFLOW_GPU_MEMORY_BYTES"
        " $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT $CUDA_MPS_PIPE_DIRECTORY\n"
    )
    (tmp_path / "rank.sh").chmod(0o755)
    ran = cli("run", "app.py")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    logs = cli("logs", "@latest", "job").stdout
    for rank in (0, 1):
        assert f"[{rank}] {make_gpu(0).uuid} 25 {8 * GIB} 0=8192M {tmp_path}/mps\n" in logs
    assert "GPU 0 NVIDIA H100, 0.5 of it by MPS, 16 GiB" in cli("show", "@latest").stdout


@sees_processes
def test_an_instance_that_takes_more_than_its_share_of_a_shared_gpu_is_killed_and_starts_again(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = StubbedMachine(tmp_path, make_gpu(0))
    for name, value in machine.variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "app.py").write_text(SERVICE_APP.replace("gpu=1", "gpu=0.5"))
    (tmp_path / "model.py").write_text(SERVICE_MODEL)
    assert cli("deploy", "app.py:first").returncode == 0

    before = read_instance(cli, "first")
    assert before["devices"][0]["sharing"] == "time slicing"
    greedy = DeviceProcess(pid=before["pid"], memory_bytes=41 * GIB)
    machine.set_devices(make_gpu(0, processes=(greedy,)))
    wait_until(lambda: read_instance(cli, "first")["restarts"] == 1, "it was killed and started again")
    assert "Its processes held 41 GiB of GPU 0, and its share is 40 GiB." in read_instance(cli, "first")["error"]
    wait_until(lambda: read_instance(cli, "first")["state"] == "ready", "it serves again")
    assert make_gpu(0).uuid in cli("predict", "first", "--data", "[[1.0]]").stdout


CPU_APP = """
import scanflow as sf
plain = sf.Executor(name="plain", mainfile="show.py")
app = sf.Application(name="cpu", workflows=[sf.Workflow(name="w", nodes=[plain])])
"""


def test_with_a_driver_that_hangs_what_needs_no_gpu_goes_on(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = StubbedMachine(tmp_path, make_gpu(0))
    for name, value in machine.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "show.py").write_text("import os; print('sees', os.environ.get('CUDA_VISIBLE_DEVICES'))")
    (tmp_path / "cpu.py").write_text(CPU_APP)
    write_app(tmp_path, "gpu", "show.py")
    machine.hang()
    commands = (("run", "cpu.py"), ("plan", "gpu.py"), ("doctor",), ("topology",))
    with ThreadPoolExecutor() as pool:  # each waits for the driver by itself
        ran, *others = pool.map(lambda command: cli(*command), commands)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "sees None" in cli("logs", "@latest", "plain").stdout  # nothing is hidden where none can be granted
    for other in others:
        assert "NVIDIA's driver does not answer for 10 s." in other.stdout + other.stderr


HANG_APP = """
import scanflow as sf
stuck = sf.Executor(name="stuck", mainfile="stuck.py", resources=sf.Resources(gpu=1), timeout=8)
plain = sf.Executor(name="plain", mainfile="hold.py")
app = sf.Application(name="shop", workflows=[sf.Workflow(name="w", nodes=[stuck, plain])])
"""


def test_a_driver_that_hangs_while_steps_run_holds_up_neither_their_ends_nor_their_timeouts(
    cli: Cli, tmp_path: Path
) -> None:
    machine = StubbedMachine(tmp_path, make_gpu(0))
    (tmp_path / "stuck.py").write_text("import time\nopen('running', 'w').close()\ntime.sleep(1000)")
    (tmp_path / "hold.py").write_text(HOLD)
    (tmp_path / "shop.py").write_text(HANG_APP)
    with subprocess.Popen(
        [*COMMAND, "run", "shop.py"], cwd=tmp_path, env={**os.environ, **machine.variables}, stdout=subprocess.DEVNULL
    ) as driver:
        wait_until(lambda: (tmp_path / "holding").exists() and (tmp_path / "running").exists(), "both run")
        machine.hang()
        (tmp_path / "go").touch()
        assert driver.wait(PATIENCE_S) == 1
    tasks = {task["task"]: task for task in json.loads(cli("show", "@latest", "--json").stdout)["tasks"]}
    assert tasks["plain"]["state"] == "succeeded"
    assert "timed out" in tasks["stuck"]["failure"]["summary"], tasks["stuck"]


def deploy_service(cli: Cli, folder: Path, name: str) -> None:
    (folder / "app.py").write_text(SERVICE_APP)
    (folder / "model.py").write_text(SERVICE_MODEL)
    deployed = cli("deploy", f"app.py:{name}")
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr


def test_a_service_says_that_its_gpu_is_lost_and_what_an_instance_waits_for(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = [make_gpu(number, busy_share=0.1, power_w=90.0) for number in (0, 1)]
    machine = StubbedMachine(tmp_path, *gpus)
    for name, value in machine.variables.items():
        monkeypatch.setenv(name, value)
    deploy_service(cli, tmp_path, "first")
    deploy_service(cli, tmp_path, "second")
    machine.set_devices(replace(gpus[0], fault="it is lost"), gpus[1])
    wait_until(lambda: "80 GiB, failed: GPU is lost\n" in cli("services", "first").stdout, "the loss is said")
    os.kill(read_instance(cli, "first")["pid"], signal.SIGKILL)
    why = "a GPU: GPU 1 is granted to second/1; GPU 0 has failed: GPU is lost"
    wait_until(lambda: read_instance(cli, "first")["waits_for"] == why, "it says what it waits for")
    screen = cli("services", "first").stdout
    assert f"instance 1 waits for {why}\n" in screen
    assert "80 GiB, failed: GPU is lost\n" in screen
    assert "The last change failed" not in screen
    assert cli("delete", "second").returncode == 0
    wait_until(lambda: read_instance(cli, "first")["state"] == "ready", "it starts on the other GPU")
    assert make_gpu(1).uuid in cli("predict", "first", "--data", "[[1.0]]").stdout


def test_a_service_serves_on_when_its_supervisor_starts_again_while_the_driver_hangs(
    cli: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = StubbedMachine(tmp_path, make_gpu(0))
    for name, value in machine.variables.items():
        monkeypatch.setenv(name, value)
    deploy_service(cli, tmp_path, "first")
    pid = read_instance(cli, "first")["pid"]
    machine.hang()
    observed = home / "services" / "first" / "state.json"
    supervisor = json.loads(observed.read_text())["by"]
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: json.loads(observed.read_text())["by"] != supervisor, "another supervisor reports")
    wait_until(lambda: "NVIDIA's driver does not answer for 10 s" in cli("services", "first").stdout, "it is said")
    assert (read_instance(cli, "first")["pid"], read_instance(cli, "first")["state"]) == (pid, "ready")
    assert make_gpu(0).uuid in cli("predict", "first", "--data", "[[1.0]]").stdout
