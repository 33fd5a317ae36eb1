"""What a planner decides of an MPI job: nodes as there are, workers by Algorithm 2."""

from __future__ import annotations

from typing import Any

import pytest

import scanflow as sf
from scanflow.errors import InvalidError
from scanflow.placement.mpi.groups import ClusterNode
from scanflow.placement.mpi.job_granularity import autoconfigure
from scanflow.placement.mpi.job_plan import plan_job

NODES = [ClusterNode(name=f"n{place}", cores=32) for place in range(4)]


def job(**fields: Any) -> sf.MPIWorkload:
    options: dict[str, Any] = {"n_tasks": 16, **fields}
    return sf.MPIWorkload(name="dgemm", mainfile="hpcc", **options)


@pytest.mark.parametrize(
    ("profile", "policy", "cut"),
    [("cpu", "scale", (4, 4, 4)), ("memory", "granularity", (4, 16, 4)), ("network", "granularity", (1, 1, 1))],
)
def test_algorithm_2_cuts_a_job_for_all_nodes_whatever_it_requested(
    profile: Any, policy: Any, cut: tuple[int, int, int]
) -> None:
    workload = autoconfigure(job(n_nodes=1, n_workers=3), NODES, policy=policy, profile=profile)
    granularity = plan_job(workload, NODES).granularity
    assert (granularity.nodes, granularity.workers, granularity.groups) == cut


def test_under_the_policy_none_the_workers_that_it_requested_stay() -> None:
    assert autoconfigure(job(n_workers=3, profile="cpu"), NODES, policy="none").n_workers == 3


def test_a_profile_that_nobody_knows_is_measured_where_that_can_be() -> None:
    assert autoconfigure(job(), NODES, measurable=True).profile == "auto"
    assert autoconfigure(job(n_workers=2), NODES).n_workers == 2
    assert autoconfigure(job(profile="network"), NODES, measurable=True).profile == "network"


def test_there_are_at_most_as_many_nodes_as_tasks_and_as_were_allowed() -> None:
    assert autoconfigure(job(n_tasks=2), NODES).n_nodes == 2
    assert autoconfigure(job(), NODES, most_nodes=3).n_nodes == 3


def test_without_a_node_it_says_so() -> None:
    with pytest.raises(InvalidError, match="There is no node for 'dgemm'"):
        autoconfigure(job(), [])
