"""Tables read from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scanflow.drift.read import read_pair
from scanflow.errors import InvalidError, NotFoundError, ScanflowError


def frame(rows: int = 40) -> pd.DataFrame:
    return pd.DataFrame({"x": np.arange(rows) / 7, "kind": ["a", None] * (rows // 2), "n": range(rows)})


def test_every_kind_of_file_gives_the_same_table(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "a.csv", index=False)
    frame().to_csv(tmp_path / "a.tsv", index=False, sep="\t")
    frame().to_parquet(tmp_path / "a.parquet")
    for other in ("a.tsv", "a.parquet"):
        first, second = read_pair(tmp_path / "a.csv", tmp_path / other)
        assert list(first.columns) == list(second.columns) == ["x", "kind", "n"]
        assert (first.rows, second.rows) == (40, 40)
        for name, column in first.columns.items():
            np.testing.assert_array_equal(column.missing, second.columns[name].missing)
            assert list(column.values[~column.missing]) == list(second.columns[name].values[~column.missing])


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
    first, second = read_pair(tmp_path / "old", tmp_path / "new")
    assert (first.rows, second.rows) == (60, 60)
    assert [name for name in first.columns if name.startswith("x")] == ["x[0]", "x[1]"]
    assert sum(name.startswith("picture") for name in first.columns) == 33


@pytest.mark.parametrize(
    ("name", "content", "error", "says"),
    [
        ("none.csv", None, NotFoundError, "no file"),
        ("a.txt", b"x", InvalidError, "no known kind"),
        ("a.npz", b"x", InvalidError, "cannot be read"),
        ("a.parquet", b"x", InvalidError, "cannot be read"),
        ("a.csv", b"", InvalidError, "cannot be read"),
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
