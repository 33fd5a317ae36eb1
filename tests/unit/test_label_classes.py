"""Labels that people give: their values, and those of a class that the model does not know."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from scanflow.errors import InvalidError
from scanflow_client.label_files import describe_unknown_classes, parse_label, read


def label(id: str, value: Any, guess: Any) -> dict[str, Any]:
    return {"id": id, "label": value, "guess": guess}


def test_a_class_that_was_mistyped_is_named_with_its_samples_and_the_likely_one() -> None:
    labels = [label("a", "Refused", "Approved"), label("b", "Refussed", "Refused"), label("c", "Refussed", "Refused")]
    (line,) = describe_unknown_classes(labels)
    assert line.startswith("! 'Refussed' (of b, c) is no class that the model predicted here: Approved, Refused.")
    assert "Did you mean 'Refused'?" in line


def test_known_classes_and_amounts_are_left_alone() -> None:
    assert describe_unknown_classes([label("a", 1, 0), label("b", 0, 1)]) == []
    assert describe_unknown_classes([label("a", 3.25, 3.5), label("b", 1.5, 2.25)]) == []
    assert describe_unknown_classes([label("a", "odd", ["x"]), label("b", "odd", None)]) == []


def test_a_single_label_is_compared_with_what_was_predicted_for_other_samples() -> None:
    others = [label("b", None, "late"), label("c", None, "on time"), {**label("d", None, "lat"), "app": "other"}]
    (line,) = describe_unknown_classes([label("a", "lat", "late")], others)
    assert line.startswith(
        "! 'lat' (of a) is no class that the model predicted here: late, on time. Did you mean 'late'?"
    )
    assert describe_unknown_classes([label("a", "on time", "late")], others) == []


def test_a_word_for_an_amount_is_named() -> None:
    labels = [label("a", 3.25, 3.5), label("b", "many", 2.0), label("c", 2, 2.25)]
    (line,) = describe_unknown_classes(labels)
    assert line.startswith("! 'many' (of b) is no number, as the predictions are;")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("3", 3),
        ("3.0", 3),
        ("2.5", 2.5),
        ("TRUE", True),
        ("False", False),
        ("cat", "cat"),
        ('"3"', "3"),
        ("007", "007"),
    ],
)
def test_a_label_is_its_value_however_it_is_written(text: str, label: object) -> None:
    value = parse_label(text)
    assert (value, type(value)) == (label, type(label))


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        ("id;label\n1;1,5\n2;2,0\n3;cat\n", [1.5, 2, "cat"]),
        ('id,label\n1,"1,234.5"\n2,7\n', [1234.5, 7]),
        ("id;label\n1;a,b\n2;TRUE\n", ["a,b", True]),
        ("id;label\n1;[1, 2]\n", [[1, 2]]),
    ],
)
def test_labels_of_a_spreadsheet_are_their_values(tmp_path: Path, content: str, labels: list[object]) -> None:
    (tmp_path / "a.csv").write_text(content)
    read_labels, _ = read(tmp_path / "a.csv")
    assert [label["label"] for label in read_labels] == labels


@pytest.mark.parametrize("content", ["id, label\n7, 3\n", "id ,label \n 7 ,3\n", 'id; "label"\n7; "3"\n'])
def test_blanks_around_names_and_values_do_not_count(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.csv").write_text(content)
    labels, _ = read(tmp_path / "a.csv")
    assert [(label["id"], label["label"]) for label in labels] == [("7", 3)]


@pytest.mark.parametrize(
    ("start", "kind"), [(b"PAR1", "a Parquet file"), (b"\x1f\x8b\x08", "a gzip file"), (b"PK\x03\x04", "spreadsheets")]
)
def test_a_file_that_is_no_text_is_called_what_it_is(tmp_path: Path, start: bytes, kind: str) -> None:
    (tmp_path / "a.csv").write_bytes(start + b"\0\x81\x15" * 40)
    with pytest.raises(InvalidError, match=f"{re.escape(kind)}.* Save it as CSV") as refused:
        read(tmp_path / "a.csv")
    assert "--encoding" not in str(refused.value)


def test_a_column_may_be_called_like_the_start_of_another_format(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("PAR1,id,label\n1,7,3\n")
    assert read(tmp_path / "a.csv")[0][0]["label"] == 3


def test_labels_that_cannot_surely_be_read_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("id;label\n1;1,234\n2;5,678\n")
    with pytest.raises(InvalidError, match=r"has labels such as '1,234', which may be whole.*--decimal"):
        read(file)
    assert [label["label"] for label in read(file, decimal=",")[0]] == [1.234, 5.678]
    assert [label["label"] for label in read(file, decimal=".")[0]] == [1234, 5678]
    file.write_text("id,label,label\n5,cat,dog\n")
    with pytest.raises(InvalidError, match=r"has two columns 'label'. Name one of them otherwise"):
        read(file)
