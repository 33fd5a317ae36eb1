"""What may be tried on a machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.accelerators.accelerator_port import Inventory
from scanflow.backends.service_records import Shape
from scanflow.placement.device_cuts import DeviceBudget
from scanflow.placement.place import Grant
from scanflow.placement.topology import uniform
from scanflow.testing.accelerators import GIB, make_gpu, make_mig_gpu
from scanflow.tuning.candidates import Candidate, SearchSpace, build_candidate, describe

GPU = DeviceBudget(gpus=1, inventory=Inventory(devices=(make_gpu(0),)))
TWO = uniform(sockets=2, cores_per_socket=4)


def test_on_two_cores_of_one_socket_there_are_few() -> None:
    space = SearchSpace(topology=uniform(sockets=1, cores_per_socket=2), cores=2)
    assert {describe(candidate) for candidate in space.whole} == {
        "1 × 2 cores, any",
        "1 × 2 cores, any, 1 thread",
        "1 × 2 cores, cpumempin",
        "1 × 2 cores, cpumempin, 1 thread",
        "2 × 1 core, any",
        "2 × 1 core, cpu",
    }, "one socket's memory is all memory, and a single CPU pins its threads already"


@given(cores=st.integers(1, 8), batches=st.lists(st.sampled_from([4, 16]), unique=True))
def test_every_candidate_uses_the_whole_budget_fits_and_is_placed_unlike_all_others(
    cores: int, batches: list[int]
) -> None:
    space = SearchSpace(topology=TWO, cores=cores, batches=tuple(batches))
    candidates = space.whole
    assert {candidate.instances * candidate.cores for candidate in candidates} == {cores}
    assert len({space.find_placement(candidate) for candidate in candidates}) == len(candidates)
    assert None not in {space.find_placement(candidate) for candidate in candidates}


def test_what_others_hold_is_not_free() -> None:
    held = Grant(cpus=tuple(range(6)), memory_nodes=(0, 1), cores=6.0)
    space = SearchSpace(topology=TWO, cores=4, beside=(held,))
    assert space.find_placement(Candidate(instances=4, cores=1.0, affinity="cpu")) is None
    assert space.find_placement(Candidate(instances=2, cores=1.0, affinity="cpu")) is not None


@pytest.mark.parametrize(
    ("shape", "candidate"),
    [
        (Shape(instances=2, cores=1.5, affinity="cpu"), Candidate(instances=2, cores=1.5, affinity="cpu")),
        (Shape(instances=2), Candidate(instances=2, cores=4.0)),
        (Shape(instances=0, pool_threads=3), Candidate(instances=1, cores=8.0, threads=3)),
    ],
)
def test_a_service_as_it_is_is_a_candidate(shape: Shape, candidate: Candidate) -> None:
    assert build_candidate(shape, 8.0) == candidate


def test_a_gpu_is_cut_with_the_cores() -> None:
    space = SearchSpace(topology=TWO, cores=4, gpus=GPU, affinities=("any",))
    assert [describe(candidate) for candidate in space.whole if candidate.threads is None] == [
        "1 × 4 cores, gpu=1, any",
        "2 × 2 cores, gpu=0.5, any",
        "4 × 1 core, gpu=0.25, any",
    ]
    assert space.refused_cuts == []
    assert space.find_placement(Candidate(instances=4, cores=1.0)) is None, "it needs a GPU"
    assert SearchSpace(topology=TWO, cores=4).find_placement(Candidate(instances=4, cores=1.0, gpu=0.25)) is None


@given(cores=st.integers(1, 8), gpus=st.sampled_from([0.5, 1.0, 2.0, 3.0]), memory=st.none() | st.integers(1, 80))
def test_every_candidate_has_the_whole_budget_of_cores_and_of_gpus(cores: int, gpus: float, memory: int | None) -> None:
    devices = DeviceBudget(
        gpus=gpus,
        memory_bytes=None if memory is None else memory * GIB,
        inventory=Inventory(devices=(make_gpu(0), make_gpu(1))),
    )
    space = SearchSpace(topology=TWO, cores=cores, gpus=devices)
    for candidate in space.whole:
        assert isinstance(candidate.gpu, int | float)
        assert candidate.instances * candidate.cores == cores
        assert gpus - 0.001 < candidate.instances * candidate.gpu <= gpus + 1e-9
        assert devices.explain_refusal(candidate.instances, candidate.gpu) == ""
        assert candidate.instances * (memory or 0) <= 160


def test_parts_that_an_administrator_cut_are_candidates_beside_shares() -> None:
    machine = Inventory(devices=(make_gpu(0), make_mig_gpu(1, "1g.10gb", 4)))
    space = SearchSpace(topology=TWO, cores=4, gpus=DeviceBudget(gpus=1, inventory=machine), affinities=("any",))
    assert {candidate.gpu for candidate in space.whole} == {1, 0.5, 0.25, "1g.10gb"}
    assert {candidate.instances for candidate in space.whole if candidate.gpu == "1g.10gb"} == {4}


def test_cuts_that_cannot_be_are_left_out_and_the_reason_is_given() -> None:
    devices = DeviceBudget(gpus=1, memory_bytes=30 * GIB, inventory=GPU.inventory)
    space = SearchSpace(topology=TWO, cores=8, gpus=devices)
    assert {candidate.instances for candidate in space.whole} == {1, 2}
    assert [refused[:2] for refused in space.refused_cuts] == [(4, 0.25), (8, 0.125)]
    uneven = SearchSpace(topology=TWO, cores=6, gpus=GPU)
    assert [str(refused) for refused in uneven.refused_cuts] == [
        "4 × gpu=0.25: 6 cores cannot be divided by 4. Give more: --cores 8"
    ]
    three = DeviceBudget(gpus=3, inventory=Inventory(devices=tuple(make_gpu(number) for number in range(3))))
    (refused,) = (cut for cut in SearchSpace(topology=TWO, cores=1, gpus=three).refused_cuts if cut.instances == 2)
    assert str(refused) == "2 × gpu=1.5: neither whole GPUs nor shares of at least 0.01 each."


def test_a_service_with_a_gpu_is_a_candidate() -> None:
    shape = Shape(instances=2, cores=1.0, gpu=0.5)
    assert build_candidate(shape, 2.0) == Candidate(instances=2, cores=1.0, gpu=0.5)
