from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.errors import InvalidError
from scanflow.placement.cpulist import format_cpus, parse_cpus, parse_mask
from tests.unit.placement.trees import write_mask

CPUS = st.sets(st.integers(0, 200))


@given(CPUS)
def test_what_is_written_is_read_again(cpus: set[int]) -> None:
    assert parse_cpus(format_cpus(cpus)) == tuple(sorted(cpus))
    assert parse_mask(write_mask(cpus, words=7)) == tuple(sorted(cpus))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", ()),
        ("\n", ()),
        ("0\n", (0,)),
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("8,0-1", (0, 1, 8)),
        ("0-7:1/4", (0, 4)),
        ("0-7:2/4", (0, 1, 4, 5)),
        (" 0 - 1 ".replace(" - ", "-"), (0, 1)),
    ],
)
def test_the_kernels_spellings_are_read(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpus(text) == cpus


@pytest.mark.parametrize("text", ["a", "0-", "-1", "3-1", "0-999999", "0-3:5/4", "0-3:0/4", "1;2", "0--2", "1e3"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(InvalidError, match="not a list of CPUs"):
        parse_cpus(text)


@pytest.mark.parametrize(("mask", "cpus"), [("f", (0, 1, 2, 3)), ("00000001,00000000", (32,)), ("1,00000001", (0, 32))])
def test_masks_of_old_kernels_are_read(mask: str, cpus: tuple[int, ...]) -> None:
    assert parse_mask(mask) == cpus


def test_what_is_no_mask_is_refused() -> None:
    with pytest.raises(InvalidError, match="not a mask"):
        parse_mask("xyz")
