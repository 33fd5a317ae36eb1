"""Who of a home holds which GPU: claims live as long as their attempts, and a device is never given twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scanflow.accelerators.accelerator_port import Device, DeviceProcess, Inventory
from scanflow.accelerators.visible import is_driver_loaded
from scanflow.backends.device_claims import HomeDevices, MeasuredUse, SeenUse, measure_use
from scanflow.errors import UnavailableError
from scanflow.placement.device_grants import DeviceDemand, DeviceGrant
from scanflow.processes.identity import is_suspended
from scanflow.testing.accelerators import GIB, FakeAccelerators, make_gpu, make_mig_gpu
from tests.waiting import wait_until

ONE = DeviceDemand()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SCANFLOW_DEVICES_OF", raising=False)
    return tmp_path / "home"


def open_devices(home: Path, *devices: Device) -> HomeDevices:
    accelerators = FakeAccelerators(*(devices or (make_gpu(0),)))
    return HomeDevices(home, lambda: accelerators)


def take(devices: HomeDevices, attempt: Path, **options: Any) -> list[int] | str:
    taken = devices.take(attempt, attempt.name, ONE, **options)
    return taken if isinstance(taken, str) else [grant.number for grant in taken]


def test_a_claim_holds_until_it_is_given_back(home: Path) -> None:
    devices = open_devices(home)
    assert take(devices, home / "first") == [0]
    assert [claim.holder for claim in devices.list_claims()] == ["first"]  # a home may be moved
    assert take(devices, home / "second") == "GPU 0 is granted to first"
    devices.release(home / "first")
    assert take(devices, home / "second") == [0]


def test_what_is_free_is_read_with_who_holds_the_rest_and_without_their_own_processes(home: Path) -> None:
    processes = (DeviceProcess(pid=os.getpid()), DeviceProcess(pid=1))
    devices = open_devices(home, make_gpu(0), make_gpu(1, processes=processes))
    assert take(devices, home / "first") == [0]
    inventory, held = devices.read_free()
    assert [[process.pid for process in device.processes] for device in inventory.devices] == [[], [1]]
    assert [(grant.number, grant.owner) for grant in held] == [(0, "first")]


def test_a_claim_ends_with_its_attempt_whoever_started_it(home: Path) -> None:
    devices = open_devices(home)
    assert take(devices, home / "first") == [0]
    (home / "first").mkdir()
    assert take(devices, home / "second") == "GPU 0 is granted to first"  # not started yet
    (home / "first" / "exit").write_text('{"exit_code": 0}')
    assert take(devices, home / "second") == [0]


def test_a_claim_of_a_process_that_is_gone_is_void(home: Path) -> None:
    devices = open_devices(home)
    assert take(devices, home / "first") == [0]
    file = home / "devices" / "claims.json"
    (claim,) = devices.list_claims()
    file.write_text(file.read_text().replace(f'"birth":"{claim.birth}"', '"birth":"1"'))
    assert devices.list_claims() == []
    assert take(devices, home / "second") == [0]


def test_an_attempt_that_its_shim_has_claimed_is_about_to_start(home: Path) -> None:
    devices = open_devices(home)
    assert take(devices, home / "first") == [0]
    (home / "first").mkdir()
    (home / "first" / "claim").touch()
    file = home / "devices" / "claims.json"
    (claim,) = devices.list_claims()
    file.write_text(file.read_text().replace(f'"birth":"{claim.birth}"', '"birth":"1"'))  # its driver was killed
    assert take(devices, home / "second") == "GPU 0 is granted to first"
    os.utime(home / "first" / "claim", (0, 0))
    assert take(devices, home / "second") == [0]


def test_what_a_step_starts_itself_shares_the_steps_own_device(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = open_devices(home)
    assert take(devices, home / "outer") == [0]
    monkeypatch.setenv("SCANFLOW_DEVICES_OF", "outer")
    assert take(devices, home / "inner") == [0]
    assert sorted(claim.holder for claim in devices.list_claims()) == ["inner", "outer"]


def test_an_attempt_shares_the_device_of_one_that_it_replaces_only_if_there_is_no_other(home: Path) -> None:
    devices = open_devices(home, make_gpu(0), make_gpu(1))
    assert take(devices, home / "old") == [0]
    assert take(devices, home / "new", leaving=[home / "old"]) == [1]
    assert take(devices, home / "newer", leaving=[home / "old"]) == [0]
    assert take(devices, home / "other") == "GPU 0 is granted to old, newer; GPU 1 is granted to new"


def test_this_process_and_the_multi_process_service_are_no_strangers(home: Path) -> None:
    own = DeviceProcess(pid=os.getpid(), name="python")
    service = DeviceProcess(pid=1, name="nvidia-cuda-mps")
    stranger = DeviceProcess(pid=1, name="notebook")
    assert take(open_devices(home, make_gpu(0, processes=(own, service))), home / "a") == [0]
    assert take(open_devices(home, make_gpu(1, processes=(stranger,))), home / "b") == "GPU 1 is used by notebook 1"


def test_a_damaged_file_of_claims_is_not_taken_for_an_empty_one(home: Path) -> None:
    devices = open_devices(home)
    (home / "devices").mkdir(parents=True)
    (home / "devices" / "claims.json").write_text("[{")
    with pytest.raises(UnavailableError, match=r"who holds which GPU, cannot be read. Delete it when no step"):
        take(devices, home / "first")


def test_what_an_attempt_had_is_kept_for_the_one_that_follows(home: Path) -> None:
    devices = open_devices(home)
    assert take(devices, home / "1") == [0]
    (home / "1").mkdir()
    (home / "1" / "exit").write_text('{"exit_code": 70}')
    devices.keep(home / "1", home / "2", "serve/1")
    assert take(devices, home / "other") == "GPU 0 is granted to serve/1"
    assert take(devices, home / "2") == [0]
    (home / "2").mkdir()
    (home / "2" / "exit").write_text('{"exit_code": 70}')
    assert take(devices, home / "other") == [0]  # it was quicker
    devices.keep(home / "2", home / "3", "serve/1")
    assert [claim.holder for claim in devices.list_claims()] == ["other"]


def test_a_run_without_gpus_does_not_wait_for_what_reads_them(tmp_path: Path) -> None:
    loaded = (
        "import sys, scanflow_client.formatting.run_text, scanflow.backends.local.batch.backend; print(*sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", loaded], check=True, capture_output=True, text=True)
    assert {"ctypes", "scanflow.accelerators.nvml", "scanflow.placement.device_grants"}.isdisjoint(
        process.stdout.split()
    )
    assert not is_driver_loaded({"LD_LIBRARY_PATH": f":{tmp_path}"}) or Path("/proc/driver/nvidia").exists()
    (tmp_path / "libnvidia-ml.so.1").touch()
    assert is_driver_loaded({"LD_LIBRARY_PATH": f":{tmp_path}"})


def test_processes_are_distinguished_by_the_attempt_that_leads_their_session(home: Path) -> None:
    # Not process 1: in a container the tests may run in its session.
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        own = DeviceProcess(pid=os.getpid(), memory_bytes=2)
        ended = DeviceProcess(pid=2**22 + 1, memory_bytes=4)  # above what the kernel gives
        other = DeviceProcess(pid=stranger.pid, memory_bytes=8)
        device = make_gpu(0, processes=(own, ended, other))
        grant = DeviceGrant(uuid=device.uuid, device=device.uuid, number=0)
        use = measure_use(Inventory(devices=(device,)), grant, os.getsid(0))
        stranger.terminate()
    assert (use.own_bytes, use.others) == (2, (other,))
    assert measure_use(Inventory(devices=(device,), sees_processes=False), grant, os.getsid(0)).own_bytes is None


THIS = DeviceProcess(pid=os.getpid(), memory_bytes=2 * GIB)


def measure(device: Device, *, sees_processes: bool = True, **fields: Any) -> MeasuredUse:
    uuid = fields.pop("uuid", device.uuid)
    grant = DeviceGrant(uuid=uuid, device=device.uuid, number=0, **fields)
    return measure_use(Inventory(devices=(device,), sees_processes=sees_processes), grant, os.getsid(0))


def test_only_of_whole_devices_it_is_known_how_busy_they_are() -> None:
    device = make_gpu(0, busy_share=0.9, power_w=400.0, memory_used_bytes=30 * GIB, processes=(THIS,))
    whole, share = measure(device), measure(device, sharing="time slicing", share=0.5)
    assert (whole.busy_share, whole.power_w, whole.used_bytes) == (0.9, 400.0, 2 * GIB)
    assert (share.busy_share, share.power_w, share.used_bytes) == (None, None, 2 * GIB)


def test_memory_that_no_process_is_seen_to_hold_is_that_of_a_device_or_part_of_its_own() -> None:
    silent = replace(THIS, memory_bytes=None)
    device = make_gpu(0, memory_used_bytes=30 * GIB, processes=(silent,))
    assert measure(device).used_bytes == 30 * GIB
    assert measure(device, sharing="mps", share=0.5).used_bytes is None
    assert measure(replace(device, processes=(THIS,)), sees_processes=False).used_bytes == 30 * GIB
    assert measure(replace(device, processes=())).used_bytes == 0
    cut = make_mig_gpu(0, "1g.10gb", 1)
    (part,) = (replace(part, memory_used_bytes=GIB, processes=(silent,)) for part in cut.mig_instances)
    cut = replace(cut, mig_instances=(part,), busy_share=0.9)
    assert measure(cut, uuid=part.uuid, sharing="mig").used_bytes == GIB
    assert measure(cut, uuid=part.uuid, sharing="mig").busy_share is None
    assert measure(cut, uuid="MIG-gone", sharing="mig").used_bytes is None


def test_a_device_that_failed_tells_nothing_and_is_not_empty() -> None:
    use = measure(make_gpu(0, fault="GPU is lost"))
    assert (use.used_bytes, use.busy_share) == (None, None)


def test_what_is_seen_of_an_attempt_is_its_mean_of_the_last_minute_and_what_it_holds_now() -> None:
    first, second = (make_gpu(number, busy_share=share) for number, share in enumerate((0.9, 0.1)))
    grants = [
        DeviceGrant(uuid=it.uuid, device=it.uuid, number=it.number, memory_bytes=8 * GIB) for it in (first, second)
    ]
    seen = SeenUse()
    assert seen.compute_busy_share() is None
    assert [use.busy_share for use in seen.describe(grants)] == [None, None]
    seen.add(Inventory(devices=(replace(first, processes=(THIS,)), second)), grants, os.getsid(0), 10.0)
    seen.add(Inventory(devices=(replace(first, busy_share=0.2, power_w=301.4), second)), grants, os.getsid(0), 20.0)
    uses = seen.describe(grants)
    assert [(use.busy_share, use.power_w) for use in uses] == [(0.55, 301.0), (0.1, None)]
    assert [(use.peak_bytes, use.used_bytes, use.memory_share) for use in uses] == [(2 * GIB, 0, 0.0), (None, 0, 0.0)]
    assert seen.compute_busy_share(0.0) == pytest.approx(0.15)


def test_who_came_later_waits_until_the_first_has_its_devices_or_gives_up(home: Path) -> None:
    devices = open_devices(home, make_gpu(0), make_gpu(1))
    two = DeviceDemand(count=2)
    assert take(devices, home / "first") == [0]
    assert isinstance(devices.take(home / "big", "big", two, since=1.0), str)
    why = "GPU 0 is granted to first; GPU 1 is kept for big, which waits for gpu=2"
    assert take(devices, home / "small", since=2.0) == why
    assert devices.explain_wait(ONE) == why
    assert take(devices, home / "earlier", since=0.5) == [1]
    devices.release(home / "earlier")
    devices.stop_waiting(home / "big")
    assert take(devices, home / "small", since=2.0) == [1]


def test_one_that_is_suspended_or_gone_keeps_nobody_waiting(home: Path) -> None:
    devices = open_devices(home, make_gpu(0), make_gpu(1))
    assert take(devices, home / "first") == [0]
    program = (
        "from pathlib import Path; from scanflow.backends.device_claims import HomeDevices;"
        "from scanflow.placement.device_grants import DeviceDemand;"
        "from scanflow.testing.accelerators import FakeAccelerators, make_gpu;"
        f"home = Path({str(home)!r}); devices = HomeDevices(home, lambda: FakeAccelerators(make_gpu(0), make_gpu(1)));"
        "print(devices.take(home / 'big', 'big', DeviceDemand(count=2), since=1.0), flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline().startswith("1 of 2 free")
        assert "kept for big" in take(devices, home / "small", since=2.0)
        waiting.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_suspended(waiting.pid), "it is suspended")
        assert take(devices, home / "small", since=2.0) == [1]
        devices.release(home / "small")
        waiting.send_signal(signal.SIGCONT)
        wait_until(lambda: not is_suspended(waiting.pid), "it goes on")
        assert "kept for big" in take(devices, home / "small", since=2.0)
        waiting.kill()
    assert take(devices, home / "small", since=2.0) == [1]


def test_what_a_step_starts_itself_does_not_wait_for_one_that_waits_for_the_step(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = open_devices(home)
    assert take(devices, home / "outer") == [0]
    assert take(devices, home / "next", since=1.0) == "GPU 0 is granted to outer"
    monkeypatch.setenv("SCANFLOW_DEVICES_OF", "outer")
    assert take(devices, home / "inner", since=2.0) == [0]


def test_a_device_that_is_avoided_is_taken_only_if_there_is_no_other(home: Path) -> None:
    devices = open_devices(home, make_gpu(0), make_gpu(1))
    assert take(devices, home / "a", avoid=[make_gpu(0).uuid]) == [1]
    assert take(devices, home / "b", avoid=[make_gpu(0).uuid]) == [0]
