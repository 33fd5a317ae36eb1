"""The thesis' equations against tables worked out by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from scanflow.placement.cpulist import format_cpus
from tests.unit.placement.equations import Equations


@pytest.mark.parametrize(
    ("where", "cores"),
    [
        (Equations(2, 18, 2, 18), "0-35"),
        (Equations(2, 18, 4, 4), "0-7,18-25"),
        (Equations(2, 16, 16, 1), "0-7,16-23"),
        (Equations(1, 64, 8, 4), "0-31"),
    ],
)
def test_any_shares_the_first_cores_of_every_socket(where: Equations, cores: str) -> None:
    mapped, memory = where.any()
    assert (format_cpus(mapped), memory) == (cores, tuple(range(where.n_socket)))


@pytest.mark.parametrize(
    ("where", "cores"),
    [
        (Equations(2, 18, 2, 18), ["0-8,18-26", "9-17,27-35"]),
        (Equations(2, 18, 3, 4), ["0-1,18-19", "2-3,20-21", "4-5,22-23"]),
        (Equations(1, 64, 2, 32), ["0-31", "32-63"]),
    ],
)
def test_cpu_takes_as_many_from_each_socket(where: Equations, cores: list[str]) -> None:
    assert [format_cpus(where.cpu(i)[0]) for i in range(1, where.n_ctn + 1)] == cores
    assert where.cpu(1)[1] == tuple(range(where.n_socket))


@pytest.mark.parametrize(
    ("where", "cores", "memory"),
    [
        (Equations(2, 18, 2, 18), ["0-17", "18-35"], [0, 1]),
        (Equations(2, 18, 6, 4), ["0-3", "4-7", "8-11", "18-21", "22-25", "26-29"], [0, 0, 0, 1, 1, 1]),
        (Equations(1, 64, 4, 16), ["0-15", "16-31", "32-47", "48-63"], [0, 0, 0, 0]),
    ],
)
def test_cpumem_stays_in_a_socket(where: Equations, cores: list[str], memory: list[int]) -> None:
    mapped = [where.cpumem(i) for i in range(1, where.n_ctn + 1)]
    assert [(format_cpus(own), near) for own, near in mapped] == [
        (own, (node,)) for own, node in zip(cores, memory, strict=True)
    ]


@pytest.mark.parametrize(
    ("i", "r", "cores"),
    [
        (1, 1, [0, 1, 2, 3]),
        (3, 1, [18, 19, 20, 21]),
        (4, 2, [22, 22, 23, 23, 24, 24, 25, 25]),
        (1, Fraction(3, 2), [0, 1, 1, 2, 3, 3]),
    ],
)
def test_cpumempin_puts_each_process_on_one_core(i: int, r: Fraction, cores: list[int]) -> None:
    where = Equations(2, 18, 4, 4)
    assert [where.cpumempin(i, j, r) for j in range(1, int(4 * r) + 1)] == cores
