"""What may be tried on a machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.backends.service_records import Shape
from scanflow.placement.place import Grant
from scanflow.placement.topology import uniform
from scanflow.tuning.candidates import Candidate, SearchSpace, build_candidate, describe

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
