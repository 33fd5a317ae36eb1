"""Private names of other code in tests: what a test reaches by ``_name`` breaks when nothing a user sees has changed.

``python -m tests.private_names [PATH…]`` lists them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.grammar import CHECKOUT, parse_modules

TESTS = CHECKOUT / "tests"

EXCEPTIONS = {
    "_exit": "os._exit is public, and its name is Python's",
    "tests/unit/agents/host_harness.py:_thread": "a kill in the middle of a commit: a writer that is closed commits",
    "tests/unit/agents/host_harness.py:_connection": "a kill in the middle of a commit, as above",
}
"""Names that may be reached, everywhere or in one module, and why."""

PUBLIC = frozenset("_asdict _field_defaults _fields _make _replace".split())
"""Those of named tuples."""

OWN = frozenset({"self", "cls"})
PATCHING = frozenset("delattr getattr hasattr object patch setattr".split())
"""Functions that take an attribute's name, or its address, as a string."""

ADDRESS = re.compile(r"[\w.]+")


class PrivateName(NamedTuple):
    path: str
    line: int
    name: str


def is_private(name: str) -> bool:
    """Return whether a name is private: neither a dunder nor a protocol's, such as IPython's ``_repr_html_``."""
    return name.startswith("_") and not name.endswith("_") and name not in PUBLIC


def list_in_text(text: object) -> list[str]:
    """Return the private names in a name or in the address of an attribute: ``_load``, ``scanflow.modules._load``."""
    if not isinstance(text, str) or not ADDRESS.fullmatch(text):
        return []
    return [name for name in text.split(".") if is_private(name)]


def list_in_call(call: ast.Call) -> list[str]:
    """Return the private names in strings of a call that patches or reads an attribute by its name."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if function not in PATCHING:
        return []
    texts = [node.value for argument in call.args[:2] for node in ast.walk(argument) if isinstance(node, ast.Constant)]
    return [name for text in texts for name in list_in_text(text)]


def list_in_node(node: ast.AST) -> list[str]:
    match node:
        case ast.Attribute(value=ast.Name(id=owner)) if owner in OWN:
            return []
        case ast.Attribute(attr=name) if is_private(name):
            return [name]
        case ast.ImportFrom(module=module, names=names):
            return [name for text in (module, *(alias.name for alias in names)) for name in list_in_text(text)]
        case ast.Import(names=names):
            return [name for alias in names for name in list_in_text(alias.name)]
        case ast.Call():
            return list_in_call(node)
    return []


def find_in_module(path: str, module: ast.Module) -> Iterator[PrivateName]:
    for node in ast.walk(module):
        for name in list_in_node(node):
            yield PrivateName(path, getattr(node, "lineno", 0), name)


def find_in_modules(modules: Mapping[str, ast.Module]) -> list[PrivateName]:
    """Return the private names in modules, by path and line; without the exceptions."""
    findings = (finding for path, module in modules.items() for finding in find_in_module(path, module))
    return sorted(finding for finding in findings if EXCEPTIONS.keys().isdisjoint(list_keys(finding)))


def list_keys(finding: PrivateName) -> tuple[str, str]:
    """Return the keys that a finding may have in the table of exceptions."""
    return finding.name, f"{finding.path}:{finding.name}"


if __name__ == "__main__":
    for path, line, name in find_in_modules(parse_modules([Path(path) for path in sys.argv[1:]] or [TESTS])):
        print(f"{path}:{line} {name}")
