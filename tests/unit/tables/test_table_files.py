"""Files of tables: what is read of them, and what is refused with the option that helps."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
import pytest

from scanflow.errors import InvalidError
from scanflow.tables.columns import ReadOptions, is_table
from scanflow.tables.table_files import read_columns


def write(folder: Path, text: str) -> Path:
    (folder / "a.csv").write_text(text)
    return folder / "a.csv"


def read(folder: Path, content: str | bytes, options: ReadOptions | None = None) -> dict[str, list[object]]:
    (folder / "a.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    return {name: list(values) for name, values in read_columns(folder / "a.csv", options).values.items()}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a\n1,234\n5,678\n", r"a.csv: 'a' has values such as '1,234', which may be whole numbers.*--decimal"),
        ("a,b;c,d\n1,2;3,4\n", r"may be separated by ',' \(3 columns\) or ';' \(2 columns\). Say which: --separator"),
        ("a,b\n1,2,3\n", r"Line 2 of a.csv has 3 fields and its first line 2"),
        ("a,a\n1,2\n", r"has two columns 'a'"),
        ("d\n01/02/2025\n03/04/2025\n", r"'d' has dates such as '01/02/2025', of which the first part may be the day"),
        (b"\x00\x01\x02\x03" * 50, r"characters that no text has|is not in utf-16"),
        ("\n\n", r"a.csv is empty"),
        ('"a,b\n1\n', r"a.csv' cannot be read .*EOF inside string"),
    ],
)
def test_what_cannot_surely_be_read_is_refused_with_what_helps(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    with pytest.raises(InvalidError, match=message):
        read(tmp_path, content)


@pytest.mark.parametrize("header", ['"a,b"', '"a;b,c"', '"a\n,b"', '"a|b"'])
def test_a_separator_between_quotes_in_the_first_line_separates_nothing(tmp_path: Path, header: str) -> None:
    content = f"{header}\n1\n2\n"
    assert read(tmp_path, content) == pd.read_csv(io.StringIO(content)).to_dict("list")


def test_options_say_what_cannot_be_seen(tmp_path: Path) -> None:
    assert read(tmp_path, "a\n1,234\n", ReadOptions(decimal=".", separator=";")) == {"a": [1234.0]}
    assert read(tmp_path, "a\n1,234\n", ReadOptions(decimal=",", separator=";")) == {"a": [1.234]}
    assert read(tmp_path, "a,b;c,d\n1,2;3,4\n", ReadOptions(separator=";")) == {"a,b": [1.2], "c,d": [3.4]}
    assert read(tmp_path, "a\nš\n".encode("cp1250"), ReadOptions(encoding="cp1250")) == {"a": ["š"]}
    for options, message in (ReadOptions(decimal="x"), "Give . or ,"), (ReadOptions(encoding="x"), "no encoding 'x'"):
        with pytest.raises(InvalidError, match=message):
            read(tmp_path, "a\n1\n", options)


def test_text_among_numbers_is_a_missing_number_and_codes_stay_text(tmp_path: Path) -> None:
    columns = read_columns(write(tmp_path, "a,b\n1.5,007\nERR,010\n2,1\n3,1\n4,1\n"))
    np.testing.assert_array_equal(columns.values["a"], [1.5, np.nan, 2, 3, 4])
    assert columns.list_notes() == ["'a' is of numbers, and has 'ERR' too: counted as missing."]
    assert list(columns.values["b"]) == [
        7,
        10,
        1,
        1,
        1,
    ]  # a file of text has no types: another file may say that these are text
    assert list(read_columns(tmp_path / "a.csv", texts=["b"]).values["b"]) == ["007", "010", "1", "1", "1"]
    assert list(read_columns(write(tmp_path, "a\nx\n1.0\n1\ny\n")).values["a"]) == ["x", "1", "1", "y"]


def test_a_column_of_points_stays_one_beside_columns_of_commas(tmp_path: Path) -> None:
    columns = read(tmp_path, 'lat;pair;price\n48.8566;"1,2";1.234\n40.4168;"3,4";2.345\n')
    assert columns == {"lat": [48.8566, 40.4168], "pair": [1.2, 3.4], "price": [1234.0, 2345.0]}


def test_text_as_it_stands_is_not_changed(tmp_path: Path) -> None:
    file = write(tmp_path, "a,b\n1.50,1\n x ,2\ny,3\n")
    assert list(read_columns(file).values["a"]) == ["1.5", "x", "y"]
    assert list(read_columns(file, texts=["a"]).values["a"]) == ["1.50", " x ", "y"]


def test_text_that_proves_not_to_be_utf_8_is_read_again(tmp_path: Path) -> None:
    lines = "name,x\n" + "plain,1\n" * 40_000 + "Málaga,2\n"
    (tmp_path / "a.csv").write_bytes(lines.encode("cp1252"))
    columns = read_columns(tmp_path / "a.csv")
    assert (columns.values["name"][-1], len(columns.values["x"])) == ("Málaga", 40_001)
    assert columns.note == "a.csv is not in UTF-8, and was read as cp1252 (Western Europe). Another: --encoding"


def test_vectors_are_columns_and_other_lists_and_records_are_left_out(tmp_path: Path) -> None:
    frame = pd.DataFrame({"e": [[1.0, 2.0]] * 3, "l": [[1], [1, 2], []], "r": [{"a": 1}] * 3})
    frame.to_parquet(tmp_path / "a.parquet")
    columns = read_columns(tmp_path / "a.parquet")
    assert columns.values["e"].shape == (3, 2)
    assert columns.left_out == {"l": "lists that are no vectors of one length", "r": "nested records"}


def pack(folder: Path, members: Mapping[str, str]) -> Path:
    with zipfile.ZipFile(folder / "a.csv.zip", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return folder / "a.csv.zip"


def test_a_zip_of_several_files_or_none_is_refused_and_what_a_mac_adds_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=r"a.csv.zip has 2 files \(x.csv, y.csv\), and is to have one. Unpack it"):
        read_columns(pack(tmp_path, {"x.csv": "a\n1\n", "y.csv": "a\n2\n"}))
    with pytest.raises(InvalidError, match=r"a.csv.zip has no file, and is to have one"):
        read_columns(pack(tmp_path, {"folder/": ""}))
    columns = read_columns(pack(tmp_path, {"__MACOSX/._b.csv": "junk", "folder/": "", "folder/b.csv": "a\n1\n2\n"}))
    assert list(columns.values["a"]) == [1, 2]


def test_truth_values_are_no_numbers_however_they_are_written(tmp_path: Path) -> None:
    assert read(tmp_path, "a, b\ntrue, True\nfalse, False\n") == {"a": [True, False], "b": [True, False]}
    columns = read_columns(write(tmp_path, "a, b\n1, True\n2, \n3, False\n"))
    assert list(columns.values["b"]) == [True, None, False]
    assert read_columns(write(tmp_path, "b\n True\n")).values["b"].dtype == bool


@pytest.mark.parametrize("end", ["", "\n", "\n\n\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("line", ["\n", "\r\n"])
def test_an_empty_line_of_one_column_is_a_missing_value(tmp_path: Path, line: str, encoding: str, end: str) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(f'size\n1.5\n\n""\n2.5{end}'.replace("\n", line).encode(encoding))
    np.testing.assert_equal(read_columns(file).values["size"], [1.5, np.nan, np.nan, 2.5])


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("03/04/2025 12:05 AM|13/04/2025 1:00 pm", "2025-04-03T00:05|2025-04-13T13:00"),
        ("2025-03-04 12:00:30 PM|2025-03-04 11:59 p.m.", "2025-03-04T12:00:30|2025-03-04T23:59"),
        ("45-01-02|31-12-20", "2045-01-02|2031-12-20"),
        ("13/01/99|02/01/68", "1999-01-13|2068-01-02"),
        ("1.2.24|13.2.24", "2024-02-01|2024-02-13"),
        ("1/2/24|13/2/24", "2024-02-01|2024-02-13"),
    ],
)
def test_dates_are_read_by_what_all_of_them_can_be(tmp_path: Path, written: str, read: str) -> None:
    days = read_columns(write(tmp_path, "day\n" + written.replace("|", "\n"))).values["day"]
    assert days.tolist() == np.array(read.split("|"), "datetime64[us]").tolist()


@pytest.mark.parametrize("separator", ["-", "/"])
def test_dates_where_the_year_may_be_first_or_last_are_refused(tmp_path: Path, separator: str) -> None:
    days = "24-11-16\n25-01-30\n".replace("-", separator)
    with pytest.raises(InvalidError, match=r"'day' has dates such as '24.11.16', of which the first or the last part"):
        read_columns(write(tmp_path, f"day\n{days}"))


@pytest.mark.parametrize("content", ["[]", '[{"a": 1}]', "1\n2", '{"a": 1}\n"b"'])
def test_json_lines_that_are_no_objects_are_refused_by_their_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(InvalidError, match=r"Line [12] of a.jsonl is not an object. Write one a line"):
        read_columns(tmp_path / "a.jsonl")


@pytest.mark.parametrize("others", ["{}", '{"x": null}', '{"x": 0.5}'])
def test_large_whole_numbers_of_json_lines_stay_what_they_are_beside_others(tmp_path: Path, others: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"x": {2**60 + 1}}}\n{others}\n{{"x": {2**60 + 2}}}\n')
    values = read_columns(tmp_path / "a.jsonl").values["x"]
    assert [int(values[0]), int(values[2])] == [2**60 + 1, 2**60 + 2]
    assert values[1] == 0.5 or np.isnan(values[1])


def test_a_zip_with_one_table_is_that_table(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("rows.csv", "a,b\n1,x\n2,y\n")
        archive.writestr("__MACOSX/rows.csv", "")
    assert is_table(tmp_path / "x.zip")
    assert read_columns(tmp_path / "x.zip").values["a"].tolist() == [1, 2]
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("a.csv", "a\n1\n")
        archive.writestr("b.csv", "a\n1\n")
    assert not is_table(tmp_path / "two.zip")
    (tmp_path / "none.zip").write_bytes(b"no archive")
    assert not is_table(tmp_path / "none.zip")


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_zstandard_is_read_like_other_compressions(tmp_path: Path, ending: str) -> None:
    frame, plain = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}), tmp_path / f"a.{ending}"
    match ending:
        case "csv":
            frame.to_csv(plain, index=False)
        case "parquet":
            frame.to_parquet(plain)
        case _:
            frame.to_json(plain, orient="records", lines=True)
    packed = tmp_path / f"a.{ending}.zst"
    packed.write_bytes(pa.Codec("zstd").compress(plain.read_bytes(), asbytes=True))
    assert is_table(packed)
    assert {name: values.tolist() for name, values in read_columns(packed).values.items()} == frame.to_dict("list")
    packed.write_bytes(b"no zstandard")
    with pytest.raises(InvalidError, match="cannot be read"):
        read_columns(packed)


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"PAR1\0\x15", "a Parquet file"), (b"\x1f\x8b\x08\0", "a gzip file"), (b"ARROW1\0", "a Feather")],
)
def test_a_file_that_is_no_text_is_called_what_it_is(tmp_path: Path, content: bytes, kind: str) -> None:
    with pytest.raises(InvalidError, match=f"a.csv is {kind}.*ending of what it is"):
        read(tmp_path, content)


@pytest.mark.parametrize(("encoding", "tried"), [("", "cp1252"), ("utf-8", "utf-8"), ("cp1252", "cp1252")])
def test_no_encoding_is_advised_that_does_not_fit(tmp_path: Path, encoding: str, tried: str) -> None:
    with pytest.raises(InvalidError, match=f"is not in {tried}") as refused:
        read(tmp_path, b"a\n\x81\x8d\n", ReadOptions(encoding=encoding))
    assert f"--encoding {tried}" not in str(refused.value)
