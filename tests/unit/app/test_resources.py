"""The words for GPUs: whole ones, shares of one, MIG profiles, and how much of a device's memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.app.resources import MAX_GPUS, MIN_GPU_SHARE
from scanflow.errors import InvalidError


@pytest.mark.parametrize(
    ("given_as", "kept_as"),
    [
        (0, 0),
        (1, 1),
        (2.0, 2),
        ("1", 1),
        ("0.5", 0.5),
        (0.25, 0.25),
        (MIN_GPU_SHARE, MIN_GPU_SHARE),
        (MAX_GPUS, MAX_GPUS),
        ("1g.10gb", "1g.10gb"),
        (" 3G.40GB ", "3g.40gb"),
        ("1g.10gb+me", "1g.10gb+me"),
    ],
)
def test_gpus_are_kept_in_one_spelling(given_as: Any, kept_as: float | str) -> None:
    gpus = sf.Resources(gpu=given_as).gpu
    assert (gpus, type(gpus)) == (kept_as, type(kept_as))


@pytest.mark.parametrize(
    ("gpu", "message"),
    [
        (True, "gpu cannot be True: it should be a number."),
        (None, "gpu cannot be None. Write 2, 0.5 or '1g.10gb'."),
        (-1, "gpu -1 is not between 0 and 1024."),
        (1025, "gpu 1025 is not between 0 and 1024."),
        (1.5, "gpu 1.5 is neither whole nor a share of one GPU. Write 2, or a share such as 0.5."),
        ("1.5", "gpu 1.5 is neither whole nor a share"),
        (0.001, "gpu 0.001 is too small a share. Write at least 0.01."),
        (float("nan"), "gpu cannot be nan."),
        ("inf", "gpu cannot be inf."),
        ("half", "gpu 'half' cannot be read. Write a whole number of GPUs .2., a share of one .0.5. or a MIG"),
        ("9g.10gb", "gpu '9g.10gb' cannot be read"),
        ("1g10gb", "gpu '1g10gb' cannot be read"),
        ([1], r"gpu cannot be \[1\]"),
    ],
)
def test_gpus_that_mean_nothing_are_refused(gpu: Any, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        sf.Resources(gpu=gpu)


def test_memory_of_a_gpu_is_an_amount_with_a_unit() -> None:
    assert sf.Resources(gpu=0.5, gpu_memory="8Gi").gpu_memory_bytes == 8 * 2**30
    assert sf.Resources(gpu=1).gpu_memory_bytes is None
    with pytest.raises(InvalidError, match=r"gpu_memory '8Gb' has the unknown unit 'Gb'. Did you mean '8Gi'"):
        sf.Resources(gpu=1, gpu_memory="8Gb")


def test_memory_of_a_gpu_without_a_gpu_is_refused() -> None:
    with pytest.raises(
        InvalidError, match=r"gpu_memory='8Gi' is the memory of a GPU, and none is asked for. Write gpu"
    ):
        sf.Resources(gpu_memory="8Gi")


def test_an_agent_that_asks_for_a_gpu_is_refused() -> None:
    with pytest.raises(InvalidError, match=r"Agent 'planner' asks for a GPU, and agents get none."):
        sf.Agent(name="planner", template="planner", resources=sf.Resources(gpu=1))


gpus = st.integers(0, MAX_GPUS) | st.integers(1, 99).map(lambda percent: percent / 100) | st.just("2g.20gb")


@given(gpus)
def test_gpus_survive_being_written_and_read(gpu: float | str) -> None:
    resources = sf.Resources(gpu=gpu, gpu_memory="8Gi" if gpu else None)
    assert sf.Resources.model_validate_json(resources.model_dump_json()) == resources
    assert resources.gpu == gpu


def test_the_gpus_of_a_workflow_are_those_of_its_instances() -> None:
    nodes = [
        sf.Service(name=name, implementation=f"{name}.py:A", resources=sf.Resources(gpu=0.25, gpu_memory="4Gi"))
        for name in ("first", "second")
    ]
    workflow = sf.Workflow(name="serve", type="online", nodes=nodes, edges=nodes[0] >> nodes[1])
    resized = workflow.with_shape(gpu=1, cores=2)
    assert [(node.resources.gpu, node.resources.cores) for node in resized.services] == [(1, 2.0), (0, None)]
    assert [node.resources.gpu_memory for node in workflow.with_shape(gpu=0).services] == [None, None]
    assert workflow.with_shape(instances=2).services[1].resources.gpu == 0.25
