"""Functions as their source declares them, for whoever may not load the code: names, defaults, plain types. Pure."""

from __future__ import annotations

import ast
import builtins
import collections.abc
import datetime as dt
import inspect
import pathlib
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

_BUILT_IN: Final = ("bool", "int", "float", "str", "bytes", "list", "dict", "tuple", "set", "frozenset", "object")
_MODULES: Final = {module.__name__: module for module in (typing, collections.abc, pathlib, dt)}
_DYNAMIC: Final = {"*", "__getattr__", "exec", "globals", "locals", "setattr", "sys", "vars"}
"""Names by which a module may bind others than those of its text."""
_STEPS: Final = {"step", "sf.step", "scanflow.step"}


def read_declaration(source: str, name: str) -> Callable[..., Any] | None:
    """Return a function without a body that takes what a function of a module takes, by its text alone.

    Types of other modules are left out, so that nothing is checked by them. None: there is no such function, or a
    decorator other than ``@sf.step`` may change what it takes.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    named = [part for part in tree.body if name in _list_bound_names(part)]
    node = named[-1] if named else None
    if not isinstance(node, ast.FunctionDef) or not all(map(_is_step, node.decorator_list)):
        return None
    types = _list_types(tree)
    arguments = node.args
    parts = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    hints = {part.arg: _read_type(part.annotation, types) for part in parts if part is not None and part.annotation}

    def declaration() -> None:
        raise NotImplementedError(name)

    declaration.__name__ = name
    declaration.__annotations__ = {parameter: hint for parameter, hint in hints.items() if hint is not None}
    declaration.__signature__ = inspect.Signature(_list_parameters(arguments))  # type: ignore[attr-defined]
    return declaration


def list_module_names(source: str) -> set[str] | None:
    """Return the names that a module binds, by its text alone; None: it may bind others too, as by ``import *``."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    names = set[str]().union(*map(_list_bound_names, tree.body))
    parts = [*ast.walk(tree)]
    used = {part.id for part in parts if isinstance(part, ast.Name)}
    dynamic = any(isinstance(part, ast.Global | ast.Match) for part in parts)
    return None if dynamic or _DYNAMIC & names or _DYNAMIC & used else names


def _list_bound_names(part: ast.stmt) -> set[str]:
    """Return the names that a statement of a module binds."""
    if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {part.name}
    names = {node.id for node in ast.walk(part) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.asname or node.name for node in ast.walk(part) if isinstance(node, ast.alias)}
    return names | {node.name for node in ast.walk(part) if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def _is_step(decorator: ast.expr) -> bool:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator) in _STEPS


def _list_types(tree: ast.Module) -> Mapping[str, Any]:
    """Return the types of Python's own that a module may name, by its names for them."""
    types: dict[str, Any] = {name: getattr(builtins, name) for name in _BUILT_IN}
    for part in tree.body:
        for name in _list_bound_names(part):
            types.pop(name, None)
        if isinstance(part, ast.ImportFrom) and part.module in _MODULES:
            module = _MODULES[part.module]
            types |= {each.asname or each.name: getattr(module, each.name, None) for each in part.names}
    return types


def _read_type(node: ast.expr | None, types: Mapping[str, Any]) -> Any:
    """Return the type that an annotation names; None: it is not one that is known here. No text of it is run."""
    match node:
        case ast.Name(id=name):
            return types.get(name)
        case ast.Constant(value=None):
            return type(None)
        case ast.Constant(value=str() as text):
            return _read_text_type(text, types)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _subscribe(typing.Union, [_read_type(left, types), _read_type(right, types)])
        case ast.Subscript(value=value, slice=inner):
            outer = _read_type(value, types)
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            if outer is typing.Literal:
                values = [part.value for part in parts if isinstance(part, ast.Constant)]
                return typing.Literal[tuple(values)] if len(values) == len(parts) else None
            return None if outer is None else _subscribe(outer, [_read_type(part, types) for part in parts])
    return None


def _read_text_type(text: str, types: Mapping[str, Any]) -> Any:
    try:
        return _read_type(ast.parse(text, mode="eval").body, types)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _subscribe(outer: Any, parts: list[Any]) -> Any:
    if any(part is None for part in parts):
        return None
    try:
        return outer[tuple(parts) if len(parts) > 1 else parts[0]]
    except TypeError:
        return None


def _list_parameters(arguments: ast.arguments) -> list[inspect.Parameter]:
    kinds = inspect.Parameter
    positional = [
        *((part, kinds.POSITIONAL_ONLY) for part in arguments.posonlyargs),
        *((part, kinds.POSITIONAL_OR_KEYWORD) for part in arguments.args),
    ]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    pairs = [*zip(positional, [*missing, *arguments.defaults], strict=True)]
    parameters = [kinds(part.arg, kind, default=_read_default(default)) for (part, kind), default in pairs]
    if arguments.vararg is not None:
        parameters.append(kinds(arguments.vararg.arg, kinds.VAR_POSITIONAL))
    parameters += [
        kinds(part.arg, kinds.KEYWORD_ONLY, default=_read_default(default))
        for part, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg is not None:
        parameters.append(kinds(arguments.kwarg.arg, kinds.VAR_KEYWORD))
    return parameters


def _read_default(node: ast.expr | None) -> Any:
    """Return a default; that of a call or a name, which only the function itself knows, is a value of no type."""
    if node is None:
        return inspect.Parameter.empty
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ...
