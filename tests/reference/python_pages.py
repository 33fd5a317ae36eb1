"""Pages on Python modules: a list of their names, and a page for each module, which mkdocstrings fills in."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

from tests.grammar import CHECKOUT
from tests.reference.docstrings import read_field_docs, read_summary, read_text
from tests.reference.markdown import NOTICE, Page


def list_public_modules() -> list[str]:
    """Return the modules that docs/python.md lists."""
    text = (CHECKOUT / "docs" / "python.md").read_text(encoding="utf-8")
    section = text.partition("## What may be imported")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]


def build_index_page() -> Page:
    page = Page("Python")
    page.add(
        "The names that programs may import, by module. The pages of the modules have signatures and docstrings; "
        "they are filled in when the site is built (`make docs`). [From Python](../python.md) explains how to use them."
    )
    for module in list_public_modules():
        page.add(f"## {module}", f"[Signatures and docstrings](python/{module}.md).")
        page.add_table(["name", "what it is"], [(f"`{name}`", text) for name, text in list_names(module)])
    for module in list_public_modules():
        page.undescribed += list_undescribed_members(module)
    return page


def load_names(module: str) -> Iterator[tuple[str, Any]]:
    """Yield each public name of a module and what it is; some are modules that are loaded when they are first used."""
    loaded = importlib.import_module(module)
    for name in loaded.__all__:
        yield name, getattr(loaded, name) if hasattr(loaded, name) else importlib.import_module(f"{module}.{name}")


def list_names(module: str) -> Iterator[tuple[str, str]]:
    """Yield each public name of a module and its description: a docstring, or the text under an assignment."""
    for name, thing in load_names(module):
        has_own = inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing)
        yield name, read_own_summary(thing) if has_own else find_assignment_doc(module, name)


def read_own_summary(thing: Any) -> str:
    """Return a summary; nothing for one that is inherited, or made by ``dataclass`` or ``NamedTuple``."""
    if inspect.isclass(thing) and not has_own_docstring(thing):
        return ""
    return read_summary(thing)


def has_own_docstring(cls: type) -> bool:
    text = vars(cls).get("__doc__")
    is_generated = dataclasses.is_dataclass(cls) and str(text).startswith(f"{cls.__name__}(")
    return bool(text) and not is_generated and not str(text).startswith(f"{cls.__name__}(")


def find_assignment_doc(module: str, name: str) -> str:
    """Return the docstring under an assignment, in the module or where it imports the name from."""
    source = inspect.getsource(importlib.import_module(module))
    tree = ast.parse(source)
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        if any(getattr(target, "id", None) == name for target in targets):
            return read_text(following)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and any(alias.name == name for alias in node.names):
            return find_assignment_doc(node.module, name)
    return ""


def list_undescribed_members(module: str) -> Iterator[str]:
    """Yield each public field, property and method of a module's public classes that has no description."""
    for name, cls in load_names(module):
        if inspect.isclass(cls):
            yield from (
                f"Python: {module}.{name}.{member}" for member in list_members(cls) if not has_docs(cls, member)
            )


def list_members(cls: type) -> Iterator[str]:
    """Yield the public fields, properties and methods that a class declares."""
    for member in {**vars(cls).get("__annotations__", {}), **vars(cls)}:
        value = getattr(cls, member, None)
        is_member = member in vars(cls).get("__annotations__", {}) or isinstance(value, property)
        if not member.startswith(("_", "test_", "model_")) and (is_member or inspect.isroutine(value)):
            yield member


def has_docs(cls: type, member: str) -> bool:
    value = getattr(cls, member, None)
    is_code = isinstance(value, property) or inspect.isroutine(value)
    return bool(inspect.getdoc(value) if is_code else read_field_docs(cls).get(member))


def build_module_pages() -> dict[str, str]:
    return {f"python/{name}.md": f"# {name}\n\n{NOTICE}\n::: {name}\n" for name in list_public_modules()}
