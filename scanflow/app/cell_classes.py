"""Classes and functions that a notebook or a program defines itself: what it takes to put one into a file."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any


def explain_file(own: type | FunctionType, file: str) -> tuple[str, str]:
    """Return the name of the file of a class or function, or ``file`` for one that a notebook or a script itself has;
    and for the latter how to put it there, after a space."""
    if own.__module__ == "__main__":
        return file, f" {_describe_move(own, file)}"
    return Path(getattr(sys.modules.get(own.__module__), "__file__", None) or file).name, ""


def _describe_move(own: type | FunctionType, file: str) -> str:
    """Return how to put a class or function into a file: with the lines that import what it uses, where its source can
    be read."""
    used = _list_used_values(own)
    imports = {name: line for name, value in used.items() if (line := _write_import(name, value))}
    rest = sorted(set(used) - set(imports))
    also = f"\nIt uses what the notebook has as {', '.join(rest)}: put that into the same file." if rest else ""
    lines = "\n".join(
        [f"%%writefile {file}", *sorted(imports.values(), key=lambda line: (line.startswith("from"), line))]
    )
    return f"In a notebook, begin its cell with:\n{lines}{also}"


def _list_used_values(own: type | FunctionType) -> Mapping[str, Any]:
    """Return the global values that a definition uses, by their names; none if its source is unknown."""
    definition, module = _find_definition(own), sys.modules.get(own.__module__)
    if definition is None or module is None:
        return {}
    loaded = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)}  # no attributes
    code = compile(ast.Module([definition], type_ignores=[]), "<cell>", "exec")
    names = loaded.intersection(_iterate_names(code))  # no local variables
    return {name: value for name, value in vars(module).items() if name in names and name != own.__name__}


def _find_definition(own: type | FunctionType) -> ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | None:
    functions = [own] if isinstance(own, FunctionType) else vars(own).values()
    codes = [value.__code__ for value in functions if isinstance(value, FunctionType)]
    text = "".join(linecache.getlines(codes[0].co_filename)) if codes else ""
    try:
        statements = ast.parse(text).body
    except SyntaxError:
        return None
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    named = [node for node in statements if isinstance(node, kinds) and node.name == own.__name__]
    return named[-1] if named else None


def _iterate_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _iterate_names(constant)


def _write_import(name: str, value: Any) -> str:
    """Return the line that imports a value by a name; empty: the notebook itself made it."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__}" + ("" if value.__name__ == name else f" as {name}")
    module, own = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if module == "__main__" or not (isinstance(module, str) and isinstance(own, str)):
        return ""
    if getattr(sys.modules.get(module), own, None) is not value:
        return ""
    return f"from {module} import {own}" + ("" if own == name else f" as {name}")
