"""The accelerators' contract, held by the double and by NVML, whose library is a stub here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scanflow.accelerators.accelerator_port import Accelerators, DeviceProcess, Inventory, NoAccelerators
from scanflow.testing.accelerators import AcceleratorsContract, FakeAccelerators, Machine, make_gpu, make_mig_gpu
from tests.nvml import StubbedMachine
from tests.waiting import wait_until


class TestTheDouble(AcceleratorsContract):
    @pytest.fixture
    def machine(self) -> Machine:
        return lambda inventory: FakeAccelerators(*inventory.devices)


class TestNone:
    def test_it_says_why(self) -> None:
        assert NoAccelerators("the driver is not installed").read() == Inventory(absence="the driver is not installed")


class TestNvml(AcceleratorsContract):
    @pytest.fixture
    def machine(self, tmp_path: Path) -> Machine:
        def make(inventory: Inventory) -> Accelerators:
            return StubbedMachine(tmp_path, *inventory.devices)

        return make

    def test_a_driver_that_does_not_answer_is_explained(self, tmp_path: Path) -> None:
        read = StubbedMachine(tmp_path).read(NVML_STUB=str(tmp_path / "none"))
        assert read.devices == ()
        assert "NVIDIA's driver does not answer: Driver Not Loaded. Load its kernel module" in read.absence

    def test_a_driver_that_hangs_is_explained_and_holds_up_no_exit(self, tmp_path: Path) -> None:
        machine = StubbedMachine(tmp_path, make_gpu())
        machine.hang()
        read = machine.read(TEST_BOUND_S="0.2")  # its process has ended while the call still hangs
        assert read.devices == ()
        assert read.absence.startswith("NVIDIA's driver does not answer for 0.2 s. If nvidia-smi hangs as well, ")

    def test_a_driver_that_answers_again_is_read_again(self, tmp_path: Path) -> None:
        machine = StubbedMachine(tmp_path, make_gpu())
        with machine.open_reader(TEST_BOUND_S="0.5") as read:
            assert len(read().devices) == 1
            machine.hang()
            hanging = read()
            assert (hanging.devices, read()) == ((), hanging)
            machine.set_devices(make_gpu(0), make_gpu(1))
            assert read() == hanging  # the call that was made before still hangs
            machine.answer()
            wait_until(lambda: len(read().devices) == 2, "the driver is read again")

    def test_without_the_library_no_driver_is_installed(self, tmp_path: Path) -> None:
        read = StubbedMachine(tmp_path, make_gpu()).read(LD_LIBRARY_PATH="")
        assert "NVIDIA's driver is not installed: libnvidia-ml.so.1 is not found." in read.absence

    def test_processes_have_names(self, tmp_path: Path) -> None:
        machine = StubbedMachine(tmp_path, make_gpu(processes=(DeviceProcess(pid=os.getpid(), memory_bytes=1),)))
        assert machine.read().devices[0].processes[0].name == Path("/proc/self/comm").read_text().strip()

    def test_devices_are_near_the_node_that_the_kernel_says(self, tmp_path: Path) -> None:
        for number, node in enumerate(("1", "-1")):
            folder = tmp_path / "sys" / "bus" / "pci" / "devices" / f"0000:{number + 1:02x}:00.0"
            folder.mkdir(parents=True)
            (folder / "numa_node").write_text(f"{node}\n")
        machine = StubbedMachine(tmp_path, make_gpu(0), make_gpu(1), make_gpu(2))
        read = machine.read(TEST_ROOT=str(tmp_path))
        assert [device.numa_node for device in read.devices] == [1, None, None]

    @pytest.mark.parametrize(("namespace", "sees"), [("pid:[4026531836]", True), ("pid:[4026532198]", False)])
    def test_processes_are_this_machines_outside_of_containers_only(
        self, tmp_path: Path, namespace: str, sees: bool
    ) -> None:
        (tmp_path / "proc" / "self" / "ns").mkdir(parents=True)
        (tmp_path / "proc" / "self" / "ns" / "pid").symlink_to(namespace)
        assert StubbedMachine(tmp_path, make_gpu(0)).read(TEST_ROOT=str(tmp_path)).sees_processes is sees

    def test_the_multi_process_service_is_seen_while_its_daemon_runs(self, tmp_path: Path) -> None:
        machine = StubbedMachine(tmp_path, make_gpu())
        assert machine.read().mps_directory is None
        machine.start_mps()
        assert machine.read().mps_directory == str(tmp_path / "mps")
        (tmp_path / "mps" / "nvidia-cuda-mps-control.pid").write_text("999999999")  # its sockets stay behind
        assert machine.read().mps_directory is None

    @pytest.mark.parametrize(
        ("visible", "numbers", "others"),
        [
            ("1", [1], "GPU 0, GPU 2"),
            ("1,0", [1, 0], "GPU 2"),
            ("GPU-00000001", [1], "GPU 0, GPU 2"),
            ("", [], ""),
            ("-1", [], ""),
            ("0,7,1", [0], "GPU 1, GPU 2"),
            ("MIG-00020001-aaaa", [2], "GPU 0, GPU 1"),
            ("0,1,2", [0, 1, 2], ""),
        ],
    )
    def test_what_this_process_may_not_use_is_not_there(
        self, tmp_path: Path, visible: str, numbers: list[int], others: str
    ) -> None:
        machine = StubbedMachine(tmp_path, make_gpu(0), make_gpu(1), make_mig_gpu(2, "1g.10gb", 2))
        read = machine.read(CUDA_VISIBLE_DEVICES=visible)
        assert [device.number for device in read.devices] == numbers
        assert read.hidden == (f"CUDA_VISIBLE_DEVICES='{visible}' hides {others}" if others else "")
        assert (f"CUDA_VISIBLE_DEVICES='{visible}' hides all 3 GPUs" in read.absence) is (not numbers)
        if visible.startswith("MIG-"):
            assert [part.uuid for part in read.devices[0].mig_instances] == [visible]

    def test_numbers_of_different_devices_are_ambiguous(self, tmp_path: Path) -> None:
        machine = StubbedMachine(tmp_path, make_gpu(0, name="NVIDIA T4"), make_gpu(1))
        assert "counts the GPUs as CUDA does, the fastest first" in machine.read(CUDA_VISIBLE_DEVICES="0").absence
        read = machine.read(CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID")
        assert [device.name for device in read.devices] == ["NVIDIA T4"]
