"""Two versions and the GPU memory of an instance: both fit, instances are replaced, or the change is refused."""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.accelerators.accelerator_port import DeviceProcess, Inventory
from scanflow.backends.device_claims import HomeDevices
from scanflow.backends.local.services.service_layout import ServiceFolder
from scanflow.backends.local.services.state.desired import update_desired
from scanflow.backends.local.services.state.observed import ObservedState, read_observed, write_observed
from scanflow.backends.local.services.supervisor.attempts import Template
from scanflow.backends.local.services.supervisor.controller import ServiceController
from scanflow.backends.local.services.supervisor.instance_metrics import ServiceMetrics
from scanflow.backends.local.services.supervisor.pool import InstancePool
from scanflow.backends.local.services.supervisor.service_report import build_record
from scanflow.backends.local.services.version_fit import describe_free_memory, fit_versions
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_records import InstanceRecord, Shape
from scanflow.backends.service_spec import ServiceSpec
from scanflow.backends.version_memory import (
    LoadedVersions,
    find_full_instance,
    list_loaded_nodes,
    measure_memory,
    measure_versions,
)
from scanflow.errors import UnavailableError, UsageError
from scanflow.instance_messages import ModelFiles, Node, Revision, encode
from scanflow.placement.device_grants import DeviceDemand, DeviceGrant
from scanflow.placement.place import Grant
from scanflow.placement.sysfs import read_topology
from scanflow.testing.accelerators import GIB, FakeAccelerators, make_gpu

Way = dict[str, Any]


class GpuService:
    """A service of one instance, which is this process' session, on a machine with GPUs of 40 GiB."""

    def __init__(self, home: Path, *, held: int | None, count: int = 1, gpu: float = 1) -> None:
        self.home, self.gpu = home, gpu
        self.folder = ServiceFolder(home / "services" / "digits")
        self.accelerators = FakeAccelerators(*(make_gpu(number, memory=40 * GIB) for number in range(count)))
        self.devices = HomeDevices(home, lambda: self.accelerators)
        self.attempt = self.folder.get_attempts_folder("1") / "1"
        demand = DeviceDemand(share=gpu) if gpu < 1 else DeviceDemand()
        taken = self.devices.take(self.attempt, "digits/1", demand)
        assert not isinstance(taken, str)
        self.grants = taken
        self.attempt.mkdir(parents=True)
        session = os.getsid(0)
        birth = self.devices.list_claims()[0].birth
        started = {"pid": session, "birth": "", "shim": os.getpid(), "shim_birth": birth, "began": 0}
        (self.attempt / "started").write_text(json.dumps(started))
        if held is not None:
            self.hold(held)

    def hold(self, held: int, *others: DeviceProcess) -> None:
        processes = (DeviceProcess(pid=os.getpid(), memory_bytes=held * GIB), *others)
        used = sum(process.memory_bytes or 0 for process in processes)
        self.accelerators.change(0, processes=processes, memory_used_bytes=used)

    def make_files(self, version: int, size: int | None, flavor: str = "pytorch") -> ModelFiles:
        folder = self.home / "models" / str(version)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "MLmodel").write_text(f"flavors:\n  {flavor}:\n    model_data: data\n")
        with (folder / "weights").open("wb") as file:
            file.truncate((size or 0) * GIB)  # a hole: it takes no room
        return ModelFiles(name="digits", version=version, path=str(folder))

    def define(self, *revisions: Revision, generation: int = 1) -> DesiredState:
        spec = ServiceSpec(
            app="shop",
            team="people",
            workflow="digits",
            app_dir="/app",
            deployment=1,
            serves=generation,
            shape=Shape(gpu=self.gpu),
            revisions=revisions,
        )
        return DesiredState(name="digits", port=46700, created=0.0, generation=generation, definition=spec)

    def change(self, *, canary: bool = False, shadow: bool = False, **files: Any) -> tuple[DesiredState, str]:
        now, new = make_revision(1, self.make_files(1, 8)), make_revision(2, self.make_files(2, **files))
        if shadow:
            new = Revision(id="r2", nodes=new.nodes, shadow=True)
        after = (now, new) if canary or shadow else (new,)
        return fit_versions(self.devices, self.folder, self.define(now), self.define(*after, generation=2))


