"""Find the source of a loaded function as a syntax tree."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import TypeAlias

FunctionNode: TypeAlias = ast.FunctionDef | ast.Lambda


def find_function(code: CodeType) -> FunctionNode | None:
    """Return the definition of a function; None: its file is unavailable, or changed since it was loaded."""
    linecache.checkcache(code.co_filename)
    functions, codes = _index_functions("".join(linecache.getlines(code.co_filename)))
    if code not in codes:
        return None
    places = {(line, column, end_line, end) for line, end_line, column, end in code.co_positions()}
    candidates = [
        node
        for node in functions.get((code.co_firstlineno, code.co_name), ())
        if any(_get_place(part) in places for part in _list_returned(node))
    ]
    return candidates[0] if len(candidates) == 1 else None


@lru_cache(maxsize=8)
def _index_functions(text: str) -> tuple[dict[tuple[int, str], list[FunctionNode]], frozenset[CodeType]]:
    """Return the functions of a file by first line and name, and the code objects of all of them."""
    try:
        tree = ast.parse(text)
        codes = frozenset(_iterate_codes(compile(text, "<functions>", "exec", dont_inherit=True)))
    except (SyntaxError, ValueError, RecursionError):
        return {}, frozenset()
    functions: dict[tuple[int, str], list[FunctionNode]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Lambda():
                functions.setdefault((node.lineno, "<lambda>"), []).append(node)
            case ast.FunctionDef(name=name):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                functions.setdefault((first, name), []).append(node)
    return functions, codes


def _list_returned(node: FunctionNode) -> list[ast.AST]:
    """Return parts of a function of which at least one has instructions of its own."""
    if isinstance(node, ast.Lambda):
        return [node.body]
    return [part for statement in node.body for part in ast.walk(statement)]


def _iterate_codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _iterate_codes(constant)


def _get_place(node: ast.AST) -> tuple[int | None, ...]:
    return tuple(getattr(node, name, None) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"))
