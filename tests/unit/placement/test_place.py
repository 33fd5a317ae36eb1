"""Real placements: the equations on free and equal machines, sense on all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scanflow.app.resources import AffinityMode
from scanflow.errors import InvalidError
from scanflow.placement.cpu_order import Order
from scanflow.placement.cpulist import format_cpus
from scanflow.placement.explain import explain
from scanflow.placement.place import Grant, place
from scanflow.placement.topology import Core, NumaNode, Topology, uniform
from tests.unit.placement.equations import Equations
from tests.unit.placement.test_topology import MACHINES

THESIS = uniform(2, 18)
RESERVED = uniform(2, 16)
EPYC = uniform(1, 64, l3_group=4)
SMT = uniform(2, 18, 2)
NODES = uniform(2, 18, nodes_per_socket=2)
OWN: tuple[AffinityMode, ...] = ("cpu", "cpumem", "cpumempin")


def format_grants(grants: Sequence[Grant]) -> list[str]:
    return [format_cpus(grant.cpus) for grant in grants]


# The equations, number for number


@given(st.integers(1, 4), st.integers(1, 24), st.integers(1, 6), st.integers(1, 6))
def test_on_equal_sockets_the_equations_hold(n_socket: int, p: int, per_socket: int, share: int) -> None:
    assume(per_socket * share <= p)
    near, spread = (
        Equations(n_socket, p, per_socket * n_socket, share),
        Equations(n_socket, p, per_socket, share * n_socket),
    )
    machine = uniform(n_socket, p)
    for i, grant in enumerate(place(machine, near.n_ctn, near.n_cpu, "cpumem"), 1):
        assert (grant.cpus, grant.memory_nodes) == near.cpumem(i)
    for i, grant in enumerate(place(machine, spread.n_ctn, spread.n_cpu, "cpu"), 1):
        assert (grant.cpus, grant.memory_nodes) == spread.cpu(i)
    for grant in place(machine, spread.n_ctn, spread.n_cpu, "any"):
        assert (grant.cpus, grant.memory_nodes) == spread.any()


@pytest.mark.parametrize(
    ("i", "r", "cores"),
    [
        (1, 1, [0, 1, 2, 3]),
        (3, 1, [18, 19, 20, 21]),
        (4, 2, [22, 22, 23, 23, 24, 24, 25, 25]),
        (1, Fraction(3, 2), [0, 1, 1, 2, 3, 3]),
    ],
)
def test_equation_3_12_gives_what_was_worked_out_by_hand(i: int, r: Fraction, cores: list[int]) -> None:
    assert [Equations(2, 18, 4, 4).cpumempin(i, j, r) for j in range(1, int(4 * r) + 1)] == cores


@given(st.integers(1, 3), st.integers(1, 8), st.integers(1, 3), st.integers(1, 4))
def test_pinned_threads_are_equation_3_12(n_socket: int, n_cpu: int, per_socket: int, r: int) -> None:
    wanted = Equations(n_socket, n_cpu * per_socket, per_socket * n_socket, n_cpu)
    grants = place(uniform(n_socket, wanted.p), wanted.n_ctn, n_cpu, "cpumempin", n_threads=n_cpu * r)
    for i, grant in enumerate(grants, 1):
        assert list(grant.thread_cpus) == [wanted.cpumempin(i, j, r) for j in range(1, n_cpu * r + 1)]


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(2, 4))
def test_caches_and_siblings_keep_sockets(n_socket: int, per_socket: int, n_cpu: int, group: int, smt: int) -> None:
    equations = Equations(n_socket, per_socket * n_cpu, per_socket * n_socket, n_cpu)
    wanted = [equations.cpumem(i) for i in range(1, equations.n_ctn + 1)]
    machine = uniform(n_socket, equations.p, smt, l3_group=group)
    grants = place(machine, equations.n_ctn, n_cpu, "cpumem")
    assert [(len(share.cpus), share.memory_nodes) for share in grants] == [
        (len(cores), memory) for cores, memory in wanted
    ]
    used = [machine.core_of[cpu].cpus for grant in grants for cpu in grant.cpus]
    assert len(set(used)) == len(used)
    numbered = place(machine, equations.n_ctn, n_cpu, "cpumem", order="numbered")
    assert [grant.cpus for grant in numbered] == [cores for cores, _ in wanted]


# Tables


@pytest.mark.parametrize(
    ("machine", "count", "cores", "mode", "cpus"),
    [
        (THESIS, 1, 18, "cpumem", ["0-17"]),
        (THESIS, 2, 18, "cpumem", ["0-17", "18-35"]),
        (THESIS, 4, 9, "cpumempin", ["0-8", "9-17", "18-26", "27-35"]),
        (THESIS, 2, 18, "cpu", ["0-8,18-26", "9-17,27-35"]),
        (THESIS, 2, 4, "any", ["0-3,18-21", "0-3,18-21"]),
        (RESERVED, 4, 8, "cpumem", ["0-7", "8-15", "16-23", "24-31"]),
        (RESERVED, 8, 4, "cpu", [f"{k}-{k + 1},{k + 16}-{k + 17}" for k in range(0, 16, 2)]),
        (EPYC, 16, 4, "cpumem", [f"{k}-{k + 3}" for k in range(0, 64, 4)]),
        (EPYC, 8, 8, "cpumem", [f"{k}-{k + 7}" for k in range(0, 64, 8)]),
        (EPYC, 32, 2, "cpumem", [f"{k}-{k + 1}" for k in range(0, 64, 2)]),
        (EPYC, 64, 1, "cpumem", [f"{k}" for k in range(64)]),
        # With room to spare, each instance has an L3 of its own.
        (EPYC, 16, 1, "cpumem", [f"{k}" for k in range(0, 64, 4)]),
        (EPYC, 4, 2, "cpumem", ["0-1", "4-5", "8-9", "12-13"]),
        (EPYC, 8, 6, "cpumem", [f"{k}-{k + 5}" for k in range(0, 48, 6)]),
        # With SMT: a CPU of each core, and siblings only when cores run out, of its own cores first.
        (SMT, 4, 9, "cpumem", ["0-8", "9-17", "18-26", "27-35"]),
        (SMT, 2, 36, "cpumem", ["0-17,36-53", "18-35,54-71"]),
        (SMT, 4, 18, "cpumem", ["0-8,36-44", "9-17,45-53", "18-26,54-62", "27-35,63-71"]),
        (SMT, 4, 10, "cpumem", ["0-8,36", "9-17,45", "18-26,54", "27-35,63"]),
        (SMT, 2, 20, "cpu", ["0-8,18-26,36,54", "9-17,27-35,45,63"]),
        (uniform(2, 16, 2, adjacent=True), 2, 4, "cpumem", ["0,2,4,6", "32,34,36,38"]),
        (uniform(2, 16, 2, adjacent=True), 2, 32, "cpumem", ["0-31", "32-63"]),
        (uniform(1, 64, 2, l3_group=4), 16, 8, "cpumem", [f"{k}-{k + 3},{k + 64}-{k + 67}" for k in range(0, 64, 4)]),
        # A socket of two nodes: inside a node while that goes.
        (NODES, 4, 9, "cpumem", ["0-8", "9-17", "18-26", "27-35"]),
        (NODES, 2, 18, "cpumem", ["0-17", "18-35"]),
        (NODES, 6, 6, "cpumem", ["0-5", "6-8,15-17", "9-14", "18-23", "24-26,33-35", "27-32"]),
        (NODES, 2, 4, "cpumem", ["0-3", "18-21"]),
        (NODES, 4, 4, "cpumem", ["0-3", "9-12", "18-21", "27-30"]),
        # What the equations leave open: instances and cores that do not divide.
        (THESIS, 3, 4, "cpumem", ["0-3", "4-7", "18-21"]),
        (THESIS, 3, 3, "cpu", ["0-1,18", "2,19-20", "3-4,21"]),
        (THESIS, 3, 1, "cpu", ["0", "1", "18"]),
        (THESIS, 1, 3, "any", ["0-1,18"]),
        # Fractions share.
        (THESIS, 4, 0.5, "cpumem", ["0", "0", "18", "18"]),
        (THESIS, 3, 1.5, "cpumem", ["0-1", "1-2", "18-19"]),
        (THESIS, 2, 0.5, "any", ["0", "0"]),
        (uniform(1, 2), 2, 1, "cpumem", ["0", "1"]),
        (uniform(1, 2), 1, 2, "cpumem", ["0-1"]),
        (uniform(1, 2), 4, 0.5, "cpumem", ["0", "0", "1", "1"]),
    ],
)
def test_tables(machine: Topology, count: int, cores: float, mode: AffinityMode, cpus: list[str]) -> None:
    assert format_grants(place(machine, count, cores, mode)) == cpus


VIRTUAL = uniform(8, 1).replace(nodes=(NumaNode(cpus=tuple(range(8)), memory_bytes=2**33),))
WIDE_NODES = uniform(4, 6).replace(
    nodes=[NumaNode(id=place, cpus=tuple(range(12 * place, 12 * place + 12)), memory_bytes=1) for place in (0, 1)]
)
HALF = place(THESIS, 1, 0.5, "cpumem")
TWO, SIX = uniform(1, 2), uniform(1, 6)


@pytest.mark.parametrize(
    ("machine", "count", "cores", "options", "cpus"),
    [
        (THESIS, 0, 4, {}, []),
        (VIRTUAL, 2, 2, {}, ["0-1", "2-3"]),
        (WIDE_NODES, 2, 2, {}, ["0-1", "12-13"]),
        (SMT.replace(allowed=tuple(range(2, 36))), 2, 16, {}, ["2-17", "18-33"]),
        (THESIS, 2, 4, {"taken": set(range(12))}, ["18-21", "22-25"]),
        # Siblings of an instance's own cores come first: sharing a core with another instance harms both.
        (uniform(1, 4, 2), 2, 1, {"taken": {4, 5}}, ["2", "3"]),
        (uniform(1, 4, 2), 1, 4, {"taken": {4, 5}}, ["2-3,6-7"]),
        (uniform(1, 4, 2), 1, 5, {"taken": {4, 5}}, ["0,2-3,6-7"]),
        # A fraction joins a CPU that is shared already.
        (THESIS, 2, 0.5, {"beside": HALF}, ["0", "18"]),
        (THESIS, 1, 0.75, {"beside": HALF}, ["18"]),
        # A service is cut anew: the new instances overlap the old ones only where they must.
        (TWO, 1, 2, {"beside": place(TWO, 2, 1, "cpumem"), "oversubscribe": True}, ["0-1"]),
        (SIX, 2, 2, {"beside": place(SIX, 3, 1, "cpumem"), "oversubscribe": True}, ["0,5", "3-4"]),
    ],
)
def test_what_is_taken_and_what_is_there_decide(
    machine: Topology, count: int, cores: float, options: dict[str, Any], cpus: list[str]
) -> None:
    assert format_grants(place(machine, count, cores, "cpumem", **options)) == cpus


def test_without_a_number_any_is_the_whole_machine_and_the_others_are_a_core() -> None:
    machine = uniform(1, 4).replace(allowed=(1, 2, 3))
    assert place(machine, 1, None, "any") == (Grant((1, 2, 3), (0,), cores=3.0),)
    assert format_grants(place(machine, 2, None, "cpumem")) == ["1", "2"]


# What is always so


@given(
    MACHINES,
    st.integers(1, 12),
    st.sampled_from([0.25, 0.5, 1, 1.5, 2, 3, 5, 8]),
    st.sampled_from(OWN),
    st.sampled_from(("apart", "together", "numbered")),
    st.sets(st.integers(0, 80)),
)
def test_no_cpu_is_allocated_twice_nor_one_that_is_taken(
    machine: Topology, count: int, cores: float, mode: AffinityMode, order: Order, taken: set[int]
) -> None:
    try:
        grants = place(machine, count, cores, mode, taken=taken, order=order)
    except InvalidError:
        return
    loads: Counter[int] = Counter()
    for grant in grants:
        loads.update(grant.compute_loads())
        assert not set(grant.cpus) & taken
        assert set(grant.cpus) <= set(machine.effective_cpus)
        assert len(grant.cpus) == -(-cores // 1)
        assert sum(grant.compute_loads().values()) == round(cores * 1000)
        if mode != "cpu":
            assert len({machine.core_of[cpu].socket for cpu in grant.cpus}) == 1
            assert grant.memory_nodes == machine.list_nearest_memory(grant.cpus)
        assert set(grant.thread_cpus) == (set(grant.cpus) if mode == "cpumempin" else set())
    assert max(loads.values()) <= 1000


@given(MACHINES, st.integers(1, 20), st.sampled_from([0.5, 1, 2, 3]), st.sampled_from(OWN), st.sets(st.integers(0, 40)))
def test_sharing_places_them(machine: Topology, count: int, cores: float, mode: AffinityMode, taken: set[int]) -> None:
    widest = len(machine.cpus) if mode == "cpu" else len(machine.cpus) // len(machine.sockets)
    assume(cores <= widest)
    grants = place(machine, count, cores, mode, taken=taken, oversubscribe=True)
    assert [len(grant.cpus) for grant in grants] == [-(-cores // 1)] * count
    free = set(machine.cpus) - taken
    if not free:
        return
    used = Counter(cpu for grant in grants for cpu in grant.cpus)
    if mode == "cpu" and max(used.values()) > 1 and cores >= 1:
        assert free <= set(used)  # free ones come first


def test_free_ones_come_first_where_sockets_are_of_different_sizes() -> None:
    sockets = (0, 0, 1, 2)
    machine = Topology(
        title="",
        cores=tuple(Core(cpus=(number, number + 4), socket=socket) for number, socket in enumerate(sockets)),
        nodes=(NumaNode(id=0, cpus=tuple(range(8)), memory_bytes=None),),
        caches=(),
    )
    grants = place(machine, 3, 3, "cpu", oversubscribe=True)
    assert {cpu for grant in grants for cpu in grant.cpus} == set(range(8))


@given(st.integers(1, 30), st.integers(1, 4), st.sampled_from(OWN))
def test_one_by_one_they_get_cores_of_their_own_too(count: int, cores: int, mode: AffinityMode) -> None:
    assume(count * cores <= 32)
    grants: list[Grant] = []
    for _ in range(count):
        grants += place(uniform(2, 16, 2), 1, cores, mode, beside=grants)
    used = [uniform(2, 16, 2).core_of[cpu].cpus for grant in grants for cpu in grant.cpus]
    assert len(set(used)) == len(used) or cores == 3  # what 16 cores leave over of threes is siblings


def test_memory_of_a_node_without_any_comes_from_the_nearest() -> None:
    machine = Topology(
        cores=(Core(cpus=(0,)), Core(cpus=(1,), socket=1)),
        nodes=(
            NumaNode(id=0, cpus=(0,), memory_bytes=2**30, distances=(10, 20)),
            NumaNode(id=1, cpus=(1,), memory_bytes=0, distances=(20, 10)),
        ),
    )
    assert [grant.memory_nodes for grant in place(machine, 2, 1, "cpumem")] == [(0,), (0,)]
    assert "(the nearest with memory)" in explain(machine, place(machine, 2, 1, "cpumem"), "cpumem")[2]


def test_an_instance_that_needs_the_memory_of_a_node_gets_one_to_itself() -> None:
    machine = uniform(2, 8, memory_bytes=2**30)
    assert format_grants(place(machine, 2, 1, "cpumem", memory_bytes=2**30)) == ["0", "8"]
    with pytest.raises(InvalidError, match=r"a socket has 1Gi, .* affinity='cpu'"):
        place(machine, 3, 1, "cpumem", memory_bytes=2**30)


# Refusals


def get_refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(InvalidError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: place(uniform(1, 2), 3, 1, "cpumem"),
            "3 instances of 1 core need 3 cores: this machine has 2 CPUs. Write at most instances=2 or cores=0.5.",
        ),
        (
            lambda: place(uniform(1, 2), 1, 3, "cpu"),
            "An instance of 3 cores cannot be placed: this machine has 2 CPUs. Write at most cores=2.",
        ),
        (
            lambda: place(SMT.replace(allowed=tuple(range(2, 36)), quota=20), 6, 4, "cpu"),
            (
                "6 instances of 4 cores need 24 cores: this machine has 72 CPUs (36 cores with up to 2 siblings), of "
                "which the affinity mask or cpuset allows 34 (2-35), and the CPU quota is 20. "
                "Write at most instances=5 or cores=3."
            ),
        ),
        (
            lambda: place(THESIS, 1, 20, "cpumem"),
            (
                "An instance of 20 cores does not fit a socket, which has 18 CPUs that may be used; affinity='cpumem' "
                "keeps an instance in one socket. Write at most cores=18, or affinity='cpu'."
            ),
        ),
        (
            lambda: place(THESIS, 3, 12, "cpumempin"),
            (
                "3 instances of 12 cores do not fit with affinity='cpumempin', which keeps each instance in one "
                "socket: 18 cores on socket 0, 18 cores on socket 1 are free, enough for 2. "
                "Write instances=2, fewer cores each, or affinity='cpu'."
            ),
        ),
        (
            lambda: place(uniform(2, 4), 1, 4, "cpumem", taken={0, 4}),
            (
                "No socket has 4 cores left for affinity='cpumem', which keeps an instance in one socket: 3 cores on "
                "socket 0, 3 cores on socket 1 are free. Write at most cores=3, or affinity='cpu'."
            ),
        ),
        (
            lambda: place(uniform(1, 2), 3, 0.6, "cpu"),
            (
                "3 instances of 0.6 cores do not fit: the free parts of the CPUs are too small. Write a whole number "
                "of cores, or 0.5, so that two instances share a CPU."
            ),
        ),
        (
            lambda: place(TWO, 1, 2, "cpumem", beside=place(TWO, 2, 1, "cpumem")),
            (
                "1 instance of 2 cores needs 2 cores: this machine has 2 CPUs, and 0 cores of them are left by other "
                "services. Scale another service down, or write affinity='any' without a number of cores."
            ),
        ),
        (lambda: place(THESIS, -1, 1, "any"), "The number of instances cannot be -1. Write a whole number, 0 or more."),
        (
            lambda: place(THESIS, 1, 0, "any"),
            "An instance cannot have 0 cores. Write a number above zero, such as 2 or 0.5.",
        ),
        (
            lambda: place(THESIS, 1, 1, "cpumempin", n_threads=0),
            "An instance cannot have 0 threads. Write a whole number above zero.",
        ),
    ],
)
def test_a_refusal_says_what_there_is_and_what_to_write(call: Callable[[], Any], message: str) -> None:
    assert get_refusal(call) == message


@given(MACHINES, st.integers(1, 20), st.sampled_from([0.5, 1, 2, 3, 7]), st.sampled_from(OWN))
def test_what_a_refusal_advises_can_be_had(machine: Topology, count: int, cores: float, mode: AffinityMode) -> None:
    try:
        place(machine, count, cores, mode)
    except InvalidError as error:
        words = str(error).replace(".", " ").replace(",", " ").split()
        for word in words:
            if word.startswith("instances="):
                assert place(machine, int(word.removeprefix("instances=")), cores, mode)


# In words


def test_reasons_say_where_each_instance_is_and_what_it_shares() -> None:
    machine = SMT
    lines = explain(machine, place(machine, 4, 10, "cpumempin"), "cpumempin")
    assert lines[0].startswith("cpumempin: each instance has exclusive CPUs in one socket")
    assert lines[1] == (
        "instance 1: CPUs 0-8,36 of socket 0, one L3 of 72Mi, memory of node 0; 1 of them siblings of its other CPUs; "
        "siblings 37-44 left idle; threads on 0, 1, 2, 3, 4, 5, 6, 7, 8, 36"
    )
    halves = explain(machine, place(machine, 2, 0.5, "cpu"), "cpu")
    assert "shares CPUs with instance 2" in halves[1]
    crowded = explain(uniform(1, 2), place(uniform(1, 2), 1, 2, "cpu", taken={1}, oversubscribe=True), "cpu", taken={1})
    assert "CPU 1 also used by others" in crowded[1]


def test_reasons_for_any_are_one_line_for_all() -> None:
    assert explain(THESIS, place(THESIS, 3, 2, "any"), "any") == [
        "any: all instances share the same CPUs, and the kernel schedules them.",
        "instances 1-3: CPUs 0-2,18-20 of sockets 0-1, 2 L3 caches of 72Mi, memory of nodes 0-1",
    ]