@pytest.fixture(scope="module")
def another_program() -> Iterator[int]:
    """The id of a process that leads a session of its own; of process 1 tests may be in the very session."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process.pid
        process.kill()


def make_revision(version: int, files: ModelFiles) -> Revision:
    return Revision(id=f"r{version}", nodes=(Node(name="model", model=files),))


@pytest.mark.parametrize("way", [{}, {"canary": True}, {"shadow": True}], ids=str)
def test_two_versions_that_fit_are_served_by_the_same_instances_and_their_memory_is_said(
    tmp_path: Path, way: Way
) -> None:
    after, note = GpuService(tmp_path, held=10).change(**way, size=29)
    assert after.definition.deployment == 1
    assert note == (
        "instance 1 needs 10 GiB of the 40 GiB that it may hold of GPU 0; models:/digits/2 adds at least 29 GiB, the "
        "size of its files"
    )


@pytest.mark.parametrize("way", [{"canary": True}, {"shadow": True}], ids=str)
def test_a_canary_that_does_not_fit_is_refused_with_the_numbers(tmp_path: Path, way: Way) -> None:
    with pytest.raises(UsageError) as caught:
        GpuService(tmp_path, held=11, count=2).change(**way, size=30)
    assert str(caught.value) == (
        "'digits': instance 1 needs 11 GiB of the 40 GiB that it may hold of GPU 0, and models:/digits/2 adds at least "
        "30 GiB, the size of its files: there is no room for both versions. A canary or shadow is served beside the "
        "current version. Swap them (scanflow promote digits models:/digits/2), or deploy 'digits' with a larger gpu= "
        "or gpu_memory=."
    )


def test_a_swap_that_does_not_fit_starts_instances_where_a_gpu_is_free(tmp_path: Path) -> None:
    after, note = GpuService(tmp_path, held=11, count=2).change(size=30)
    assert after.definition.deployment == 2
    assert note.endswith("New instances with another gpu=1 are started, and the old ones end after them")


def test_a_swap_that_does_not_fit_gets_another_share_of_the_same_gpu(tmp_path: Path) -> None:
    after, note = GpuService(tmp_path, held=11, gpu=0.5).change(size=12)
    assert after.definition.deployment == 2
    assert "instance 1 needs 11 GiB of the 20 GiB that it may hold of GPU 0" in note
    assert "another gpu=0.5" in note


def test_a_swap_that_fits_nowhere_is_refused_with_who_has_the_gpus(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        GpuService(tmp_path, held=11).change(size=30)
    assert "and no other gpu=1 is free for an instance with the new one: GPU 0 is granted to digits/1." in str(
        caught.value
    )
    with pytest.raises(UsageError, match="nor for the new one alone"):
        GpuService(tmp_path / "other", held=11, count=2).change(size=41)


@pytest.mark.parametrize(
    ("held", "files", "why"),
    [
        (None, {"size": 99}, "what instance 1 holds of GPU 0 is not known"),
        (30, {"size": 99, "flavor": "sklearn"}, "what models:/digits/2 takes of a GPU is not known"),
    ],
)
def test_what_is_not_known_beforehand_is_said_and_shows_when_loaded(
    tmp_path: Path, held: int | None, files: dict[str, Any], why: str
) -> None:
    after, note = GpuService(tmp_path, held=held).change(**files)
    assert after.definition.deployment == 1
    assert (
        note == f"{why}: whether both versions fit its memory shows when they are loaded; if not, the first serves on"
    )


def test_memory_that_another_program_holds_is_not_there_for_a_second_version(
    tmp_path: Path, another_program: int
) -> None:
    service = GpuService(tmp_path, held=10)
    service.hold(10, DeviceProcess(pid=another_program, memory_bytes=5 * GIB))
    with pytest.raises(UsageError, match="instance 1 needs 10 GiB of the 35 GiB that it may hold"):
        service.change(canary=True, size=26)
    assert service.change(canary=True, size=24)[1]


def test_what_a_framework_keeps_without_need_is_free(tmp_path: Path) -> None:
    service = GpuService(tmp_path, held=35)
    with pytest.raises(UsageError):
        service.change(size=10)
    record = build_record(service.define(), service.folder, count=1)
    instance = InstanceRecord(instance="1", state="ready").with_details(unused_device_bytes=30 * GIB)
    write_observed(service.folder, ObservedState(record=record.model_copy(update={"instances": (instance,)})))
    assert "instance 1 needs 5 GiB of the 40 GiB" in service.change(size=10)[1]


def test_a_plan_says_how_much_is_left_for_a_second_version(tmp_path: Path) -> None:
    service = GpuService(tmp_path, held=11, count=2)
    shape = Shape(gpu=1)
    first, again = describe_free_memory(service.devices, service.folder, shape)
    assert first.startswith(
        "GPU memory: instance 1 needs 11 GiB of the 40 GiB that it may hold of GPU 0: 29 GiB are left. A second version"
    )
    assert again == "A new deployment gets a GPU beside the instances that it replaces."
    service.devices.take(tmp_path / "other", "other", DeviceDemand())
    assert (
        "shares GPUs with the instances that it replaces, as no other is free"
        in describe_free_memory(service.devices, service.folder, shape)[1]
    )
    assert describe_free_memory(service.devices, service.folder, Shape()) == []


def test_a_plan_says_that_its_gpus_are_not_free(tmp_path: Path) -> None:
    service = GpuService(tmp_path, held=11, count=2)
    new = ServiceFolder(tmp_path / "services" / "new")
    later = "GPU memory: what a second version would need is known once it serves."
    assert describe_free_memory(service.devices, new, Shape(gpu=1)) == [later]
    refused, after = describe_free_memory(service.devices, new, Shape(gpu=1, instances=2))
    assert refused.startswith("2 instances x gpu=1 are not free now: ")
    assert refused.endswith(" digits/1. A deployment would be refused.")
    assert after == later
    own = describe_free_memory(service.devices, service.folder, Shape(gpu=1, instances=2))
    assert len(own) == 2, "its own instances make way"
    service.devices.take(tmp_path / "other", "other", DeviceDemand())
    assert describe_free_memory(service.devices, new, Shape(gpu=1))[0] == (
        "gpu=1 is not free now: GPU 0 is granted to digits/1; GPU 1 is granted to other. A deployment would be refused."
    )
    assert len(describe_free_memory(service.devices, service.folder, Shape(gpu=1, instances=2))) == 3


# What an instance loads


def test_only_what_is_not_loaded_yet_counts(tmp_path: Path) -> None:
    service = GpuService(tmp_path, held=None)
    first, second = (make_revision(version, service.make_files(version, 1)) for version in (1, 2))
    shadow = Revision(id="r2", nodes=second.nodes, shadow=True)
    again = Revision(id="r3", nodes=first.nodes)
    assert list_loaded_nodes([first], [first, second]) == list(second.nodes)
    assert list_loaded_nodes([first, second], [second]) == []  # promoted
    assert list_loaded_nodes([first, shadow], [second]) == []  # a shadow, too
    assert list_loaded_nodes([first], [again]) == []
    assert list_loaded_nodes([first], [first, Revision(id="r4", nodes=first.nodes, shadow=True)]) == list(first.nodes)
    assert list_loaded_nodes([first, shadow], [shadow, again]) == []


@given(
    memory=st.integers(1, 100),
    used=st.lists(st.integers(0, 100), max_size=3),
    own=st.integers(0, 100),
    unused=st.integers(0, 100),
    share=st.integers(1, 100),
    added=st.integers(0, 200),
)
def test_a_version_is_refused_only_if_the_bytes_do_not_fit(
    another_program: int, memory: int, used: list[int], own: int, unused: int, share: int, added: int
) -> None:
    """The oracle counts the bytes of all holders one by one."""
    own, others = min(own, memory), used if sum(used) + own <= memory else []
    processes = [DeviceProcess(pid=os.getpid(), memory_bytes=own)]
    processes += [DeviceProcess(pid=another_program, memory_bytes=held) for held in others]
    device = make_gpu(0, memory=memory, memory_used_bytes=own + sum(others), processes=tuple(processes))
    grant = DeviceGrant(uuid=device.uuid, device=device.uuid, number=0, sharing="mps", memory_bytes=min(share, memory))
    measured = measure_memory(Inventory(devices=(device,)), "1", [grant], os.getsid(0), unused)
    full = find_full_instance([measured], LoadedVersions(names=("m",), file_bytes=added))
    needed = max(0, own - unused)
    fits = needed + added <= min(share, memory) and needed + added + sum(others) <= memory
    assert (full is None) is (fits or (added == 0))


def test_the_size_of_a_version_is_that_of_its_files(tmp_path: Path) -> None:
    files = GpuService(tmp_path, held=None).make_files(3, 2)
    versions = measure_versions([Node(name="model", model=files), Node(name="code", implementation="a.py:A")])
    assert versions.names == ("models:/digits/3", "code")
    assert versions.file_bytes is not None
    assert 0 < versions.file_bytes - 2 * GIB < 1000
    assert measure_versions([Node(name="gone", model=ModelFiles(name="x", version=1, path="/gone"))]).file_bytes is None


# Instances that replace others


@pytest.fixture
def make_pool(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(service: GpuService) -> InstancePool:
        monkeypatch.setattr(
            "scanflow.backends.local.services.supervisor.pool.HomeDevices", Mock(return_value=service.devices)
        )
        (service.attempt / "alive").touch()
        template = Template("older", 1.0, Grant(cpus=(), memory_nodes=()))
        (service.attempt / "template.json").write_bytes(encode(template))
        shims = Mock(adopt=Mock(return_value=None))
        pool = InstancePool(
            service.folder, shims, ServiceMetrics(service.folder.counted), selectors.DefaultSelector(), Mock()
        )
        desired = service.define(make_revision(2, service.make_files(2, 30)), generation=2)
        pool.adopt(desired, 100.0, 100.0)
        (instance,) = pool.instances
        instance.update_state({"ready": True, "generation": 1}, 100.0)
        return pool

    return make


def start(service: GpuService, pool: InstancePool) -> str:
    desired = service.define(make_revision(2, service.make_files(2, 30)), generation=2)
    return pool.start(desired, "2", read_topology(), count=1, now=100.0)


def test_an_instance_shares_the_gpu_of_one_that_it_replaces_if_there_is_memory(tmp_path: Path, make_pool: Any) -> None:
    service = GpuService(tmp_path, held=9)
    assert start(service, make_pool(service)) == ""
    assert [claim.who for claim in service.devices.list_claims()] == ["digits/1", "digits/2"]


def test_an_instance_is_refused_before_it_starts_where_the_one_that_it_replaces_leaves_too_little(
    tmp_path: Path, make_pool: Any
) -> None:
    service = GpuService(tmp_path, held=11)
    with pytest.raises(UnavailableError) as caught:
        start(service, make_pool(service))
    assert str(caught.value) == (
        "gpu=1 is not free: GPU 0 is granted to digits/1, and too little of its memory for models:/digits/2, which "
        "needs at least 30 GiB, the size of its files. To replace it all the same: scanflow delete digits, then "
        "scanflow deploy."
    )
    assert [claim.who for claim in service.devices.list_claims()] == ["digits/1"]


def test_an_instance_waits_for_one_that_drains(tmp_path: Path, make_pool: Any) -> None:
    service = GpuService(tmp_path, held=11)
    pool = make_pool(service)
    pool.instances[0].enter("draining", 100.0)
    assert "granted to digits/1, and too little of its memory for models:/digits/2" in start(service, pool)
    service.hold(0)
    assert start(service, pool) == ""


def test_libraries_take_memory_as_they_need_it(tmp_path: Path, make_pool: Any) -> None:
    service = GpuService(tmp_path, held=0)
    assert start(service, make_pool(service)) == ""
    spec = json.loads((service.folder.get_attempts_folder("2") / "1" / "spec.json").read_text())
    assert spec["env"]["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert spec["env"]["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


def test_an_instance_that_exceeds_its_share_with_another_version_does_not_get_it_again(
    tmp_path: Path, make_pool: Any
) -> None:
    service = GpuService(tmp_path, held=21, gpu=0.5)
    pool = make_pool(service)
    (instance,) = pool.instances
    instance.find_process()
    pool.watch_devices(1000.0)
    assert instance.refusal is not None
    assert "Its processes held 21 GiB of GPU 0, and its share is 20 GiB." in instance.refusal


# GPUs that fail


def test_a_gpu_that_fails_is_said_in_place_of_its_readings(tmp_path: Path, make_pool: Any) -> None:
    service = GpuService(tmp_path, held=9)
    pool = make_pool(service)
    (instance,) = pool.instances
    instance.find_process()
    service.accelerators.change(0, busy_share=0.9, power_w=400.0)
    pool.watch_devices(1000.0)
    (use,) = instance.describe_devices()
    assert (use.busy_share, use.power_w, use.used_bytes, use.fault) == (0.9, 400, 9 * GIB, "")
    assert (instance.find_share("gpu", 60), instance.find_share("gpu_memory", 60)) == (0.9, 9 / 40)
    service.accelerators.change(0, fault="GPU is lost")
    pool.watch_devices(1002.0)
    (use,) = instance.describe_devices()
    assert (use.busy_share, use.power_w, use.used_bytes, use.fault) == (None, None, None, "GPU is lost")
    assert (instance.find_share("gpu", 60), instance.find_share("gpu_memory", 60)) == (None, None)
    service.accelerators.change(0, fault="")
    pool.watch_devices(1004.0)
    assert instance.describe_devices()[0].fault == ""


def test_an_instance_that_has_ended_has_no_readings_and_says_what_it_waits_for(tmp_path: Path, make_pool: Any) -> None:
    service = GpuService(tmp_path, held=9, count=2)
    pool = make_pool(service)
    (instance,) = pool.instances
    instance.find_process()
    service.accelerators.change(0, busy_share=0.9)
    pool.watch_devices(1000.0)
    instance.record_exit(1001.0, "it was killed", restart=True)
    service.accelerators.change(0, fault="GPU is lost", busy_share=None)
    service.devices.take(tmp_path / "services/other/instances/1/1", "other/1", DeviceDemand())
    pool.watch_devices(1002.0)
    desired = service.define(make_revision(2, service.make_files(2, 30)), generation=2)
    for name in ("1", "2"):
        with pytest.raises(UnavailableError, match="GPU 1 is granted to other/1; GPU 0 has failed: GPU is lost"):
            pool.start(desired, name, read_topology(), count=1, now=1003.0)
    waits: dict[str, str] = {"1": pool.waits_for, "2": pool.waits_for}
    record = build_record(desired, service.folder, count=2, instances=pool.instances, waits=waits)
    why = "a GPU: GPU 1 is granted to other/1; GPU 0 has failed: GPU is lost"
    assert [(it.instance, it.state, it.waits_for) for it in record.instances] == [
        ("1", "waiting", why),
        ("2", "waiting", why),  # it never began
    ]
    (use,) = record.instances[0].devices
    assert (use.busy_share, use.fault) == (None, "GPU is lost")
    assert (record.error, record.failed_change) == ("it was killed", None)


@pytest.fixture
def open_controller(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[ServiceFolder, DesiredState, Mock], Any]]:
    """Returns a supervisor's controller with sockets that it inherits, as one does that is started again: the numbers
    that a supervisor has for them may be another's in this process."""
    opened: list[ServiceController] = []

    def open_it(folder: ServiceFolder, desired: DesiredState, shims: Mock) -> ServiceController:
        server = socket.create_server(("127.0.0.1", 0))
        desired = desired.model_copy(update={"port": server.getsockname()[1]})
        update_desired(folder, lambda _: desired)
        for name, sock in (("HTTP_FD", server), ("GRPC_FD", socket.socket())):
            monkeypatch.setattr(f"scanflow.backends.local.services.supervisor.controller.{name}", sock.detach())
        opened.append(ServiceController(folder, desired, shims, selectors.DefaultSelector()))
        return opened[-1]

    yield open_it
    for controller in opened:
        controller.close()
        for shared in controller.sockets:
            shared.close()


