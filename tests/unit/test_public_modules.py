"""What users may import is listed in docs/python.md, and each such module says which names that are."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator

import pytest

from tests.integration.test_documentation import PAGES, ROOT, examples

THESIS = ("scanflow.agent.sensors.sensor", "scanflow.agent.actuators.actuator")
"""Import paths of the thesis' listings, which docs/agents.md names."""


def read_listed() -> list[str]:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    section = text.partition("## What may be imported")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]


LISTED = read_listed()


def read_examples() -> Iterator[tuple[str, str]]:
    """Yield the Python of pages and tutorials, and where each is."""
    for page in PAGES:
        for block in examples(page, "python"):
            yield page.name, block
    for file in sorted((ROOT / "tutorials").rglob("*.py")):
        yield str(file.relative_to(ROOT)), file.read_text(encoding="utf-8")


def list_imports(code: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0].startswith("scanflow"):
            for alias in node.names:
                yield str(node.module), alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("scanflow"):
                    yield alias.name, ""


@pytest.mark.parametrize("name", LISTED)
def test_a_public_module_says_what_it_has(name: str) -> None:
    names: list[str] = importlib.import_module(name).__all__
    assert names
    exec(f"from {name} import {', '.join(names)}", {})  # as users do: submodules too


def test_examples_import_only_what_may_be_imported() -> None:
    wrong, count = list[str](), 0
    for place, code in read_examples():
        for module, name in list_imports(code):
            count += 1
            is_module = f"{module}.{name}" in LISTED
            listed = module in LISTED and (not name or name in importlib.import_module(module).__all__)
            if not (is_module or listed or module in THESIS):
                wrong.append(f"{place}: from {module} import {name}")
    assert count > 50
    assert wrong == []
