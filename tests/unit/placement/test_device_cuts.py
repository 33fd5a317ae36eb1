"""A budget of GPUs is cut evenly, and only into what the machine can give: held against every way to place it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.accelerators.accelerator_port import Device, DeviceProcess, Inventory
from scanflow.errors import InvalidError, UnsupportedError
from scanflow.placement.device_cuts import DeviceBudget, sum_gpus
from scanflow.placement.device_grants import DeviceGrant, build_demand, check_demand, choose_devices
from scanflow.testing.accelerators import GIB, make_gpu, make_mig_gpu

ONE = Inventory(devices=(make_gpu(0),))
TWO = Inventory(devices=(make_gpu(0), make_gpu(1)))
CUT = Inventory(devices=(make_mig_gpu(0, "1g.10gb", 4), make_mig_gpu(1, "3g.40gb", 2, memory=40 * GIB)))


def budget(gpus: float, inventory: Inventory = ONE, **fields: object) -> DeviceBudget:
    return DeviceBudget(gpus=gpus, inventory=inventory, **fields)  # type: ignore[arg-type]


def can_place(devices: tuple[Device, ...], copies: int, share: Fraction, memory: int) -> bool:
    """Return whether any of all ways to put so many shares on devices fits; exactly, and without any order."""
    for ways in itertools.product(range(len(devices)), repeat=copies):
        loads = [ways.count(number) for number in range(len(devices))]
        if all(
            load * share <= 1 and load * memory <= (device.memory_bytes or 0)
            for load, device in zip(loads, devices, strict=True)
        ):
            return True
    return False


@pytest.mark.parametrize(
    ("gpus", "instances", "cuts"),
    [
        (1, 1, [1]),
        (1, 2, [0.5]),
        (1, 3, [0.333333]),
        (1, 4, [0.25]),
        (2, 1, [2]),
        (2, 4, [0.5]),
        (3, 2, []),
        (0.5, 2, [0.25]),
        (1, 128, []),
    ],
)
def test_a_budget_is_divided_evenly(gpus: float, instances: int, cuts: list[float]) -> None:
    assert budget(gpus).list_cuts(instances) == cuts


def test_parts_that_make_up_the_budget_are_a_cut_of_it() -> None:
    assert budget(1, CUT).list_cuts(4) == [0.25, "1g.10gb"]
    assert budget(1, CUT).list_cuts(2) == [0.5, "3g.40gb"]
    assert budget(0.5, CUT).list_cuts(2) == [0.25, "1g.10gb"]
    assert budget(0.5, CUT).list_cuts(1) == [0.5, "3g.40gb"]
    assert budget(1, CUT).explain_refusal(4, "1g.10gb") == ""
    assert "GPU 0 NVIDIA H100 (80 GiB), cut into parts (MIG)" in budget(1, CUT).explain_refusal(4, 0.25)


@pytest.mark.parametrize(
    ("instances", "gpu", "total"), [(1, 1, 1), (3, 0.333333, 1), (2, 0.25, 0.5), (2, "1g.10gb", 0.5), (2, 0.33, 0.66)]
)
def test_what_instances_have_adds_up_to_a_budget(instances: int, gpu: float | str, total: float) -> None:
    assert sum_gpus(instances, gpu, CUT) == pytest.approx(total)


def test_a_part_that_no_gpu_has_adds_up_to_nothing() -> None:
    with pytest.raises(InvalidError, match=r"gpu='7g.80gb' names a part that no GPU here has."):
        sum_gpus(1, "7g.80gb", CUT)


@given(
    memories=st.lists(st.integers(8, 80), min_size=1, max_size=3),
    gpus=st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0]),
    instances=st.integers(1, 6),
    needed=st.none() | st.integers(1, 80),
)
def test_every_cut_is_what_a_grant_accepts_and_never_more_than_there_is(
    memories: list[int], gpus: float, instances: int, needed: int | None
) -> None:
    devices = tuple(make_gpu(number, memory=memory * GIB) for number, memory in enumerate(memories))
    inventory = Inventory(devices=devices)
    memory = None if needed is None else needed * GIB
    cut = budget(gpus, inventory, memory_bytes=memory)
    for gpu in cut.list_cuts(instances):
        assert isinstance(gpu, int | float)
        assert Fraction(str(gpu)) * instances <= Fraction(gpus), "never more than the budget"
        assert Fraction(str(gpu)) * instances > Fraction(gpus) - Fraction(1, 1000)
        demand = build_demand(sf.Resources(gpu=gpu, gpu_memory=memory))
        assert demand is not None
        try:
            check_demand(inventory, replace(demand, copies=instances))
            accepted = True
        except UnsupportedError:
            accepted = False
        assert (cut.explain_refusal(instances, gpu) == "") == accepted
        if gpu < 1:
            assert accepted == can_place(devices, instances, Fraction(str(gpu)), memory or 0)
        else:
            fitting = sum((device.memory_bytes or 0) >= (memory or 0) for device in devices)
            assert accepted == (instances * gpu <= fitting)
        if accepted:
            grants = list[DeviceGrant]()
            for _ in range(instances):
                chosen = choose_devices(inventory, demand, grants)
                assert not isinstance(chosen, str)
                grants += chosen
            for device in devices:
                own = [grant for grant in grants if grant.device == device.uuid]
                assert sum(Fraction(str(grant.share)) for grant in own) <= 1
                assert sum(grant.memory_bytes or 0 for grant in own if grant.share < 1) <= (device.memory_bytes or 0)


def test_models_that_do_not_fit_the_device_together_are_left_out_with_the_reason() -> None:
    thirty = budget(1, memory_bytes=30 * GIB)
    assert [bool(thirty.explain_refusal(count, 1 / count)) for count in (2, 4)] == [False, True]
    refusal = thirty.explain_refusal(4, 0.25)
    assert refusal == "there is room for 2: GPU 0: the shares of its other instances leave 20 GiB."


def test_shares_are_candidates_only_where_something_holds_a_process_to_them() -> None:
    blind = replace(ONE, sees_processes=False)
    assert "Multi-Process Service" in budget(1, blind).explain_refusal(2, 0.5)
    assert budget(1, replace(blind, mps_directory="/tmp/nvidia-mps")).explain_refusal(2, 0.5) == ""


def test_what_others_hold_or_use_is_not_free() -> None:
    grant = DeviceGrant(
        uuid=make_gpu(0).uuid, device=make_gpu(0).uuid, number=0, sharing="time slicing", share=0.5, owner="digits/1"
    )
    half = budget(1, claims=(grant,))
    assert half.explain_refusal(2, 0.25) == ""
    assert half.explain_refusal(2, 0.5) == ("there is room for 1: GPU 0 is granted to digits/1, its other instances.")
    busy = Inventory(devices=(make_gpu(0, processes=(DeviceProcess(pid=7, name="python"),)),))
    assert budget(1, busy).explain_refusal(1, 1) == "gpu=1 is not free: GPU 0 is used by python 7."


def test_a_cluster_says_itself_what_it_has() -> None:
    assert budget(1, None).list_cuts(4) == [0.25]  # type: ignore[arg-type]
    assert budget(1, None).explain_refusal(4, 0.25) == ""  # type: ignore[arg-type]