def test_the_wait_for_a_driver_that_hangs_is_not_taken_for_the_silence_of_instances(
    tmp_path: Path, make_pool: Any, open_controller: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = GpuService(tmp_path, held=9)
    make_pool(service)
    desired, now = service.define(make_revision(1, service.make_files(1, 8))), [100.0]
    controller = open_controller(service.folder, desired, Mock(adopt=Mock(return_value=None)))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def wait_first() -> Inventory:
        now[0] = max(now[0], 110.0)
        return Inventory(absence="The driver hangs.")

    monkeypatch.setattr(service.accelerators, "read", wait_first)
    controller.adopt()
    (instance,) = controller.pool.instances
    controller.pool.watch_devices(110.0)
    assert (instance.since, now[0]) == (110.0, 110.0)


def test_a_supervisor_pauses_between_two_starts_of_an_instance(
    tmp_path: Path, make_pool: Any, open_controller: Any
) -> None:
    service = GpuService(tmp_path, held=9)
    make_pool(service)
    service.accelerators.change(0, fault="GPU is lost")
    desired = service.define(make_revision(1, service.make_files(1, 8))).model_copy(update={"settled": 1})
    shims = Mock(adopt=Mock(return_value=None), wait=Mock(return_value=[]))
    controller = open_controller(service.folder, desired, shims)
    controller.adopt()
    (instance,) = controller.pool.instances
    instance.template = Template(desired.definition.spec_hash, 1.0, Grant(cpus=(), memory_nodes=()))
    instance.record_exit(time.monotonic() - 10, "it was killed", restart=True)
    assert controller.pause_s() == 0
    controller.tick()
    observed = read_observed(service.folder)
    assert observed is not None
    assert [it.waits_for for it in observed.record.instances] == ["a GPU: GPU 0 has failed: GPU is lost"]
    assert controller.pause_s() > 1
