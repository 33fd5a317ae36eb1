"""Joint planning: which CPUs an MPI job takes beside services and other jobs, by what bounds it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.placement.mpi.colocation import Neighbour, choose_colocated_cpus
from scanflow.placement.mpi.local_plan import plan_local_job
from scanflow.placement.topology import uniform

TWO = uniform(sockets=2, cores_per_socket=4)  # CPUs 0-3 and 4-7
SERVE = Neighbour(name="serve", cpus=(0, 1))
PROFILES = ("cpu", "memory", "network", None)


def choose_cpus(
    profile: Any, *neighbours: Neighbour, cores: float = 2, **more: Any
) -> tuple[tuple[int, ...], str | None]:
    return choose_colocated_cpus(TWO, cores=cores, profile=profile, neighbours=neighbours, **more)


def test_alone_a_job_has_all_cpus() -> None:
    assert choose_cpus("memory") == (TWO.effective_cpus, None)


def test_memory_bound_jobs_keep_off_the_memory_of_services_and_of_each_other() -> None:
    cpus, why = choose_cpus("memory", SERVE)
    assert cpus == (4, 5, 6, 7)
    assert why == "memory-bound: spread over memory node 1, away from 'serve'"
    stream = Neighbour(name="stream", cpus=(4, 5), service=False, profile="memory")
    cpus, why = choose_cpus("memory", stream)
    assert cpus == (0, 1, 2, 3)
    assert choose_cpus(None, SERVE)[0] == (4, 5, 6, 7), "what is not known is taken for memory"


def test_a_job_that_computes_is_packed_beside_a_service_and_leaves_the_other_node() -> None:
    cpus, why = choose_cpus("cpu", SERVE)
    assert cpus == (2, 3)
    assert why == "CPU-bound: packed onto the free cores of memory node 0, which leaves memory node 1 to others"
    assert choose_cpus("cpu", SERVE, cores=3)[0] == (2, 3, 4, 5, 6, 7)


def test_a_job_that_the_network_bounds_stays_together_with_the_fewest_neighbours() -> None:
    assert choose_cpus("network", SERVE) == ((4, 5, 6, 7), "network-bound: together on memory node 1")
    assert "no memory node has 5 free cores" in str(choose_cpus("network", SERVE, cores=5)[1])


def test_a_memory_bound_job_that_fits_nowhere_else_says_with_which_job_it_shares_memory() -> None:
    other = Neighbour(name="other", cpus=(4,))
    cpus, why = choose_cpus("memory", SERVE, other)
    assert cpus == (2, 3, 5, 6, 7)
    assert why is not None
    assert why.endswith(
        "the other memory nodes have too few free cores: it shares memory with 'other', 'serve', on exclusive cores"
    )


def test_cores_of_others_are_taken_only_where_tasks_may_not_share_their_own() -> None:
    most = Neighbour(name="most", cpus=(0, 1, 2, 3, 4, 5, 6))
    assert choose_cpus("cpu", most) == (
        TWO.effective_cpus,
        "1 core of 2 that it requests is free: it shares cores with 'most'",
    )
    assert choose_cpus("cpu", most, oversubscribe=True) == ((7,), "its tasks share CPU 7, which 'most' leave free")


def test_siblings_of_a_services_cpus_come_last() -> None:
    smt = uniform(cores_per_socket=2, smt=2)  # cores 0,2 and 1,3
    serve = Neighbour(name="serve", cpus=(0,))
    assert choose_colocated_cpus(smt, cores=2, profile="cpu", neighbours=[serve]).cpus == (1, 3)
    assert choose_colocated_cpus(smt, cores=3, profile="cpu", neighbours=[serve]).cpus == (1, 2, 3)


@given(
    st.lists(st.sets(st.integers(0, 7), min_size=1, max_size=4), max_size=3),
    st.sampled_from(PROFILES),
    st.integers(1, 8),
    st.booleans(),
)
def test_a_job_gets_enough_and_nothing_of_others_while_that_is_possible(
    held: list[set[int]], profile: Any, cores: int, oversubscribe: bool
) -> None:
    neighbours = [Neighbour(name=f"n{place}", cpus=tuple(sorted(cpus))) for place, cpus in enumerate(held)]
    cpus, why = choose_colocated_cpus(
        TWO, cores=cores, profile=profile, neighbours=neighbours, oversubscribe=oversubscribe
    )
    taken = set().union(*held)
    assert cpus == tuple(sorted(set(cpus) & set(TWO.effective_cpus)))
    assert (why is None) == (not held)
    if 8 - len(taken) >= cores or (oversubscribe and len(taken) < 8):
        assert taken.isdisjoint(cpus)
        assert len(cpus) >= min(cores, 8 - len(taken))
    else:
        assert cpus == TWO.effective_cpus


@pytest.mark.parametrize(("profile", "cpus"), [("cpu", {2, 3}), ("memory", {4, 5}), ("network", {4, 5})])
def test_ranks_are_bound_beside_services_and_the_plan_says_why(profile: Any, cpus: set[int]) -> None:
    job = sf.MPIWorkload(name="job", mainfile="x", n_tasks=2, profile=profile, affinity="cpumempin")
    plan = plan_local_job(job, TWO, neighbours=[SERVE])
    assert {cpu for rank in plan.ranks for cpu in rank.cpus} == cpus
    assert "-bound: " in plan.reasons[-1]
