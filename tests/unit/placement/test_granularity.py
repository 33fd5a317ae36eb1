from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.errors import InvalidError
from scanflow.placement.granularity import BudgetShare, compute_granularity, cut

GIB = 2**30


@pytest.mark.parametrize(
    ("instances", "share"),
    [
        (1, BudgetShare(cores=32, memory_bytes=128 * GIB, inter=32, intra=32, rest=64)),
        (2, BudgetShare(cores=16, memory_bytes=64 * GIB, inter=16, intra=16, rest=32)),
        (4, BudgetShare(cores=8, memory_bytes=32 * GIB, inter=8, intra=8, rest=16)),
        (8, BudgetShare(cores=4, memory_bytes=16 * GIB, inter=4, intra=4, rest=8)),
        (16, BudgetShare(cores=2, memory_bytes=8 * GIB, inter=2, intra=2, rest=4)),
        (32, BudgetShare(cores=1, memory_bytes=4 * GIB, inter=1, intra=1, rest=2)),
    ],
)
def test_table_4_1_of_the_thesis(instances: int, share: BudgetShare) -> None:
    assert cut(instances, cores=32, memory_bytes=128 * GIB, inter=32, intra=32, rest=64) == (share,) * instances


@pytest.mark.parametrize(
    ("budget", "value"), [({"cut": 32, "into": 8}, (8, 4.0)), ({"cut": 1, "into": 4}, (4, 0.25)), ({}, (3, 1.5))]
)
def test_a_budget_sizes_a_service_as_equation_4_1_does(budget: dict[str, Any], value: tuple[int, float]) -> None:
    direct = (None, None) if budget else value
    assert compute_granularity(*direct, **{"cut": None, "into": None, **budget}) == value


@pytest.mark.parametrize(
    ("direct", "value", "message"),
    [
        (
            (None, None),
            {"cut": 10, "into": 4},
            "10 cores cannot be divided evenly over 4 .* Write --cut 12, or .*--cores 2.5",
        ),
        ((None, None), {"cut": 10}, "needs a number of instances. Write --cut 32 --into 8"),
        ((None, None), {"into": 10}, "needs a number of instances"),
        ((2, None), {"cut": 10, "into": 5}, "Omit --instances"),
    ],
)
def test_a_budget_that_sizes_no_service_says_what_to_write(direct: Any, value: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        compute_granularity(*direct, **{"cut": None, "into": None, **value})


def test_what_does_not_divide_goes_to_the_first() -> None:
    shares = cut(3, cores=8, memory_bytes=10, inter=3, intra=8)
    assert [share.cores for share in shares] == [3, 3, 2]
    assert [share.intra for share in shares] == [3, 3, 2]
    assert [share.memory_bytes for share in shares] == [4, 3, 3]
    assert [share.rest for share in shares] == [None, None, None]


def test_fewer_cores_than_instances_are_cut_into_thousandths() -> None:
    assert [share.cores for share in cut(3, cores=2)] == [0.667, 0.667, 0.666]
    assert [share.cores for share in cut(4, cores=2)] == [0.5] * 4
    assert [share.cores for share in cut(2, cores=2.5)] == [1.25] * 2


@given(st.integers(1, 200), st.integers(1, 512_000), st.integers(200, 2**40), st.integers(200, 4000))
def test_nothing_is_lost_and_nothing_allocated_twice(instances: int, milli: int, memory: int, threads: int) -> None:
    if milli < instances:
        with pytest.raises(InvalidError, match="thousandths of a core cannot be cut"):
            cut(instances, cores=milli / 1000)
        return
    shares = cut(instances, cores=milli / 1000, memory_bytes=memory, inter=threads, intra=threads, rest=threads)
    assert len(shares) == instances
    assert sum(Fraction(round(share.cores * 1000), 1000) for share in shares) == Fraction(milli, 1000)
    assert sum(share.memory_bytes or 0 for share in shares) == memory
    for pool in (
        [share.inter for share in shares],
        [share.intra for share in shares],
        [share.rest for share in shares],
    ):
        assert sum(number or 0 for number in pool) == threads
        assert max(number or 0 for number in pool) - min(number or 0 for number in pool) <= 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"instances": 0, "cores": 4}, "cannot be cut into 0 instances"),
        ({"instances": 2.5, "cores": 4}, "cannot be cut into 2.5 instances"),
        ({"instances": 2, "cores": 0}, "0 cores cannot be cut"),
        ({"instances": 2, "cores": -1}, "-1 cores cannot be cut"),
        ({"instances": 4, "cores": 4, "intra": 3}, "3 intra-op threads cannot be cut into 4 .* at most 3 instances"),
        ({"instances": 4, "cores": 4, "memory_bytes": 2}, "2 bytes of memory"),
    ],
)
def test_a_budget_that_cannot_be_cut_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidError, match=words):
        cut(**arguments)
