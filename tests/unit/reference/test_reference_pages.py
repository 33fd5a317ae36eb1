"""The pages of the reference say what the code says, and everything public has a description."""

from __future__ import annotations

import pytest

from tests.grammar import CHECKOUT
from tests.reference.docstrings import format_annotation, read_arguments
from tests.reference.markdown import Page, escape_cell, format_docstring, has_text
from tests.reference.reference_pages import FOLDER, Reference, build_reference
from tests.reference.tables import list_chart_values

INDEX = CHECKOUT / "docs" / "index.md"


@pytest.fixture(scope="module")
def reference() -> Reference:
    return build_reference()


def test_every_page_says_what_the_code_says(reference: Reference) -> None:
    stale = [name for name, text in reference.pages.items() if read_page(name) != text]
    assert stale == [], "Write these pages again: make reference"


def read_page(name: str) -> str | None:
    file = FOLDER / name
    return file.read_text(encoding="utf-8") if file.is_file() else None


def test_no_page_is_left_of_what_is_gone(reference: Reference) -> None:
    files = {file.relative_to(FOLDER).as_posix() for file in FOLDER.rglob("*.md")}
    assert files - {*reference.pages} == set(), "Remove these pages: make reference"


def test_everything_public_has_a_description(reference: Reference) -> None:
    missing = "\n".join(reference.undescribed)
    assert not missing, f"Write a docstring, a help text or a comment for each:\n{missing}"


def test_the_first_page_of_the_documentation_links_the_reference(reference: Reference) -> None:
    assert "](reference/index.md)" in INDEX.read_text(encoding="utf-8")
    pages = [name for name in reference.pages if "/" not in name and name != "index.md"]
    assert [name for name in pages if f"]({name})" not in reference.pages["index.md"]] == []


def test_values_of_the_chart_have_the_default_of_the_file() -> None:
    values = {name: default for name, default, *_ in list_chart_values()}
    assert values["`server.replicas`"] == "`1`"
    assert values["`imageRegistry`"] == ""
    assert '"memory": "2Gi"' in values["`tracker.resources`"]


def test_what_has_no_description_is_named() -> None:
    page = Page("Settings")
    page.add_table(["name", "meaning"], [("`first`", "The first."), ("`second`", "")])
    page.describe("third", "")
    assert page.undescribed == ["Settings: second", "Settings: third"]


@pytest.mark.parametrize(("text", "expected"), [("", False), ("x", False), ("Two words", True), ("Stop.", True)])
def test_a_description_has_text(text: str, expected: bool) -> None:
    assert has_text(text) == expected


def test_a_docstring_becomes_markdown() -> None:
    assert format_docstring("See :class:`~a.b.C`, ``d`` and :meth:`e`.") == "See `C`, `d` and `e`."
    assert escape_cell("a |\n `<b>|c`") == "a &#124; <code>&lt;b&gt;&#124;c</code>"


def test_arguments_are_read_from_a_docstring() -> None:
    text = "Do it.\n\nArgs:\n    one: The first,\n        in two lines.\n    two: The second.\n\nReturns:\n    Nothing."
    assert read_arguments(text) == {"one": "The first, in two lines.", "two": "The second."}


def test_types_are_written_as_people_write_them() -> None:
    assert format_annotation(int | None) == "int | None"
    assert format_annotation(tuple[str, ...]) == "tuple[str, ...]"
