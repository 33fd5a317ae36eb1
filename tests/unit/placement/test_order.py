from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given

from scanflow.placement.cpu_order import Order, pick, sort_cpus
from scanflow.placement.topology import Cache, Core, NumaNode, Topology, uniform
from tests.unit.placement.test_topology import MACHINES

ORDERS: tuple[Order, ...] = ("apart", "together", "numbered")


@given(MACHINES)
def test_each_order_shares_what_it_should(machine: Topology) -> None:
    orders = {order: sort_cpus(machine, order) for order in ORDERS}
    assert all(sorted(cpus) == list(machine.cpus) for cpus in orders.values())
    for order in ("apart", "numbered"):
        first = {machine.core_of[cpu].cpus for cpu in orders[order][: len(machine.cores)]}
        assert len(first) == len(machine.cores), "no sibling is taken while a core is free"
    groups = {machine.cache_group(cpu, 3) for cpu in machine.cpus}
    apart = {machine.cache_group(cpu, 3) for cpu in orders["apart"][: len(groups)]}
    assert apart == groups, "work that computes is spread over all L3 before any is shared"
    seen = [machine.cache_group(cpu, 3) for cpu in orders["together"]]
    changes = sum(earlier != other for earlier, other in pairwise(seen))
    assert changes == len(groups) - 1, "work on the same data fills an L3 before it begins another"


def test_an_epyc_in_each_order() -> None:
    epyc = uniform(1, 8, 2, l3_group=4)
    assert sort_cpus(epyc, "apart") == (0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15)
    assert sort_cpus(epyc, "together") == (0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15)
    assert sort_cpus(epyc, "numbered") == tuple(range(16))


def test_cores_that_share_an_l2_are_taken_after_those_that_do_not() -> None:
    machine = Topology(
        cores=tuple(Core(cpus=(cpu,)) for cpu in range(8)),
        nodes=(NumaNode(cpus=tuple(range(8))),),
        caches=tuple(
            Cache(level=at, cpus=tuple(cpus)) for at, cpus in ((2, range(4)), (2, range(4, 8)), (3, range(8)))
        ),
    )
    assert sort_cpus(machine, "apart")[:4] == (0, 4, 1, 5)
    assert [core.cpus[0] for core in pick(machine, machine.cores, 2, "apart")] == [0, 4]


def test_faster_cores_come_first_and_kinds_are_not_mixed() -> None:
    cores = tuple(Core(cpus=(cpu,), tier=int(cpu < 3)) for cpu in range(5))
    machine = Topology(cores=cores, nodes=(NumaNode(cpus=(0, 1, 2, 3, 4)),))
    assert sort_cpus(machine) == (3, 4, 0, 1, 2)
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
