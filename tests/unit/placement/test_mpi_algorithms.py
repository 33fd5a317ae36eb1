"""Algorithms 2 to 5 of the thesis, each beside its printed form."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.errors import InvalidError
from scanflow.placement.mpi.groups import ClusterNode, build_groups, compute_node_score, place_groups
from scanflow.placement.mpi.job_granularity import Granularity, select_granularity
from scanflow.placement.mpi.job_plan import plan_job
from scanflow.placement.mpi.task_allocation import (
    MPIWorker,
    allocate_tasks,
    assign_ranks,
    format_hostfile,
    make_workers,
)
from tests.counting import count_instructions


@pytest.mark.parametrize(
    ("policy", "profile", "value"),
    [
        ("scale", "network", (1, 1, 1)),
        ("scale", "cpu", (4, 4, 4)),
        ("scale", "memory", (4, 4, 4)),
        ("granularity", "network", (1, 1, 1)),
        ("granularity", "cpu", (4, 16, 4)),
        ("granularity", "memory", (4, 16, 4)),
        ("none", "cpu", (1, 2, 1)),
        ("none", None, (1, 2, 1)),
    ],
)
def test_algorithm_2_for_16_tasks_on_4_nodes(policy: str, profile: str | None, value: tuple[int, int, int]) -> None:
    chosen = select_granularity(16, nodes=4, workers=2, profile=profile, policy=policy)  # type: ignore[arg-type]
    assert (chosen.nodes, chosen.workers, chosen.groups) == value


@given(st.integers(1, 500), st.integers(1, 500), st.sampled_from(["scale", "granularity"]))
def test_algorithm_2_uses_no_more_nodes_than_there_are_tasks(n_tasks: int, nodes: int, policy: str) -> None:
    chosen = select_granularity(n_tasks, nodes=nodes, profile="cpu", policy=policy)  # type: ignore[arg-type]
    used = min(nodes, n_tasks)
    assert chosen == Granularity(nodes=used, workers=used if policy == "scale" else n_tasks, groups=used)


def test_a_policy_needs_a_profile() -> None:
    with pytest.raises(InvalidError, match="Write profile='cpu', 'memory' or 'network', or policy='none'"):
        select_granularity(4, nodes=1, profile=None, policy="scale")


@given(st.integers(1, 300), st.data())
def test_algorithm_3_deals_tasks_in_turn(n_tasks: int, data: st.DataObject) -> None:
    n_workers = data.draw(st.integers(1, n_tasks))
    dealt = [0] * n_workers
    for task in range(n_tasks):  # as it is printed: one after another, in turn
        dealt[task % n_workers] += 1
    assert allocate_tasks(n_tasks, n_workers) == tuple(dealt)
    workers = make_workers(n_tasks, n_workers, cores=n_tasks * 2, memory_bytes=n_tasks * 1024)
    assert [worker.cores for worker in workers] == [2 * worker.n_tasks for worker in workers]
    assert sum(worker.memory_bytes or 0 for worker in workers) == n_tasks * 1024
    assert [rank for own in assign_ranks(workers) for rank in own] == list(range(n_tasks))


def test_the_hostfile_says_how_many_tasks_each_worker_takes() -> None:
    hosts = list(zip(["w-0", "w-1"], allocate_tasks(5, 2), strict=True))
    assert format_hostfile(hosts) == "w-0 slots=3\nw-1 slots=2\n"


def printed_groups(workers: Sequence[MPIWorker], n_groups: int) -> list[list[int]]:
    """Algorithm 4, lines 1 to 6."""
    groups: list[list[int]] = [[] for _ in range(n_groups)]
    for worker in workers:
        smallest = min(groups, key=lambda group: (sum(workers[member].cores for member in group), groups.index(group)))
        smallest.append(worker.index)
    return groups


def printed_placing(
    workers: Sequence[MPIWorker], groups: Sequence[Sequence[int]], nodes: Sequence[ClusterNode]
) -> list[str] | None:
    """Algorithm 4, lines 7 to 18, with Algorithm 5 for each pair; None: a worker fits nowhere."""
    free = {node.name: node.cores for node in nodes}
    on_node: dict[str, set[int]] = defaultdict(set)
    placed: dict[int, str] = {}
    for number, group in enumerate(groups):
        for index in group:
            fitting = [node.name for node in nodes if workers[index].cores <= free[node.name] + 1e-9]
            if not fitting:
                return None
            scores = {
                name: compute_node_score(
                    number,
                    name,
                    bound=[placed[member] for member in group if member in placed],
                    group_size=len(group),
                    groups_on_node=sorted(on_node[name]),
                )
                for name in fitting
            }
            best = max(fitting, key=lambda name: scores[name])
            free[best] -= workers[index].cores
            on_node[best].add(number)
            placed[index] = best
    return [placed[index] for index in range(len(workers))]


@given(n_tasks=st.integers(1, 24), spare=st.lists(st.integers(0, 12), min_size=1, max_size=8), data=st.data())
def test_algorithms_4_and_5_choose_what_their_printed_form_chooses(
    n_tasks: int, spare: list[int], data: st.DataObject
) -> None:
    n_workers = data.draw(st.integers(1, n_tasks))
    n_groups = data.draw(st.integers(1, n_workers))
    workers = make_workers(n_tasks, n_workers, cores=n_tasks)
    nodes = [ClusterNode(name=f"n{place}", cores=cores) for place, cores in enumerate(spare)]
    groups = build_groups(workers, n_groups)
    wanted = printed_placing(workers, groups, nodes)
    if wanted is None:
        with pytest.raises(InvalidError, match="and no node has room for it"):
            place_groups(workers, groups, nodes)
    else:
        assert list(place_groups(workers, groups, nodes)) == wanted


@given(st.integers(1, 40), st.data())
def test_algorithm_4_makes_groups_that_are_alike(n_tasks: int, data: st.DataObject) -> None:
    n_workers = data.draw(st.integers(1, n_tasks))
    n_groups = data.draw(st.integers(1, n_workers))
    workers = make_workers(n_tasks, n_workers, cores=n_tasks)
    groups = build_groups(workers, n_groups)
    assert [list(group) for group in groups] == printed_groups(workers, n_groups)
    sizes = Counter(len(group) for group in groups)
    assert max(sizes) - min(sizes) <= 1


def place_tasks(n_tasks: int) -> Counter[str]:
    """Place tasks, each a worker, in groups of ten on as many nodes as there are groups."""
    nodes = [ClusterNode(name=f"n{place}", cores=32) for place in range(n_tasks // 10)]
    workers = make_workers(n_tasks, n_tasks, cores=n_tasks)
    return Counter(place_groups(workers, build_groups(workers, n_tasks // 10), nodes))


def test_ten_thousand_tasks_go_evenly_to_a_thousand_nodes() -> None:
    assert set(place_tasks(10_000).values()) == {10}


def test_eight_times_the_tasks_on_eight_times_the_nodes_are_no_more_work_for_each() -> None:
    few, many = (count_instructions(lambda n=n: place_tasks(n)) for n in (100, 800))  # type: ignore[misc]
    assert few < many < 12 * few  # docs/mpi.md has the seconds


def test_a_job_where_the_tasks_may_share_cores_fits_where_one_node_holds_its_largest_worker() -> None:
    nodes = [ClusterNode(name="a", cores=2), ClusterNode(name="b", cores=4)]
    job = sf.MPIWorkload(name="fft", mainfile="fft", n_tasks=6)
    with pytest.raises(InvalidError, match="no node has room") as refused:
        plan_job(job, nodes)
    assert "oversubscribe" not in str(refused.value)
    plan = plan_job(job.replace(oversubscribe=True), nodes)
    assert (plan.oversubscribed, plan.ranks_by_node, plan.workers[0].cores) == (True, {"b": 6}, 4.0)
    assert any("6 cores were requested and 4 are available" in reason for reason in plan.reasons)


def test_what_fits_no_node_is_reported() -> None:
    workers = make_workers(8, 1, cores=8)
    with pytest.raises(InvalidError, match=r"Worker 0 needs 8 cores, and no node has room for it: the largest, 'b'"):
        place_groups(
            workers, build_groups(workers, 1), [ClusterNode(name="a", cores=2), ClusterNode(name="b", cores=4)]
        )
