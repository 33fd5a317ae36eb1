"""Tables read from files."""

from __future__ import annotations

import decimal
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scanflow.drift.read import read_pair
from scanflow.drift.two_sample import compare
from scanflow.errors import InvalidError, NotFoundError, ScanflowError


def frame(rows: int = 40) -> pd.DataFrame:
    return pd.DataFrame({"x": np.arange(rows) / 7, "kind": ["a", None] * (rows // 2), "n": range(rows)})


def test_every_kind_of_file_gives_the_same_table(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "a.csv", index=False)
    frame().to_csv(tmp_path / "a.tsv", index=False, sep="\t")
    frame().to_parquet(tmp_path / "a.parquet")
    for other in ("a.tsv", "a.parquet"):
        first, second, notes, _left_out = read_pair(tmp_path / "a.csv", tmp_path / other)
        assert notes == []
        assert list(first.columns) == list(second.columns) == ["x", "kind", "n"]
        assert (first.rows, second.rows) == (40, 40)
        for name, column in first.columns.items():
            np.testing.assert_array_equal(column.missing, second.columns[name].missing)
            assert list(column.values[~column.missing]) == list(second.columns[name].values[~column.missing])


def make_typed_frame(rows: int = 400) -> pd.DataFrame:
    generator = np.random.default_rng(1)
    later = pd.to_timedelta(generator.integers(0, 10**6, rows), unit="s")
    at = pd.DatetimeIndex(pd.Timestamp("2026-01-02T03:04:05.123456") + later)
    days = [moment.date() for moment in at]
    return pd.DataFrame(
        {
            "opened": at.astype("datetime64[us]"),
            "closed": at.tz_localize("Europe/Madrid").astype("datetime64[ms, Europe/Madrid]"),
            "day": days,
            "took": pd.to_timedelta(generator.integers(1, 9000, rows), unit="ms"),
            "zip": [f"0{number}" for number in generator.integers(1000, 1040, rows)],
            "paid": generator.random(rows) < 0.5,
            "vip": pd.array(
                [None if value < 0.1 else bool(value < 0.5) for value in generator.random(rows)], "boolean"
            ),
            "price": [decimal.Decimal(int(number)) / 100 for number in generator.integers(1, 9999, rows)],
            "code": np.where(generator.random(rows) < 0.2, "NA", "x"),
        }
    )


@pytest.mark.parametrize(("reference", "current"), [("csv", "parquet"), ("parquet", "csv")])
def test_the_same_rows_in_another_format_have_not_drifted(tmp_path: Path, reference: str, current: str) -> None:
    table = make_typed_frame()
    table.to_csv(tmp_path / "a.csv", index=False)
    table.to_parquet(tmp_path / "a.parquet")
    first, second, notes, _left_out = read_pair(tmp_path / f"a.{reference}", tmp_path / f"a.{current}")
    for name, column in first.columns.items():
        both = column.concatenate(second.columns[name])
        assert both.is_numeric is (name not in {"code", "zip"}), name
        assert list(both.values[:400]) == pytest.approx(list(both.values[400:]), nan_ok=True), name
    assert {note.split("'")[1] for note in notes} >= {"took", "zip"}
    assert compare(first, second).p > 0.5


def test_units_of_date_times_do_not_matter(tmp_path: Path) -> None:
    table = make_typed_frame()[["opened", "took", "day"]]
    table.to_parquet(tmp_path / "a.parquet")
    units = {"opened": "datetime64[ns]", "took": "timedelta64[ms]"}
    pd.concat([table.astype(units)]).to_parquet(tmp_path / "b.parquet")
    first, second, notes, _left_out = read_pair(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert notes == []
    for name, column in first.columns.items():
        np.testing.assert_array_equal(column.values, second.columns[name].values)


def test_what_cannot_be_read_as_the_reference_is_compared_as_text_or_refused(tmp_path: Path) -> None:
    pd.DataFrame({"x": np.arange(40), "at": pd.Timestamp("2026-01-01")}).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame({"x": ["many"] * 40, "at": ["soon"] * 40}).to_csv(tmp_path / "b.csv", index=False)
    first, second, notes, _left_out = read_pair(tmp_path / "a.parquet", tmp_path / "b.csv")
    assert "'x' is of numbers, and has 'many' too: counted as missing." in notes
    assert "'at' is compared as text: not all of it can be read as date-times." in notes
    assert compare(first, second).drifted
    pd.DataFrame({"x": np.arange(40), "at": np.arange(40)}).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(InvalidError, match=r"'at' has date-times in the reference and numbers now"):
        read_pair(tmp_path / "a.parquet", tmp_path / "c.parquet")


def write_column(path: Path, values: Iterable[object]) -> Path:
    frame = pd.DataFrame({"q": pd.Series(list(values))})
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_parquet(path)
    return path


def mix(seed: int, *words: str, each: int, shift: float = 0.0, rows: int = 400) -> list[str]:
    """Return numbers of which the first are words."""
    numbers = (np.random.default_rng(seed).normal(size=rows) + shift).round(3)
    return [*(word for word in words for _ in range(each)), *map(str, numbers[len(words) * each :])]


def test_numbers_with_much_text_are_compared_as_numbers_in_both_tables(tmp_path: Path) -> None:
    old, new = write_column(tmp_path / "a.csv", mix(1, "ERR", each=120)), tmp_path / "b.csv"
    before, after, notes, _left_out = read_pair(old, write_column(new, mix(2, "ERR", each=120, shift=1.0)))
    [note] = notes
    assert all(text in note for text in ("'q'", "'ERR'", "counted as missing"))
    assert compare(before, after).drifted_columns[0].test == "ks"
    before, after, _, _left_out = read_pair(old, write_column(new, mix(2, "ERR", each=130)))
    assert not compare(before, after).drifted
    assert before.columns["q"].is_numeric
    before, after, _, _left_out = read_pair(write_column(old, mix(1, each=0)), write_column(new, ["ERR"] * 400))
    assert [column.test for column in compare(before, after).drifted_columns] == ["missing"]


def test_a_few_numbers_more_or_less_do_not_decide_whether_a_column_is_of_numbers(tmp_path: Path) -> None:
    words = ["a", "b", "c", "d"]
    old = write_column(tmp_path / "a.csv", mix(1, *words, each=19))  # 19 % are words
    before, after, notes, _left_out = read_pair(old, write_column(tmp_path / "b.csv", mix(2, *words, each=21)))
    assert before.columns["q"].is_numeric is after.columns["q"].is_numeric is True
    assert not compare(before, after).drifted
    before, after, notes, _left_out = read_pair(old, write_column(tmp_path / "b.csv", mix(2, *words, each=60)))
    assert not before.columns["q"].is_numeric
    assert notes == ["'q' is compared as text: 40% of its values are no numbers, such as 'a'."]


def test_numbers_that_become_text_are_named(tmp_path: Path) -> None:
    first, second = write_column(tmp_path / "a.csv", [True, False] * 20), tmp_path / "b.csv"
    before, after, notes, _left_out = read_pair(first, write_column(second, ["in", "out"] * 20))
    assert notes == ["'q' is compared as text: 50% of its values are no numbers, such as 'in'."]
    assert compare(before, after).drifted


TRUTHS: dict[str, list[Any]] = {
    "True": [True, False, True],
    "TRUE": ["TRUE", "FALSE", "TRUE"],
    "yes": ["yes", "no", "yes"],
    "Y": ["Y", "N", "Y"],
    "t": ["t", "f", "t"],
    "1": [1, 0, 1],
    "1.0": [1.0, 0.0, 1.0],
    "gap": ["Yes", None, "Yes"],
}


@pytest.mark.parametrize("old", TRUTHS)
@pytest.mark.parametrize("new", TRUTHS)
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_truth_values_are_the_same_however_they_are_written(tmp_path: Path, old: str, new: str, ending: str) -> None:
    first = write_column(tmp_path / f"a.{ending}", TRUTHS[old] * 40)
    second = write_column(tmp_path / "b.csv", TRUTHS[new] * 40)
    before, after, _, _left_out = read_pair(first, second)
    assert compare(before, after).drifted is ("gap" in {old, new} and old != new), "a missing value is another"
    other = write_column(tmp_path / "c.csv", [value for value in TRUTHS[new] * 60 if value in TRUTHS[new][:1]])
    if old != "gap":
        before, after, _, _left_out = read_pair(first, other)
        assert compare(before, after).drifted, "all are true now"


def test_strings_that_are_no_truth_values_stay_text(tmp_path: Path) -> None:
    first = write_column(tmp_path / "a.csv", ["yes", "no", "unknown"] * 20)
    before, after, _, _left_out = read_pair(first, write_column(tmp_path / "b.csv", [True, False, True] * 20))
    assert (before.columns["q"].is_numeric, compare(before, after).drifted) == (False, True)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("shuffled", [True, False])
def test_an_index_in_one_table_only_is_not_compared_in_any_order(
    tmp_path: Path, ending: str, *, shuffled: bool
) -> None:
    table = frame()
    order = np.random.default_rng(1).permutation(100)[:40] if shuffled else np.arange(40)
    table.assign(**{"Unnamed: 0": order}).to_parquet(tmp_path / "a.parquet")
    table.set_index(order).to_csv(tmp_path / "a.csv")
    table.to_csv(tmp_path / "b.csv", index=False)
    for pair in ((f"a.{ending}", "b.csv"), ("b.csv", f"a.{ending}"), (f"a.{ending}", f"a.{ending}")):
        before, after, _, left_out = read_pair(tmp_path / pair[0], tmp_path / pair[1])
        assert left_out == {"Unnamed: 0": "row numbers"}
        assert list(before.columns) == list(after.columns) == ["x", "kind", "n"]


def test_text_that_changes_among_numbers_is_a_drift(tmp_path: Path) -> None:
    old, new = mix(1, "ERR", "", each=40), mix(2, "ERR", each=80)
    before, after, _, _left_out = read_pair(
        write_column(tmp_path / "a.csv", old), write_column(tmp_path / "b.csv", new)
    )
    assert [column.name for column in compare(before, after).drifted_columns] == ["q (words)"]


def test_numbers_and_strings_of_json_are_those_of_text(tmp_path: Path) -> None:
    values = [1.5, 2, "ERR", 4, None] * 20
    before, after, _, _left_out = read_pair(
        write_column(tmp_path / "a.jsonl", values),
        write_column(tmp_path / "b.csv", [str(value or "") for value in values]),
    )
    for table in (before, after):
        np.testing.assert_array_equal(table.columns["q"].values[:5], [1.5, 2, np.nan, 4, np.nan])
        assert list(table.columns["q (words)"].values[:5]) == [None, None, "ERR", None, None]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("other", ["csv", "parquet", "whole.parquet"])
def test_codes_that_lost_their_zeros_are_others_in_every_format(tmp_path: Path, ending: str, other: str) -> None:
    codes = [f"{number:04d}" for number in np.random.default_rng(1).integers(0, 40, 400)]
    old = write_column(tmp_path / f"a.{ending}", codes)
    short = [int(code) if other.startswith("whole") else str(int(code)) for code in codes]
    for reference, current in ((old, write_column(tmp_path / f"b.{other}", short)), (old, old)):
        for pair in ((reference, current), (current, reference)):
            before, after, notes, _left_out = read_pair(*pair)
            assert notes[0].startswith("'q' is compared as text: it has numbers with zeros in front, such as '00")
            assert compare(before, after).drifted is (current != reference)


def test_a_measure_that_is_filled_up_with_zeros_stays_one(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        numbers = np.random.default_rng(seed).integers(0, 100_000, 60)
        write_column(tmp_path / f"{name}.csv", [f"{number:06d}" for number in numbers])
    before, after, _, _left_out = read_pair(tmp_path / "a.csv", tmp_path / "b.csv")
    assert before.columns["q"].is_numeric
    assert after.columns["q"].is_numeric


def test_what_is_missing_counts_in_columns_that_are_not_compared(tmp_path: Path) -> None:
    text = [f"u{number}" for number in range(60)]
    for ending in ("csv", "parquet"):
        before, after, notes, _left_out = read_pair(
            write_column(tmp_path / f"a.{ending}", text), write_column(tmp_path / "b.csv", [None] * 60)
        )
        assert notes == []
        assert compare(before, after).left_out == {"q": "nearly unique text: only whether it is missing"}
        assert compare(before, after).drifted
    old, new = tmp_path / "a.parquet", tmp_path / "b.parquet"
    for values in ([{"a": 1}] * 60, [[1], [1, 2]] * 30):
        for later in ([None] * 60, [*values[:30], *[None] * 30]):
            before, after, _, _left_out = read_pair(write_column(old, values), write_column(new, later))
            assert [column.test for column in compare(before, after).drifted_columns] == ["missing"]


@pytest.mark.parametrize("is_missing", [False, True])
@pytest.mark.parametrize("ending", ["csv", "parquet", "text.parquet"])
def test_large_whole_numbers_are_exact_in_every_format(tmp_path: Path, ending: str, is_missing: bool) -> None:
    generator = np.random.default_rng(1)
    numbers: list[list[int | None]] = [
        [2**60 + int(integer) for integer in generator.integers(0, most, 200)] for most in (100, 100, 20)
    ]
    if is_missing:
        numbers = [[*part[:-1], None] for part in numbers]
    columns = [pd.array(part, "Int64") for part in numbers]
    old = write_column(tmp_path / "a.parquet", columns[0])
    for column, drifts in zip(columns, (False, False, True), strict=True):
        values = [None if value is pd.NA else str(value) for value in column] if ending.startswith("text") else column
        before, after, _, _left_out = read_pair(old, write_column(tmp_path / f"b.{ending}", values))
        assert compare(before, after).drifted is drifts
    before, after, _, _left_out = read_pair(old, write_column(tmp_path / f"b.{ending}", columns[0]))
    np.testing.assert_array_equal(before.columns["q"].values, after.columns["q"].values)


@pytest.mark.parametrize(("old", "new"), [(2**53, 2**53 + 1), (2**63, 2**63 + 1), (1e39, 1e300), (3e38, np.inf)])
def test_numbers_that_float32_does_not_distinguish_are_others(tmp_path: Path, old: float, new: float) -> None:
    first, second = (tmp_path / "a.csv", tmp_path / "b.csv")
    before, after, _, _left_out = read_pair(
        write_column(first, [old, *[1] * 9] * 20), write_column(second, [new, *[1] * 9] * 20)
    )
    assert compare(before, after).drifted
    assert not compare(before, before).drifted


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_times_without_a_zone_beside_some_with_one_are_named(tmp_path: Path, ending: str) -> None:
    times = pd.DatetimeIndex(pd.Timestamp("2026-01-01T10:00:00") + pd.to_timedelta(np.arange(40), unit="h"))
    plain = write_column(tmp_path / f"a.{ending}", times)
    zoned = write_column(tmp_path / f"b.{ending}", times.tz_localize("Asia/Tokyo"))
    message = "'q' has a time zone in the {} file; the times of the {} one were taken as UTC."
    assert read_pair(plain, zoned)[2] == [message.format("current", "reference")]
    assert read_pair(zoned, plain)[2] == [message.format("reference", "current")]
    assert read_pair(zoned, zoned)[2] == read_pair(plain, plain)[2] == []


def test_recorded_predictions_and_pictures_become_columns(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
        for part in range(2):
            arrays = {
                "input:x": generator.normal(size=(30, 2)),
                "input:picture": generator.normal(size=(30, 20, 20)),
                "output:y": np.ones(30),
                "revision": np.array("r1"),
            }
            np.savez(tmp_path / folder / f"{part}.npz", **arrays)  # type: ignore[arg-type]  # numpy's stub
    first, second, _, _left_out = read_pair(tmp_path / "old", tmp_path / "new")
    assert (first.rows, second.rows) == (60, 60)
    assert [name for name in first.columns if name.startswith("x")] == ["x[0]", "x[1]"]
    assert sum(name.startswith("picture") for name in first.columns) == 33


@pytest.mark.parametrize(
    ("name", "content", "error", "says"),
    [
        ("none.csv", None, NotFoundError, "no file"),
        ("a.png", b"x", InvalidError, "unknown format"),
        ("a.npz", b"x", InvalidError, "cannot be read"),
        ("a.parquet", b"x", InvalidError, "cannot be read"),
        ("a.csv", b"", InvalidError, "a.csv is empty"),
    ],
)
def test_files_that_are_no_tables_are_refused(
    tmp_path: Path, name: str, content: bytes | None, error: type[ScanflowError], says: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=says):
        read_pair(tmp_path / name, tmp_path / name)


def test_a_folder_without_predictions_and_unlike_shapes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no recorded predictions"):
        read_pair(tmp_path, tmp_path)
    np.savez(tmp_path / "a.npz", x=np.ones((20, 30, 30)))
    np.savez(tmp_path / "b.npz", x=np.ones((20, 31, 30)))
    with pytest.raises(InvalidError, match=r"'x' has rows of the shape \(900,\) in the reference and \(930,\) now"):
        read_pair(tmp_path / "a.npz", tmp_path / "b.npz")


def test_columns_without_values_to_compare_are_named_with_the_reason(tmp_path: Path) -> None:
    rows = [{"x": number, "all": [1] * (number % 3), "at": {"a": 1} if number % 2 else None} for number in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pair = read_pair(tmp_path / "a.jsonl", tmp_path / "a.jsonl")
    assert pair.left_out == {
        "all": "lists that are no vectors of one length",
        "at": "nested records: only whether it is missing",
    }
    (tmp_path / "b.jsonl").write_text('{"at": {"a": 1}}')
    with pytest.raises(InvalidError, match=r"No column can be compared: 'at' \(nested records\)"):
        read_pair(tmp_path / "b.jsonl", tmp_path / "b.jsonl")


def test_dates_against_text_are_text_on_both_sides(tmp_path: Path) -> None:
    days = pd.date_range("2024-01-01", periods=40)
    pd.DataFrame({"day": days}).to_csv(tmp_path / "a.csv", index=False)
    pd.DataFrame({"day": ["unknown", *days[1:].strftime("%Y-%m-%d")]}).to_csv(tmp_path / "b.csv", index=False)
    before, after, notes, _ = read_pair(tmp_path / "a.csv", tmp_path / "b.csv")
    assert "'day' is compared as text: not all of it can be read as date-times." in notes
    assert before.columns["day"].levels[0][0].startswith("2024-01-01")
    assert not after.columns["day"].is_numeric
