"""The glossary: each word once, in order, in one sentence, with a link that leads to a section."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
GLOSSARY = (DOCS / "glossary.md").read_text(encoding="utf-8")
ENTRY = re.compile(
    r"- \*\*(?P<word>[^*]+)\*\*: (?P<sentence>.+\.) \[[^\]]+\]\((?P<page>[\w/-]+\.md)(?:#(?P<anchor>[\w-]+))?\)"
)
ENTRIES = [match for line in GLOSSARY.splitlines() if (match := ENTRY.fullmatch(line))]


def list_anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as MkDocs makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = (
        re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    )
    return {re.sub(r"[\s-]+", "-", heading) for heading in headings}


def test_every_line_of_the_list_is_an_entry() -> None:
    assert len(ENTRIES) == sum(line.startswith("- ") for line in GLOSSARY.splitlines()) > 50


def test_each_term_is_there_once_and_in_order() -> None:
    terms = [entry["word"].casefold() for entry in ENTRIES]
    assert terms == sorted(set(terms))


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["word"] for entry in ENTRIES])
def test_its_sentence_is_one_and_its_link_holds(entry: re.Match[str]) -> None:
    assert ". " not in entry["sentence"]
    assert entry["anchor"] in {None, *list_anchors(DOCS / entry["page"])}
