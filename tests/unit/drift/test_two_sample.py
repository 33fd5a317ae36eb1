"""Two tables compared: what is found, what is refused, and that order and scale do not count."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scanflow.agent.agent_records import Event
from scanflow.drift.column_tests import RARE, Divisions, run_repeated_value_test
from scanflow.drift.column_text import format_numbers
from scanflow.drift.table import Column, DataTable, compute_column_shares
from scanflow.drift.two_sample import Comparison, compare
from scanflow.errors import InvalidError
from scanflow.reports.distributions import build_histogram
from scanflow.reports.loop_events import select_loop_events


def table(generator: np.random.Generator, n: int, **changed: Any) -> DataTable:
    columns: dict[str, Any] = {
        "age": generator.normal(40, 10, n),
        "kind": generator.choice(["a", "b", "c"], n, p=[0.6, 0.3, 0.1]),
        "flag": generator.random(n) < 0.05,
    }
    return DataTable.from_data({**columns, **changed})


def compare_samples(**changed: Any) -> Comparison:
    generator = np.random.default_rng(3)
    return compare(table(generator, 600), table(generator, 300, **changed))


def test_data_drawn_alike_has_not_drifted() -> None:
    same = compare_samples()
    assert (same.drifted, same.drifted_columns) == (False, ())
    assert same.p > 0.05


@pytest.mark.parametrize(
    ("column", "values", "test"),
    [
        ("age", np.linspace(30, 70, 300), "ks"),
        ("kind", ["c"] * 150 + ["a"] * 150, "chi2"),
        ("kind", ["new"] * 60 + ["a"] * 150 + ["b"] * 90, "chi2"),
        ("flag", [True] * 60 + [False] * 240, "chi2"),
        ("age", [None] * 30 + list(np.random.default_rng(1).normal(40, 10, 270)), "missing"),
        ("kind", [None] * 30 + ["a"] * 162 + ["b"] * 81 + ["c"] * 27, "missing"),
    ],
)
def test_the_column_that_changed_is_named(column: str, values: Any, test: str) -> None:
    changed = compare_samples(**{column: values})
    assert changed.drifted
    (first, *_) = changed.columns
    assert (first.name, first.test) == (column, test)
    assert first.p <= changed.level
    assert 0 < first.effect <= 1


@pytest.mark.parametrize("gone", [1, 3])
def test_text_that_is_not_compared_is_so_for_what_is_missing(gone: int) -> None:
    generator = np.random.default_rng(3)
    old = table(generator, 600, note=[f"note {number}" for number in range(600)])
    notes = [None if number % gone == 0 else f"other {number}" for number in range(300)]
    changed = compare(old, table(generator, 300, note=notes))
    [note] = changed.drifted_columns
    assert (note.name, note.test) == ("note", "missing")
    assert note.reference["missing"] == 0
    assert note.current["missing"] == pytest.approx(1 / gone, abs=0.01)
    assert changed.left_out == {"note": "nearly unique text: only whether it is missing"}
    alone = [DataTable({"note": data.columns["note"]}) for data in (old, table(generator, 300, note=notes))]
    assert compare(*alone).drifted


def test_infinite_numbers_are_shown_as_such() -> None:
    generator = np.random.default_rng(3)
    ages = generator.normal(40, 10, 300)
    ages[:60] = np.inf
    [age] = compare_samples(age=ages).drifted_columns
    assert (age.test, age.current) == ("value", {"inf": 0.2})
    ages[1:60] = -np.inf
    [age] = compare_samples(age=ages).drifted_columns
    assert age.current == {"-inf": pytest.approx(59 / 300)}
    column = Column.from_values("age", ages)
    assert column.summarize(slice(None))["infinite"] == pytest.approx(0.2)
    assert 35 < column.summarize(slice(None))["mean"] < 45


def ages(generator: np.random.Generator, n: int, default: float = 0.0) -> np.ndarray:
    return np.where(generator.random(n) < default, 40, generator.integers(18, 90, n))


@pytest.mark.parametrize(("kind", "value"), [(float, "40"), (str, "40.0")])
def test_a_value_that_came_often_is_named(kind: type, value: str) -> None:
    generator = np.random.default_rng(3)
    before, now = ages(generator, 1000), ages(generator, 500, default=0.1)
    first, second = (DataTable.from_data({"age": values.astype(float).astype(kind)}) for values in (before, now))
    (column, *_) = compare(first, second).drifted_columns
    assert (column.test, column.statistic) == ("value", (now == 40).sum())
    assert column.reference == {value: (before == 40).mean()}
    assert column.current == {value: (now == 40).mean()}
    assert column.effect == pytest.approx((now == 40).mean() - (before == 40).mean())
    assert not compare(second, second).drifted


def fisher(now: np.ndarray, before: np.ndarray) -> float:
    counts = [[int(now.sum()), int((~now).sum())], [int(before.sum()), int((~before).sum())]]
    return float(np.asarray(stats.fisher_exact(counts, alternative="greater"))[1])


@given(st.integers(0, 2**32 - 1), st.integers(20, 120), st.integers(20, 120), st.integers(11, 14))
def test_a_value_s_share_is_tested_exactly(seed: int, old: int, new: int, most: int) -> None:
    generator = np.random.default_rng(seed)
    values = generator.integers(0, most, old + new)
    divisions = Divisions.draw(old, new, 99, generator)
    tested = run_repeated_value_test(Column.from_values("x", values), divisions)
    different, counts = np.unique(values, return_counts=True)
    repeated = different[counts >= RARE]
    if len(different) <= 10 or not len(repeated):
        assert tested is None
        return
    assert tested is not None
    for at in (0, 7):
        current = values[divisions.members[:, at] == 1]
        reference = values[divisions.members[:, at] == 0]
        exact = [fisher(current == value, reference == value) for value in repeated]
        assert tested.p[at] == pytest.approx(1 - (1 - min(exact)) ** len(repeated), abs=1e-9)


def test_what_was_rounded_otherwise_is_the_same_value() -> None:
    generator = np.random.default_rng(0)
    before = generator.integers(-20, 20, 800) / 10
    now = (generator.integers(-20, 20, 400) + 1) / 10 - 0.1  # 0 is 1e-17 then
    assert set(now) != set(before)
    assert not compare(DataTable.from_data({"x": before}), DataTable.from_data({"x": now})).drifted


def test_blank_pictures_are_seen() -> None:
    generator = np.random.default_rng(0)
    pictures = generator.random((1500, 20, 20)) * generator.random((1500, 1, 1))
    before, now = pictures[:1000], pictures[1000:].copy()
    assert not compare(DataTable.from_data({"x": before}), DataTable.from_data({"x": now})).drifted
    now[::50] = 0
    assert compare(DataTable.from_data({"x": before}), DataTable.from_data({"x": now})).drifted


def test_dependence_that_is_gone_is_seen_though_no_column_changed() -> None:
    generator = np.random.default_rng(5)
    first = generator.normal(size=900)
    second = first + 0.5 * generator.normal(size=900)
    reference, current = DataTable.from_data({"x": first[:600], "y": second[:600]}), {"x": first[600:]}
    apart = compare(reference, DataTable.from_data(current | {"y": generator.permutation(second[600:])}))
    assert (apart.drifted, apart.drifted_columns) == (True, ())
    assert {column.columns for column in apart.joint if column.test == "products"} <= {("x", "y"), ("y", "x")}


def test_neither_the_order_of_rows_nor_the_unit_of_a_column_counts() -> None:
    generator = np.random.default_rng(9)
    first, second = generator.normal(size=(200, 3)), generator.normal(size=(100, 3)) + 0.2
    plain = compare(DataTable.from_data(first), DataTable.from_data(second))
    scaled = compare(DataTable.from_data(first * [1, 1e6, 1e-6] + 7), DataTable.from_data(second * [1, 1e6, 1e-6] + 7))
    assert {column.name: column.p for column in plain.columns} == {column.name: column.p for column in scaled.columns}
    assert plain.p == pytest.approx(scaled.p, abs=0.01)
    assert compare(DataTable.from_data(first), DataTable.from_data(second)) == plain


def test_a_small_effect_is_no_drift_where_that_is_requested() -> None:
    generator = np.random.default_rng(2)
    reference, current = {"x": generator.normal(size=2000)}, {"x": generator.normal(0.3, 1, size=2000)}
    assert compare(DataTable.from_data(reference), DataTable.from_data(current)).drifted
    assert not compare(DataTable.from_data(reference), DataTable.from_data(current), least_effect=0.3).drifted


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"level": 0.5}, "level=0.5"),
        ({"permutations": 99}, "permutations=500"),
        ({"least_effect": 2.0}, "least_effect=2.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(changed: dict[str, Any], says: str) -> None:
    values = DataTable.from_data({"x": np.arange(50.0)})
    with pytest.raises(InvalidError, match=says):
        compare(values, values, **changed)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"x": [1.0] * 20, "y": [1.0] * 19}, "19, 20"),
        ({"x": np.empty((20, 0))}, "no column"),
        ({}, "no column"),
        (np.float64(5), "shape"),
    ],
)
def test_what_is_no_table_is_refused(data: Any, says: str) -> None:
    with pytest.raises(InvalidError, match=says):
        DataTable.from_data(data)


def test_tables_of_other_columns_and_few_rows_are_refused() -> None:
    with pytest.raises(InvalidError, match=r"lacks 'x'.*reference lacks 'z'"):
        compare(DataTable.from_data({"x": np.ones(20)}), DataTable.from_data({"z": np.ones(20)}))
    with pytest.raises(InvalidError, match="batch has 3 rows"):
        compare(DataTable.from_data({"x": np.ones(20)}), DataTable.from_data({"x": np.ones(3)}))


def test_shares_of_both_tables_add_up() -> None:
    generator = np.random.default_rng(4)
    first, second = table(generator, 500), table(generator, 300)
    for name in first.columns:
        shares = compute_column_shares(first.columns[name], second.columns[name])
        assert sum(shares.reference) == pytest.approx(1) == sum(shares.current)
    assert compute_column_shares(first.columns["kind"], second.columns["kind"]).bins == ("a", "b", "c")


def test_dates_are_shown_as_dates() -> None:
    """They are compared in seconds since the epoch, which nobody reads."""
    days = np.datetime64("2013-01-01") + np.arange(600).astype("timedelta64[D]")
    (column,) = compare(DataTable.from_data({"day": days[:300]}), DataTable.from_data({"day": days[300:]})).columns
    assert column.shares.bins[0].startswith("2013-01-0")
    assert all(days[0] <= np.datetime64(text) <= days[-1] for text in column.shares.bins)
    plain = asdict(column) | {"shares": None}
    (line,) = [event.detail for event in select_loop_events([make_detection(plain)], app="a")]
    assert "2013-05-30 ± 86.6 days → 2014-03-26 ± 86.6 days" in line
    assert build_histogram(plain).summary == ("mean 2013-05-30 ± 86.6 days → mean 2014-03-26 ± 86.6 days")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        ([0.0, 86_400.0], ("1970-01-01", "1970-01-02")),
        ([0.0, 600.0], ("1970-01-01 00:00", "1970-01-01 00:10")),
        ([3_600.0, 10 * 86_400.0], ("1970-01-01", "1970-01-11")),
        ([3_600.0], ("1970-01-01 01:00",)),
        ([-1e12, 1e12], ("0001-01-01", "9999-12-31")),
        ([], ()),
    ],
)
def test_date_times_of_the_same_days_are_shown_with_their_time(seconds: list[float], shown: tuple[str, ...]) -> None:
    assert format_numbers(seconds, is_time=True) == shown
    assert format_numbers([0.5, 2.0]) == ("0.5", "2")


def make_detection(column: dict[str, Any]) -> Event:
    data: dict[str, Any] = {"agent": "checker", "run": "r", "anomalies": 9, "picked": 0, "columns": [column]}
    return Event(id=1, at=0.0, type="drift.found", app="a", subject="workflow/d", data=data)
