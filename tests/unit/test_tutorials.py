"""Every module of the tutorials can be imported: they are users' code, and no other check reads their imports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).parents[2] / "tutorials"


@pytest.mark.parametrize("path", sorted(TUTORIALS.rglob("*.py")), ids=lambda path: str(path.relative_to(TUTORIALS)))
def test_what_a_tutorial_takes_from_scanflow_is_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("scanflow"):
            for name in node.names:
                exec(f"from {node.module} import {name.name}", {})
