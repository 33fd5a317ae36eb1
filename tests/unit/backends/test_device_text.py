"""GPUs as text: of a machine, and of a run's steps."""

from __future__ import annotations

from scanflow.accelerators.accelerator_port import DeviceProcess, Inventory
from scanflow.backends.device_claims import DeviceClaim
from scanflow.backends.device_text import describe_uses, format_machine_devices, format_step_devices
from scanflow.backends.run_records import DeviceUse, TaskRecord
from scanflow.names import StepName
from scanflow.placement.device_grants import DeviceGrant
from scanflow.testing.accelerators import GIB, make_gpu, make_mig_gpu


def record(task: str, *devices: DeviceUse) -> TaskRecord:
    return TaskRecord(task=StepName(task), step=task.partition(".")[0], state="succeeded", devices=devices)


def test_a_step_shows_what_it_was_allocated_and_what_was_seen_of_it() -> None:
    whole = DeviceUse(number=0, uuid="GPU-0", name="NVIDIA H100", sharing="exclusive", memory_bytes=80 * GIB)
    used = whole.model_copy(update={"peak_bytes": 3 * GIB, "others": ("other 1 (1 GiB)",)})
    half = DeviceUse(number=1, uuid="GPU-1", sharing="mps", share=0.5, memory_bytes=40 * GIB)
    ranks = half.model_copy(update={"sharing": "time slicing", "share": 1.0, "memory_bytes": 80 * GIB})
    busy = whole.model_copy(update={"busy_share": 0.934, "power_w": 412.0})
    assert format_step_devices(
        [
            record("plain"),
            record("whole", whole),
            record("used", used),
            record("half", half),
            record("ranks", ranks),
            record("busy", busy),
        ]
    ) == [
        "GPUs of whole: GPU 0 NVIDIA H100, 80 GiB",
        "GPUs of used: GPU 0 NVIDIA H100, used 3 GiB of 80 GiB, beside other 1 (1 GiB)",
        "GPUs of half: GPU 1, 0.5 of it by MPS, 40 GiB",
        "GPUs of ranks: GPU 1, all of it by time slicing, 80 GiB",
        "GPUs of busy: GPU 0 NVIDIA H100, 80 GiB, 93% busy, 412 W",
    ]


def test_a_wide_fan_out_shows_some_of_its_gpus() -> None:
    tasks = [record(f"many.{n}", DeviceUse(number=n, uuid=f"GPU-{n}", sharing="exclusive")) for n in range(6)]
    assert format_step_devices(tasks) == ["GPUs of many: GPU 0; GPU 1; GPU 2; GPU 3; and 2 more"]


def test_a_gpu_that_failed_shows_why_in_place_of_its_use() -> None:
    use = DeviceUse(
        number=0,
        uuid="GPU-0",
        name="NVIDIA H100",
        sharing="mps",
        share=0.5,
        memory_bytes=8 * GIB,
        peak_bytes=GIB,
        busy_share=0.5,
        power_w=90.0,
        others=("other 1",),
        fault="GPU is lost",
    )
    assert describe_uses([use]) == "GPU 0 NVIDIA H100, 0.5 of it by MPS, 8 GiB, failed: GPU is lost"


def test_a_machine_shows_how_full_its_gpus_are_and_by_whom() -> None:
    process = DeviceProcess(pid=4711, memory_bytes=2 * GIB, name="py")
    load = "2 GiB used, 93% busy, 412 W"
    busy = make_gpu(0, memory_used_bytes=2 * GIB, processes=(process,), numa_node=1, busy_share=0.93, power_w=412.5)
    devices = (busy, make_gpu(1), make_mig_gpu(2, "1g.10gb", 2), make_gpu(3, fault="GPU is lost"))
    grant = DeviceGrant(uuid=busy.uuid, device=busy.uuid, number=0, sharing="mps", share=0.5)
    claim = DeviceClaim(holder="a", who="otter/train", pid=1, birth="1", grants=(grant,))
    hidden = "CUDA_VISIBLE_DEVICES='0,1,2,3' hides GPU 4"
    assert format_machine_devices(Inventory(devices=devices, hidden=hidden), [claim]) == [
        f"GPU 0 NVIDIA H100 (80 GiB), NUMA node 1: {load}; granted to otter/train (0.5 of it); on it: py 4711 (2 GiB)",
        "GPU 1 NVIDIA H100 (80 GiB): 0 B used; free",
        "GPU 2 NVIDIA H100 (80 GiB): cut into parts",
        "  part 1, 1g.10gb: 0 B used; free",
        "  part 2, 1g.10gb: 0 B used; free",
        "GPU 3 NVIDIA H100 (80 GiB): failed: GPU is lost",
        "CUDA_VISIBLE_DEVICES='0,1,2,3' hides GPU 4 from this process",
    ]
