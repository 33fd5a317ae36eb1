"""Files of labels: an export that is filled in finds its samples again, and no cell of it is a formula."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scanflow_client.label_files import read, write
from tests.laws.strategies import SEEDED

FORMULAS = "=+-@\uff1d\uff0b\uff0d\uff20"
ODD = st.text(st.sampled_from("=+-@\uff1d\uff0b'\t\r\n \x1b\u200b\xa0;,\"1a"), max_size=6)
TEXTS = ODD | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
SAMPLES = st.lists(
    st.fixed_dictionaries(
        {
            "id": TEXTS.filter(bool),
            "row": st.dictionaries(TEXTS, TEXTS | st.integers() | st.none(), max_size=3),
            "guess": TEXTS,
        }
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda sample: str(sample["id"]),
)


def load_cells(file: Path) -> list[list[str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.reader(lines, strict=True))


def may_be_a_formula(cell: str) -> bool:
    bare = cell.lstrip().lstrip("".join(map(chr, range(32))) + "\x7f\u200b")
    return bare.startswith(tuple(FORMULAS)) and not bare.removeprefix("-").isdigit()


@settings(SEEDED, max_examples=60)
@given(samples=SAMPLES)
def test_an_export_that_is_filled_in_finds_its_samples_and_holds_no_formula(samples: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.csv")
        assert write(file, samples) == len(samples)
        heads, *rows = load_cells(file)
        assert [cell for row in (heads, *rows) for cell in row if may_be_a_formula(cell)] == []
        assert not {"\x1b", "\n"} & set("".join(heads))
        with file.open("w", encoding="utf-8", newline="") as lines:
            csv.writer(lines).writerows([heads, *([*row[:-1], f"class {at}"] for at, row in enumerate(rows))])
        labels, unlabelled = read(file)
    assert unlabelled == 0
    assert [(label["id"], label["label"]) for label in labels] == [
        (sample["id"], f"class {at}") for at, sample in enumerate(samples)
    ]


def test_a_prediction_that_is_copied_is_the_class_that_it_was(tmp_path: Path) -> None:
    write(tmp_path / "rows.csv", [{"id": "=cmd|'/C calc'!A0", "row": {"=HYPER(1)": 1}, "guess": "@home"}])
    heads, row = load_cells(tmp_path / "rows.csv")
    assert heads == ["id", "'=HYPER(1)", "guess", "purpose", "label"]
    assert row[0] == "'=cmd|'/C calc'!A0"
    (tmp_path / "filled.csv").write_text(f'id,label\n"{row[0]}",{row[2]}\n', encoding="utf-8")
    assert read(tmp_path / "filled.csv")[0] == [{"id": "=cmd|'/C calc'!A0", "label": "@home", "line": 2}]


def test_ids_with_other_separators_are_ids(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    write(file, [{"id": "a;b", "row": {"c;d": 1}}])
    assert read(file) == ([], 1)
