"""The thesis' equations against tables worked out by hand, and against what they promise."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scanflow.errors import InvalidError
from scanflow.placement import affinity
from scanflow.placement.cpulist import format_cpus


def machine(n_socket: int, p: int) -> dict[str, int]:
    return {"n_socket": n_socket, "p": p}


@pytest.mark.parametrize(
    ("where", "n_ctn", "n_cpu", "cores"),
    [
        (machine(2, 18), 2, 18, "0-35"),
        (machine(2, 18), 4, 4, "0-7,18-25"),
        (machine(2, 18), 1, 16, "0-7,18-25"),
        (machine(2, 16), 8, 4, "0-31"),
        (machine(2, 16), 16, 1, "0-7,16-23"),
        (machine(1, 64), 8, 4, "0-31"),
    ],
)
def test_any_shares_the_first_cores_of_every_socket(where: dict[str, int], n_ctn: int, n_cpu: int, cores: str) -> None:
    mapped = affinity.any_(**where, n_ctn=n_ctn, n_cpu=n_cpu)
    assert format_cpus(mapped.cores) == cores
    assert mapped.memory == tuple(range(where["n_socket"]))


@pytest.mark.parametrize(
    ("where", "n_ctn", "n_cpu", "cores"),
    [
        (machine(2, 18), 2, 18, ["0-8,18-26", "9-17,27-35"]),
        (machine(2, 18), 3, 4, ["0-1,18-19", "2-3,20-21", "4-5,22-23"]),
        (machine(2, 16), 4, 8, ["0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31"]),
        (machine(1, 64), 2, 32, ["0-31", "32-63"]),
    ],
)
def test_cpu_takes_as_many_from_each_socket(where: dict[str, int], n_ctn: int, n_cpu: int, cores: list[str]) -> None:
    mapped = [affinity.cpu(i, **where, n_ctn=n_ctn, n_cpu=n_cpu) for i in range(1, n_ctn + 1)]
    assert [format_cpus(one.cores) for one in mapped] == cores
    assert {one.memory for one in mapped} == {tuple(range(where["n_socket"]))}


@pytest.mark.parametrize(
    ("where", "n_ctn", "n_cpu", "cores", "memory"),
    [
        (machine(2, 18), 2, 18, ["0-17", "18-35"], [0, 1]),
        (machine(2, 18), 4, 9, ["0-8", "9-17", "18-26", "27-35"], [0, 0, 1, 1]),
        (machine(2, 18), 6, 4, ["0-3", "4-7", "8-11", "18-21", "22-25", "26-29"], [0, 0, 0, 1, 1, 1]),
        (machine(2, 16), 4, 8, ["0-7", "8-15", "16-23", "24-31"], [0, 0, 1, 1]),
        (machine(1, 64), 4, 16, ["0-15", "16-31", "32-47", "48-63"], [0, 0, 0, 0]),
    ],
)
def test_cpumem_stays_in_a_socket(
    where: dict[str, int], n_ctn: int, n_cpu: int, cores: list[str], memory: list[int]
) -> None:
    mapped = [affinity.cpumem(i, **where, n_ctn=n_ctn, n_cpu=n_cpu) for i in range(1, n_ctn + 1)]
    assert [format_cpus(one.cores) for one in mapped] == cores
    assert [one.memory for one in mapped] == [(node,) for node in memory]


@pytest.mark.parametrize(
    ("i", "r", "cores"),
    [
        (1, 1, [0, 1, 2, 3]),
        (2, 1, [4, 5, 6, 7]),
        (3, 1, [18, 19, 20, 21]),
        (4, 2, [22, 22, 23, 23, 24, 24, 25, 25]),
        (1, Fraction(3, 2), [0, 1, 1, 2, 3, 3]),
    ],
)
def test_cpumempin_puts_each_process_on_one_core(i: int, r: Fraction, cores: list[int]) -> None:
    count = int(4 * r)
    mapped = [affinity.cpumempin(i, j, n_socket=2, p=18, n_ctn=4, n_cpu=4, r=r) for j in range(1, count + 1)]
    assert [one.cores for one in mapped] == [(core,) for core in cores]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: affinity.any_(n_socket=2, p=18, n_ctn=3, n_cpu=3), "cannot be split evenly over 2 sockets"),
        (lambda: affinity.any_(n_socket=2, p=18, n_ctn=2, n_cpu=20), "would take 20 cores of each socket"),
        (lambda: affinity.cpu(1, n_socket=2, p=18, n_ctn=2, n_cpu=3), "3 cores cannot be split evenly"),
        (lambda: affinity.cpu(1, n_socket=2, p=18, n_ctn=4, n_cpu=10), "would take 20 cores"),
        (lambda: affinity.cpu(3, n_socket=2, p=18, n_ctn=2, n_cpu=2), "counted from 1 to 2"),
        (lambda: affinity.cpumem(1, n_socket=2, p=18, n_ctn=2, n_cpu=19), "inside a socket"),
        (lambda: affinity.cpumem(1, n_socket=2, p=18, n_ctn=3, n_cpu=1), "3 containers cannot be split evenly"),
        (lambda: affinity.cpumem(1, n_socket=2, p=18, n_ctn=4, n_cpu=10), "would take 20 cores"),
        (lambda: affinity.cpumem(0, n_socket=2, p=18, n_ctn=2, n_cpu=1), "counted from 1 to 2"),
        (lambda: affinity.cpumempin(1, 5, n_socket=2, p=18, n_ctn=2, n_cpu=4), "no process 5"),
        (lambda: affinity.cpumempin(1, 1, n_socket=2, p=18, n_ctn=2, n_cpu=4, r=0.5), "1 or more"),
        (lambda: affinity.cpu(1, n_socket=0, p=18, n_ctn=2, n_cpu=4), "n_socket is a whole number"),
        (lambda: affinity.cpu(1, n_socket=2, p=18, n_ctn=2, n_cpu=2.5), "n_cpu is a whole number"),  # type: ignore[arg-type]
    ],
)
def test_where_an_equation_says_nothing_it_is_refused(call: Any, words: str) -> None:
    with pytest.raises(InvalidError, match=words):
        call()


@given(st.integers(1, 4), st.integers(1, 64), st.integers(1, 16), st.integers(1, 16))
def test_containers_never_share_a_core_and_each_has_what_it_asked_for(
    n_socket: int, p: int, per_socket: int, n_cpu: int
) -> None:
    assume(per_socket * n_cpu <= p)
    where = {"n_socket": n_socket, "p": p, "n_ctn": per_socket * n_socket, "n_cpu": n_cpu}
    mapped = [affinity.cpumem(i, **where) for i in range(1, where["n_ctn"] + 1)]
    assert max(Counter(core for one in mapped for core in one.cores).values()) == 1
    for one in mapped:
        assert len(one.cores) == n_cpu
        assert {core // p for core in one.cores} == set(one.memory)
    assert Counter(one.memory for one in mapped) == dict.fromkeys(((s,) for s in range(n_socket)), per_socket)


@given(st.integers(1, 4), st.integers(1, 64), st.integers(1, 16), st.integers(1, 16))
def test_cpu_and_any_take_the_very_same_cores_in_all(n_socket: int, p: int, n_ctn: int, share: int) -> None:
    assume(n_ctn * share <= p)
    where = {"n_socket": n_socket, "p": p, "n_ctn": n_ctn, "n_cpu": share * n_socket}
    own = [core for i in range(1, n_ctn + 1) for core in affinity.cpu(i, **where).cores]
    assert sorted(own) == list(affinity.any_(**where).cores)


@given(st.integers(1, 8), st.integers(1, 4))
def test_pinned_processes_cover_their_containers_cores_evenly(n_cpu: int, r: int) -> None:
    where = {"n_socket": 2, "p": 8, "n_ctn": 2, "n_cpu": n_cpu}
    pinned = [affinity.cpumempin(2, j, **where, r=r).cores[0] for j in range(1, n_cpu * r + 1)]
    assert Counter(pinned) == dict.fromkeys(affinity.cpumem(2, **where).cores, r)
