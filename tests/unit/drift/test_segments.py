"""Drift inside one category, which the others hide."""

from __future__ import annotations

import numpy as np
import pytest

from scanflow.drift.segments import compare_by
from scanflow.drift.table import DataTable
from scanflow.errors import InvalidError


def shop(generator: np.random.Generator, n: int, *, lima: float) -> DataTable:
    city = generator.choice(np.array(["Rome", "Oslo", "Lima", "Bonn"]), n, p=[0.6, 0.3, 0.09, 0.01])
    return DataTable.from_data({"city": city, "price": generator.normal(size=n) + lima * (city == "Lima")})


def test_a_segment_that_drifts_is_named_though_the_whole_does_not() -> None:
    generator = np.random.default_rng(0)
    whole, within = compare_by(shop(generator, 1500, lima=0), shop(generator, 600, lima=1.2), "city")

    comparisons = {column.name: column.comparison for column in within}
    assert list(comparisons) == ["Rome", "Oslo", "Lima", "Bonn"]
    assert comparisons["Bonn"] is None, "too few rows"
    assert [name for name, comparison in comparisons.items() if comparison is not None and comparison.drifted] == [
        "Lima"
    ]
    assert whole.level == pytest.approx(0.01 / 4)
    assert {column.name for column in whole.columns} == {"city", "price"}


def test_rows_where_the_category_is_missing_are_a_segment() -> None:
    generator = np.random.default_rng(0)
    old, new = (shop(generator, rows, lima=lima) for rows, lima in ((1500, 0), (600, 1.2)))
    unnamed = [
        DataTable.from_data({"city": [None if city == "Lima" else city for city in cities], "price": prices})
        for cities, prices in ((table.columns["city"].values, table.columns["price"].values) for table in (old, new))
    ]
    _, within = compare_by(unnamed[0], unnamed[1], "city")
    assert [segment.name for segment in within] == ["Rome", "Oslo", "Bonn", "(missing)"]
    assert [segment.name for segment in within if segment.comparison and segment.comparison.drifted] == ["(missing)"]


def test_a_column_that_is_no_category_is_refused() -> None:
    table = shop(np.random.default_rng(0), 100, lima=0)
    with pytest.raises(InvalidError, match=r"no column 'town'.*city, price"):
        compare_by(table, table, "town")
    with pytest.raises(InvalidError, match="100 different numbers"):
        compare_by(table, table, "price")
