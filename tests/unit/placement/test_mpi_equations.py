"""The CPUs of each rank of an MPI job on several machines, beside equations 3.13 to 3.23 as the thesis prints them."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.app.resources import AffinityMode
from scanflow.placement.mpi.groups import ClusterNode
from scanflow.placement.mpi.job_plan import plan_job
from scanflow.placement.topology import uniform
from tests.unit.placement.equations import Equations


@given(
    hosts=st.integers(1, 3),
    sockets=st.sampled_from([1, 2, 4]),
    per_socket=st.integers(1, 3),
    cores=st.integers(1, 6),
    over=st.sampled_from([1, 2, 3]),
    spare=st.integers(0, 3),
    smt=st.sampled_from([1, 2]),
    mode=st.sampled_from(["any", "cpu", "cpumem", "cpumempin"]),
)
def test_each_rank_of_each_host_is_where_the_equations_have_it(
    hosts: int, sockets: int, per_socket: int, cores: int, over: int, spare: int, smt: int, mode: AffinityMode
) -> None:
    """Hosts h, containers i and processes j are those of 3.13 to 3.23; ``over`` is r, which 3.23 has at 1 only."""
    containers, processes = per_socket * sockets, cores * over
    assume(mode != "cpu" or (cores % sockets == 0 and sockets > 1))
    p = per_socket * cores + spare
    topology = uniform(sockets, p, smt)
    workload = sf.MPIWorkload(
        name="hpl",
        mainfile="hpl",
        n_tasks=hosts * containers * processes,
        n_nodes=hosts,
        n_workers=hosts * containers,
        oversubscribe=over > 1,
        affinity=mode,
    )
    nodes = [ClusterNode(name=f"host{h}", cores=containers * cores) for h in range(hosts)]
    plan = plan_job(workload, nodes, topologies={node.name: topology for node in nodes})
    printed = Equations(sockets, p, containers, cores)
    for rank in plan.ranks:
        worker, j = divmod(rank.rank, processes)
        h, i = divmod(worker, containers)
        if mode == "any":
            expected = printed.any()
        elif mode == "cpu":
            expected = printed.cpu(i + 1)
        elif mode == "cpumem":
            expected = printed.cpumem(i + 1)
        else:
            expected = (printed.cpumempin(i + 1, j + 1, over),), printed.cpumem(i + 1)[1]
        assert rank.node == f"host{h}"
        assert (rank.cpus, rank.memory_nodes) == expected


@pytest.mark.parametrize(("tasks", "cpus"), [(4, [0, 1, 2, 3]), (6, [0, 4, 1, 5, 2, 3])])
def test_siblings_are_used_when_cores_run_out(tasks: int, cpus: list[int]) -> None:
    """The thesis' machines have hyper-threading off, so that no equation has siblings: 0 and 4 are of one core here."""
    topology = uniform(1, 4, 2)
    workload = sf.MPIWorkload(name="hpl", mainfile="hpl", n_tasks=tasks, affinity="cpumempin")
    plan = plan_job(workload, [ClusterNode(name="host", cores=8)], topologies={"host": topology})
    assert sorted(rank.cpus[0] for rank in plan.ranks) == sorted(cpus)
