"""The thesis' equations against tables worked out by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.unit.placement.equations import Equations


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
