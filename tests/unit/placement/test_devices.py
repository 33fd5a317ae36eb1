"""Which devices a demand gets, which it waits for, and which are refused because the machine has none such."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.accelerators.accelerator_port import DeviceProcess, Inventory
from scanflow.errors import InvalidError, UnsupportedError
from scanflow.placement.device_grants import (
    DeviceDemand,
    DeviceGrant,
    build_demand,
    build_device_variables,
    check_demand,
    check_environment,
    choose_devices,
    merge_grants,
)
from scanflow.testing.accelerators import GIB, make_gpu, make_mig_gpu

TWO = Inventory(devices=(make_gpu(0), make_gpu(1)))
CUT = Inventory(devices=(make_mig_gpu(0, "1g.10gb", 2), make_gpu(1)))
MPS = replace(TWO, mps_directory="/tmp/nvidia-mps")


def demand(**resources: object) -> DeviceDemand:
    asked = build_demand(sf.Resources(**resources))  # type: ignore[arg-type]
    assert asked is not None
    return asked


def choose(
    inventory: Inventory, wanted: DeviceDemand, claims: list[DeviceGrant] | None = None, **options: object
) -> tuple[DeviceGrant, ...]:
    chosen = choose_devices(inventory, wanted, claims or [], **options)  # type: ignore[arg-type]
    assert not isinstance(chosen, str), chosen
    return chosen


def test_a_step_without_a_gpu_asks_for_none() -> None:
    assert build_demand(sf.Resources(cpu=2)) is None


def test_a_whole_device_is_given_to_one_at_a_time() -> None:
    first = choose(TWO, demand(gpu=1))
    second = choose(TWO, demand(gpu=1), [*first])
    assert [grant.number for grant in first + second] == [0, 1]
    waits = choose_devices(TWO, demand(gpu=1), [*first, *second])
    assert waits == "GPU 0 is granted to another; GPU 1 is granted to another"


def test_a_device_that_another_program_uses_is_not_free() -> None:
    busy = make_gpu(0, processes=(DeviceProcess(pid=4711, memory_bytes=12 * GIB, name="python"),))
    assert choose_devices(Inventory(devices=(busy,)), demand(gpu=1), []) == "GPU 0 is used by python 4711 (12 GiB)"
    assert choose(Inventory(devices=(busy,)), demand(gpu=1), is_foreign=lambda _: False)
    assert choose(Inventory(devices=(busy,), sees_processes=False), demand(gpu=1))
    assert choose_devices(Inventory(devices=(busy,)), demand(gpu=0.5), []) == "GPU 0 is used by python 4711 (12 GiB)"


def test_devices_near_the_cores_go_first() -> None:
    nodes = tuple(make_gpu(number, numa_node=number // 2) for number in range(4))
    machine = Inventory(devices=nodes)
    assert [grant.number for grant in choose(machine, demand(gpu=1), near=[1])] == [2]
    assert [grant.number for grant in choose(machine, demand(gpu=2), near=[1])] == [2, 3]
    taken = list(choose(machine, demand(gpu=1)))
    assert [grant.number for grant in choose(machine, demand(gpu=2), taken)] == [2, 3]  # of one node


def test_shares_fill_one_device_before_the_next() -> None:
    claims: list[DeviceGrant] = []
    for _ in range(3):
        claims += choose(MPS, demand(gpu=0.5), claims)
    assert [(grant.number, grant.sharing, grant.memory_bytes) for grant in claims] == [
        (0, "mps", 40 * GIB),
        (0, "mps", 40 * GIB),
        (1, "mps", 40 * GIB),
    ]
    waits = choose_devices(MPS, demand(gpu=0.75), claims)
    assert waits == "GPU 0 is granted to another; 0.5 of GPU 1 is granted to another"


def test_each_copy_gets_its_own_share_and_all_or_none_are_given() -> None:
    three = choose(TWO, replace(demand(gpu=0.5), copies=3))
    assert [grant.number for grant in three] == [0, 0, 1]
    assert {grant.memory_bytes for grant in three} == {40 * GIB}
    first, second = merge_grants(three)
    assert (first.number, first.share, first.memory_bytes) == (0, 1.0, 80 * GIB)
    assert (second.number, second.share) == (1, 0.5)
    waits = choose_devices(TWO, replace(demand(gpu=0.5), copies=2), [replace(grant, owner="a") for grant in three])
    assert waits == "1 of 2 free; GPU 0 is granted to a; GPU 1 is granted to a, its other tasks"
    parts = choose(CUT, replace(demand(gpu="1g.10gb"), copies=2))
    assert len({grant.uuid for grant in parts}) == 2
    with pytest.raises(UnsupportedError, match=r"5 tasks x gpu=0.5 are more than there is here, which is enough for 4"):
        check_demand(TWO, replace(demand(gpu=0.5), copies=5))
    with pytest.raises(UnsupportedError, match=r"^3 tasks x gpu=1 are more than there is here, which is enough for 2"):
        check_demand(TWO, replace(demand(gpu=1), copies=3))


def test_the_whole_devices_of_all_copies_are_given_beside_each_other() -> None:
    machine = Inventory(devices=tuple(make_gpu(number, numa_node=number // 2) for number in range(4)))
    taken = list(choose(machine, demand(gpu=1)))
    assert [grant.number for grant in choose(machine, replace(demand(gpu=1), copies=2), taken)] == [2, 3]


def test_shares_get_no_more_memory_than_there_is() -> None:
    first = choose(MPS, demand(gpu=0.25, gpu_memory="60Gi"))
    assert first[0].memory_bytes == 60 * GIB
    second = choose(MPS, demand(gpu=0.25, gpu_memory="60Gi"), [*first])
    assert second[0].number == 1
    waits = choose_devices(MPS, demand(gpu=0.5), [*first, *second])
    assert waits == "GPU 0: the shares of another leave 20 GiB; GPU 1: the shares of another leave 20 GiB"


def test_a_device_is_shared_in_one_way_only() -> None:
    sliced = list(choose(TWO, demand(gpu=0.5)))
    assert [grant.number for grant in choose(MPS, demand(gpu=0.5), sliced)] == [1]


def test_a_share_and_a_whole_device_never_meet() -> None:
    share = list(choose(MPS, demand(gpu=0.1)))
    assert [grant.number for grant in choose(MPS, demand(gpu=1), share)] == [1]
    assert isinstance(choose_devices(MPS, demand(gpu=2), share), str)


def test_a_part_of_a_device_is_given_by_its_own_uuid() -> None:
    first = choose(CUT, demand(gpu="1g.10gb"))
    second = choose(CUT, demand(gpu="1g.10gb"), [*first])
    assert {first[0].uuid, second[0].uuid} == {part.uuid for part in CUT.devices[0].mig_instances}
    assert choose_devices(CUT, demand(gpu="1g.10gb"), [*first, *second]) == (
        "the others of 1g.10gb are granted to another"
    )
    assert [grant.number for grant in choose(CUT, demand(gpu=1))] == [1]  # the one that is not cut


@pytest.mark.parametrize(
    ("inventory", "resources", "message"),
    [
        (Inventory(absence="no driver."), {"gpu": 1}, "gpu=1 asks for a GPU, and there is none here: no driver."),
        (
            TWO,
            {"gpu": 3},
            r"gpu=3 is more than there is here: GPU 0 NVIDIA H100 .80 GiB.; GPU 1 NVIDIA H100 .80 GiB.\.",
        ),
        (TWO, {"gpu": 1, "gpu_memory": "90Gi"}, "gpu=1 with 90 GiB is more than there is here"),
        (CUT, {"gpu": 2}, r"GPU 0 is cut into parts: ask for one .gpu='1g.10gb'."),
        (CUT, {"gpu": "2g.20gb"}, "gpu='2g.20gb' names a part that no GPU here has. Parts there are: 1g.10gb."),
        (TWO, {"gpu": "1g.10gb"}, "No GPU here is cut into parts: GPU 0 NVIDIA H100"),
        (
            CUT,
            {"gpu": "1g.10gb", "gpu_memory": "11Gi"},
            "gpu='1g.10gb' with 11 GiB of memory is more than a 1g.10gb has",
        ),
        (MPS, {"gpu": 0.5, "gpu_memory": "90Gi"}, "gpu=0.5 with 90 GiB of memory is more than there is here"),
        (
            replace(TWO, sees_processes=False),
            {"gpu": 0.5},
            "nothing here would hold a step to it.*nvidia-cuda-mps-cont",
        ),
        (Inventory(devices=(make_gpu(memory_bytes=None),)), {"gpu": 0.5}, "does not say how much memory it has"),
        (
            Inventory(devices=(make_gpu(fault="it is lost"),)),
            {"gpu": 1},
            r"GPU 0 NVIDIA H100 .80 GiB., failed: it is lost\.",
        ),
        (
            Inventory(devices=(make_gpu(1),), hidden="CUDA_VISIBLE_DEVICES='1' hides GPU 0"),
            {"gpu": 2},
            r"gpu=2 is more than there is here: GPU 1 NVIDIA H100 .80 GiB.; CUDA_VISIBLE_DEVICES='1' hides GPU 0\.",
        ),
        (Inventory(devices=(make_mig_gpu(0, "1g.10gb", 1),)), {"gpu": 0.5}, "is a share of a GPU that is not cut"),
    ],
)
def test_what_a_machine_never_has_is_refused_with_what_there_is(
    inventory: Inventory, resources: dict[str, object], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check_demand(inventory, demand(**resources))


@pytest.mark.parametrize(
    ("named", "asks", "reason"),
    [
        ("", True, "which hides all GPUs from it, and it asks for one. Remove it, or ask for none."),
        ("-1", True, "which hides all GPUs from it, and it asks for one. Remove it, or ask for none."),
        ("0", True, "by which it would use GPUs that are given to others. Remove it, and ask for a GPU: "),
        ("0", False, "by which it would use GPUs that are given to others. Remove it, and ask for a GPU: "),
    ],
)
def test_who_names_devices_itself_is_refused_with_what_that_would_do(named: str, asks: bool, reason: str) -> None:
    with pytest.raises(InvalidError) as caught:
        check_environment({"CUDA_VISIBLE_DEVICES": named}, TWO, asks=asks)
    assert str(caught.value).startswith(f"its env sets CUDA_VISIBLE_DEVICES={named!r}, {reason}")


def test_who_asks_for_no_device_may_hide_all() -> None:
    for named in ("", "-1"):
        check_environment({"CUDA_VISIBLE_DEVICES": named}, TWO, asks=False)
    check_environment({"CUDA_VISIBLE_DEVICES": "0"}, Inventory(absence="no driver."), asks=False)
    check_environment({}, TWO, asks=True)


def test_a_process_sees_its_devices_and_no_others() -> None:
    two = choose(TWO, demand(gpu=2))
    assert build_device_variables(two)["CUDA_VISIBLE_DEVICES"] == f"{TWO.devices[0].uuid},{TWO.devices[1].uuid}"
    assert build_device_variables(()) == {"CUDA_VISIBLE_DEVICES": ""}


def test_a_share_is_bounded_by_the_multi_process_service_where_it_runs() -> None:
    assert build_device_variables(choose(MPS, demand(gpu=0.25)), "/tmp/nvidia-mps") == {
        "CUDA_VISIBLE_DEVICES": MPS.devices[0].uuid,
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20480M",
        "SCANFLOW_GPU_MEMORY_BYTES": str(20 * GIB),
        "SCANFLOW_GPU_SHARE": "0.25",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.243750",  # 19.5 of 80 GiB: CUDA takes the rest
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    sliced = build_device_variables(choose(TWO, demand(gpu=0.25)))
    assert not any(name.startswith("CUDA_MPS") for name in sliced)
    assert sliced["SCANFLOW_GPU_MEMORY_BYTES"] == str(20 * GIB)


@pytest.mark.parametrize("inventory", [TWO, MPS])
@given(
    share=st.integers(1, 99).map(lambda percent: percent / 100),
    memory=st.none() | st.integers(64, 80 * 1024).map(lambda mebibytes: f"{mebibytes}Mi"),
)
def test_what_jax_takes_at_once_fits_the_bound(inventory: Inventory, share: float, memory: str | None) -> None:
    """The oracle is XLA's own rule: it takes the fraction of all memory that the device has. CUDA takes 512 MiB more,
    of which a bound below 1 GiB leaves half of it."""
    (grant,) = choose(inventory, demand(gpu=share, gpu_memory=memory))
    variables = build_device_variables([grant])
    bound = int(variables["SCANFLOW_GPU_MEMORY_BYTES"])
    taken = float(variables["XLA_PYTHON_CLIENT_MEM_FRACTION"]) * 80 * GIB
    cuda = min(GIB // 2, bound / 2)
    assert bound - cuda - 80 * GIB / 10**6 <= taken + 1
    assert taken <= bound - cuda + 1
    assert "XLA_PYTHON_CLIENT_PREALLOCATE" not in variables


def test_jax_takes_nothing_at_once_of_a_device_with_unknown_memory() -> None:
    (grant,) = choose(MPS, demand(gpu=0.5, gpu_memory="8Gi"))
    variables = build_device_variables([replace(grant, device_bytes=None)])
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in variables
    assert variables["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


amounts = st.integers(1, 3) | st.integers(1, 99).map(lambda percent: percent / 100) | st.just("1g.10gb")
memories = st.none() | st.integers(1, 60).map(lambda gib: f"{gib}Gi")


@given(st.lists(st.tuples(amounts, memories, st.integers(1, 3)), max_size=12), st.booleans())
def test_no_device_is_ever_given_twice_over(wanted: list[tuple[int | float | str, str | None, int]], mps: bool) -> None:
    devices = (
        make_gpu(0, numa_node=0),
        make_gpu(1, numa_node=1),
        make_mig_gpu(2, "1g.10gb", 2),
        make_gpu(3, fault="x"),
    )
    inventory = Inventory(devices=devices, mps_directory="/tmp/mps" if mps else None)
    claims: list[DeviceGrant] = []
    for gpu, memory, copies in wanted:
        asked = build_demand(sf.Resources(gpu=gpu, gpu_memory=memory))
        assert asked is not None
        chosen = choose_devices(inventory, replace(asked, copies=copies), claims)
        if not isinstance(chosen, str):
            assert len(chosen) == copies * asked.count
            assert sum(grant.share for grant in merge_grants(chosen)) == pytest.approx(
                copies * asked.count * asked.share
            )
        claims += () if isinstance(chosen, str) else chosen
    for device in devices:
        own = [claim for claim in claims if claim.device == device.uuid]
        assert not (device.fault and own)
        assert len({claim.uuid for claim in own if claim.sharing == "mig"}) == sum(
            claim.sharing == "mig" for claim in own
        )
        if not device.mig_enabled:
            assert sum(claim.share for claim in own) <= 1 + 1e-6
            assert sum(claim.memory_bytes or 0 for claim in own) <= (device.memory_bytes or 0)
            assert len({claim.sharing for claim in own}) <= 1
