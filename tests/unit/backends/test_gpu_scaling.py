"""Scaling by what GPUs do is refused where nobody tells it."""

from __future__ import annotations

from typing import Any

import pytest

from scanflow.accelerators.accelerator_port import Inventory
from scanflow.app.scaling import Scaling
from scanflow.backends.gpu_scaling import check_gpu_readings, check_gpu_scaling
from scanflow.backends.service_records import Shape
from scanflow.errors import InvalidError, UnsupportedError
from scanflow.testing.accelerators import make_gpu, make_mig_gpu

BUSY, MEMORY = (Scaling(metric=metric, target=0.7) for metric in ("gpu", "gpu_memory"))
CPU = Scaling(metric="cpu", target=0.7)
TOLD = make_gpu(0, busy_share=0.5)


@pytest.mark.parametrize("scaling", [BUSY, MEMORY])
def test_a_service_without_gpus_is_not_scaled_by_them(scaling: Scaling) -> None:
    with pytest.raises(InvalidError, match=f"{scaling.metric!r} goes by the GPUs of the instances, and they ask for"):
        check_gpu_scaling(scaling, Shape(cores=2))
    check_gpu_scaling(CPU, Shape())


@pytest.mark.parametrize(("gpu", "words"), [(0.5, "of gpu=0.5, a share: "), ("1g.10gb", "of gpu='1g.10gb', a MIG ")])
def test_nobody_says_how_busy_a_share_or_a_part_is(gpu: Any, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        check_gpu_scaling(BUSY, Shape(gpu=gpu))
    check_gpu_scaling(MEMORY, Shape(gpu=gpu))


@pytest.mark.parametrize("gpu", [1, 4])
def test_whole_gpus_tell_both(gpu: int) -> None:
    for scaling in (BUSY, MEMORY):
        check_gpu_scaling(scaling, Shape(gpu=gpu))
        check_gpu_readings(scaling, Shape(gpu=gpu), Inventory(devices=(TOLD,)))


def test_a_gpu_that_an_instance_may_get_has_to_tell() -> None:
    silent = Inventory(devices=(TOLD, make_gpu(1, name="NVIDIA T4")))
    with pytest.raises(UnsupportedError, match="the driver does not say how busy GPU 1 NVIDIA T4 is"):
        check_gpu_readings(BUSY, Shape(gpu=1), silent)
    check_gpu_readings(MEMORY, Shape(gpu=1), silent)
    check_gpu_readings(CPU, Shape(gpu=1), silent)
    unsized = Inventory(devices=(make_gpu(0, memory=None, busy_share=0.1),))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="GPU 0 NVIDIA H100 does not say how much memory it has"):
        check_gpu_readings(MEMORY, Shape(gpu=1), unsized)
    check_gpu_readings(BUSY, Shape(gpu=1), unsized)


def test_a_gpu_that_nobody_gets_as_a_whole_need_not_tell() -> None:
    others = make_mig_gpu(1, "1g.10gb", 2), make_gpu(2, fault="GPU is lost")
    check_gpu_readings(BUSY, Shape(gpu=1), Inventory(devices=(TOLD, *others)))


def test_what_a_share_holds_is_seen_by_the_process_ids_of_the_machine() -> None:
    for sees in (True, False):
        inventory = Inventory(devices=(TOLD,), sees_processes=sees)
        check_gpu_readings(MEMORY, Shape(gpu=1), inventory)
        if sees:
            check_gpu_readings(MEMORY, Shape(gpu=0.5), inventory)
        else:
            with pytest.raises(UnsupportedError, match=r"of gpu=0.5, a share: the process ids in this container"):
                check_gpu_readings(MEMORY, Shape(gpu=0.5), inventory)
