"""Tables read from files."""

from __future__ import annotations

import decimal
from pathlib import Path

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
        first, second, notes = read_pair(tmp_path / "a.csv", tmp_path / other)
        assert notes == []
        assert list(first.columns) == list(second.columns) == ["x", "kind", "n"]
        assert (first.rows, second.rows) == (40, 40)
        for name, column in first.columns.items():
            np.testing.assert_array_equal(column.missing, second.columns[name].missing)
            assert list(column.values[~column.missing]) == list(second.columns[name].values[~column.missing])


def typed(rows: int = 400) -> pd.DataFrame:
    generator = np.random.default_rng(1)
    later = pd.to_timedelta(generator.integers(0, 10**6, rows), unit="s")
    at = pd.DatetimeIndex(pd.Timestamp("2026-01-02T03:04:05.123456") + later)
    days = [one.date() for one in at]
    return pd.DataFrame(
        {
            "opened": at.astype("datetime64[us]"),
            "closed": at.tz_localize("Europe/Madrid").astype("datetime64[ms, Europe/Madrid]"),
            "day": days,
            "took": pd.to_timedelta(generator.integers(1, 9000, rows), unit="ms"),
            "zip": [f"0{number}" for number in generator.integers(1000, 1040, rows)],
            "paid": generator.random(rows) < 0.5,
            "vip": pd.array([None if one < 0.1 else bool(one < 0.5) for one in generator.random(rows)], "boolean"),
            "price": [decimal.Decimal(int(number)) / 100 for number in generator.integers(1, 9999, rows)],
            "code": np.where(generator.random(rows) < 0.2, "NA", "x"),
        }
    )


@pytest.mark.parametrize(("reference", "current"), [("csv", "parquet"), ("parquet", "csv")])
def test_the_same_rows_in_another_format_have_not_drifted(tmp_path: Path, reference: str, current: str) -> None:
    table = typed()
    table.to_csv(tmp_path / "a.csv", index=False)
    table.to_parquet(tmp_path / "a.parquet")
    first, second, notes = read_pair(tmp_path / f"a.{reference}", tmp_path / f"a.{current}")
    for name, column in first.columns.items():
        both = column.concatenate(second.columns[name])
        assert both.is_numeric is (name != "code" and (name != "zip" or reference == "csv")), name
        assert list(both.values[:400]) == pytest.approx(list(both.values[400:]), nan_ok=True), name
    assert {note.split("'")[1] for note in notes} >= {"took", "zip"}
    assert compare(first, second).p > 0.5


def test_units_of_date_times_do_not_matter(tmp_path: Path) -> None:
    table = typed()[["opened", "took", "day"]]
    table.to_parquet(tmp_path / "a.parquet")
    units = {"opened": "datetime64[ns]", "took": "timedelta64[ms]"}
    pd.concat([table.astype(units)]).to_parquet(tmp_path / "b.parquet")
    first, second, notes = read_pair(tmp_path / "a.parquet", tmp_path / "b.parquet")
    assert notes == []
    for name, column in first.columns.items():
        np.testing.assert_array_equal(column.values, second.columns[name].values)


def test_what_cannot_be_read_as_the_reference_is_compared_as_text_or_refused(tmp_path: Path) -> None:
    pd.DataFrame({"x": np.arange(40), "at": pd.Timestamp("2026-01-01")}).to_parquet(tmp_path / "a.parquet")
    pd.DataFrame({"x": ["many"] * 40, "at": ["soon"] * 40}).to_csv(tmp_path / "b.csv", index=False)
    first, second, notes = read_pair(tmp_path / "a.parquet", tmp_path / "b.csv")
    assert "'x' is compared as text: not all of it can be read as numbers." in notes
    assert compare(first, second).drifted
    pd.DataFrame({"x": np.arange(40), "at": np.arange(40)}).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(InvalidError, match=r"'at' has date-times in the reference and numbers now"):
        read_pair(tmp_path / "a.parquet", tmp_path / "c.parquet")


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
    first, second, _ = read_pair(tmp_path / "old", tmp_path / "new")
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
