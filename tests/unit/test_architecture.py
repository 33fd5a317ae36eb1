"""The page on the architecture shows the order that the contracts hold, and every member of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import architecture
from tests.architecture import END, PAGE, PICTURE, START, Box, draw, find_source, format_table, place_boxes, read_layers

LAYERS = read_layers()


def assert_written(path: Path, text: str) -> None:
    if os.environ.get("REGENERATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, f"{path.name} differs. Meant? REGENERATE_GOLDEN=1 pytest …"


def test_the_picture_is_that_of_the_contracts() -> None:
    assert_written(PICTURE, draw(LAYERS))


def test_the_table_has_every_member_of_the_contracts() -> None:
    before, start, rest = PAGE.read_text(encoding="utf-8").partition(START)
    assert start
    assert END in rest
    assert_written(PAGE, before + START + "\n" + format_table(LAYERS) + "\n" + END + rest.partition(END)[2])


def test_every_package_has_its_contract() -> None:
    assert set(LAYERS) == set(architecture.ROOTS)


def test_every_module_of_the_library_has_its_row() -> None:
    folder = find_source("scanflow", "errors").parent
    members = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    rows = {member for row in LAYERS["scanflow"] for member in row}
    assert rows == members - {"__init__", "client"}  # scanflow.client is a name of the client's, for users


def test_a_layer_is_below_those_that_import_it_and_its_members_are_side_by_side() -> None:
    head, top, left, right = place_boxes("program", [["routes"], ["store", "clock"]], 0, 0, 100)
    assert (head, top) == (Box(0, 0, 100, "program"), Box(0, 26, 100, "routes"))
    assert (left, right) == (Box(0, 52, 48, "store"), Box(52, 52, 48, "clock"))


def test_a_member_without_a_file_is_no_member() -> None:
    with pytest.raises(StopIteration):
        find_source("scanflow", "nowhere")
