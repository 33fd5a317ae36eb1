from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.placement.order import Order, cpu_order, pick
from scanflow.placement.topology import Cache, Core, NumaNode, Topology, uniform
from tests.unit.placement.test_topology import MACHINES

ORDERS: tuple[Order, ...] = ("apart", "together", "numbered")


@given(MACHINES, st.sampled_from(ORDERS))
def test_every_cpu_is_taken_once(machine: Topology, order: Order) -> None:
    assert sorted(cpu_order(machine, order)) == list(machine.cpus)


@given(MACHINES, st.sampled_from(("apart", "numbered")))
def test_no_sibling_is_taken_while_a_core_is_free(machine: Topology, order: Order) -> None:
    cpus = cpu_order(machine, order)
    first = cpus[: len(machine.cores)]
    assert len({machine.core_of[cpu].cpus for cpu in first}) == len(machine.cores)


@given(MACHINES)
def test_work_that_computes_is_spread_over_all_l3_before_any_is_shared(machine: Topology) -> None:
    groups = {machine.cache_group(cpu, 3) for cpu in machine.cpus}
    first = cpu_order(machine, "apart")[: len(groups)]
    assert {machine.cache_group(cpu, 3) for cpu in first} == groups


@given(MACHINES)
def test_work_on_the_same_data_fills_an_l3_before_it_begins_another(machine: Topology) -> None:
    seen = [machine.cache_group(cpu, 3) for cpu in cpu_order(machine, "together")]
    changes = sum(one != other for one, other in pairwise(seen))
    assert changes == len(set(seen)) - 1


def test_an_epyc_in_each_order() -> None:
    epyc = uniform(1, 8, 2, l3_group=4)
    assert cpu_order(epyc, "apart") == (0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15)
    assert cpu_order(epyc, "together") == (0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15)
    assert cpu_order(epyc, "numbered") == tuple(range(16))


def test_cores_that_share_an_l2_are_taken_after_those_that_do_not() -> None:
    machine = Topology(
        cores=tuple(Core(cpus=(cpu,)) for cpu in range(8)),
        nodes=(NumaNode(cpus=tuple(range(8))),),
        caches=tuple(
            Cache(level=at, cpus=tuple(cpus)) for at, cpus in ((2, range(4)), (2, range(4, 8)), (3, range(8)))
        ),
    )
    assert cpu_order(machine, "apart")[:4] == (0, 4, 1, 5)
    assert [core.cpus[0] for core in pick(machine, machine.cores, 2, "apart")] == [0, 4]


def test_faster_cores_come_first_and_kinds_are_not_mixed() -> None:
    cores = tuple(Core(cpus=(cpu,), tier=int(cpu < 3)) for cpu in range(5))
    machine = Topology(cores=cores, nodes=(NumaNode(cpus=(0, 1, 2, 3, 4)),))
    assert cpu_order(machine) == (3, 4, 0, 1, 2)
    assert {core.tier for core in pick(machine, cores, 2, "apart")} == {0}
    assert {core.tier for core in pick(machine, cores, 3, "apart")} == {1}


@pytest.mark.parametrize("order", ORDERS)
def test_an_instance_keeps_to_one_l3_if_it_fits(order: Order) -> None:
    epyc = uniform(1, 64, l3_group=4)
    free = epyc.ordered_cores[1:]
    chosen = pick(epyc, free, 3, order)
    homes = {epyc.cache_group(core.cpus[0], 3) for core in chosen}
    assert len(homes) == 1
    assert homes == ({4} if order == "apart" else {0})


def test_more_cores_than_there_are_cannot_be_picked() -> None:
    with pytest.raises(ValueError, match="3"):
        pick(uniform(1, 2), uniform(1, 2).cores, 3, "apart")
