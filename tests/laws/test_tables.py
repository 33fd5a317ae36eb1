"""A table is its values: how it is written does not count, in whatever format, or the file is refused by name.

The oracle is the table that was written.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from scanflow.drift.read import read_pair
from tests.laws.strategies import SEEDED
from tests.laws.written_tables import DAYS, ENCODINGS, KINDS, PACKINGS, SEPARATORS, Writing, make_table, write_table


@st.composite
def writings(draw: st.DrawFn) -> Writing:
    decimal = draw(st.sampled_from([".", ","]))
    separator = draw(st.sampled_from([one for one in SEPARATORS if one != decimal]))
    grouping = [one for one in ("", "", ",", ".", " ", "'", "\N{NO-BREAK SPACE}") if one != decimal]
    encoding = draw(st.sampled_from(ENCODINGS))
    return Writing(
        kind=draw(st.sampled_from(["csv", "csv", "csv", *KINDS])),
        separator=separator,
        decimal=decimal,
        thousands=draw(st.sampled_from(grouping)),
        encoding=encoding,
        quoting=draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])),
        day=draw(st.sampled_from(DAYS)),
        is_whole_as_float=draw(st.booleans()),
        has_open_rows=draw(st.booleans()),
        has_index=draw(st.booleans()),
        missing=draw(st.sampled_from(["", "NA", "NaN", "null"])),
        line_end=draw(st.sampled_from(["\n", "\r\n"])),
        packing=draw(st.sampled_from(["", "", *PACKINGS, ".zip"])),
        is_reversed=draw(st.booleans()),
    )


def check(folder: Path, how: Writing, number: int) -> None:
    table = make_table(number)
    reference = write_table(folder, "reference", table, Writing(kind="parquet"))
    before, after, notes = read_pair(reference, write_table(folder, "current", table, how))
    assert list(before.columns) == list(after.columns) == list(table.columns)
    for name, column in before.columns.items():
        other = after.columns[name]
        assert column.is_numeric == other.is_numeric, (name, how, notes)
        np.testing.assert_array_equal(column.missing, other.missing, err_msg=f"{name} of {how}")
        np.testing.assert_array_equal(
            column.values[~column.missing], other.values[~other.missing], err_msg=f"{name} of {how}"
        )


@settings(SEEDED, max_examples=40)
@given(how=writings(), number=st.integers(0, 5))
def test_a_table_is_its_values(tmp_path_factory: pytest.TempPathFactory, how: Writing, number: int) -> None:
    check(tmp_path_factory.mktemp("table"), how, number)


@pytest.mark.slow
def test_five_hundred_written_tables_are_their_values(tmp_path_factory: pytest.TempPathFactory) -> None:
    @seed(7)
    @settings(SEEDED, derandomize=False, max_examples=500)
    @given(how=writings(), number=st.integers(0, 50))
    def hold(how: Writing, number: int) -> None:
        check(tmp_path_factory.mktemp("table"), how, number)

    hold()
