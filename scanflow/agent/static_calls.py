"""Find the primitives that a function's code requests, with their targets, without calling it.

A target is found where the code names it: as text, as a variable of its module or closure, or as one of the agent's
parameters. One that is only known when the function runs is not found.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import takewhile
from operator import attrgetter, itemgetter
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from scanflow.agent.agent_records import PermittedCall
from scanflow.agent.function_source import FunctionNode, find_function
from scanflow.agent.primitive_model import PrimitiveModel
from scanflow.errors import ScanflowError
from scanflow.modules import is_library_file

MAX_DEPTH = 8
"""How deep functions that call functions are followed."""

_LIBRARY = "scanflow"


class UnknownValueError(Exception):
    """The value of an expression is known only when it is evaluated."""


class Scope(NamedTuple):
    """The values of a function's names before it is called."""

    values: Mapping[str, Any]
    assigned: Mapping[str, ast.expr | None]
    """The names that the function sets itself, with their expressions. None: their values are not known."""


def list_calls(function: Callable[..., Any], parameters: Mapping[str, Any]) -> tuple[PermittedCall, ...]:
    """Return the calls of primitives in a function of a strategy, and in the functions that it calls.

    ``parameters``: the agent's, which the function may take by that name.
    """
    reader = _Reader(get_root(unwrap_function(function)[0]))
    reader.read(function, {"parameters": parameters}, depth=0)
    return tuple(PermittedCall(primitive=primitive, target=target) for primitive, target in sorted(reader.calls))


class _Reader:
    def __init__(self, root: str) -> None:
        self.calls: set[tuple[str, str]] = set()
        self._root = root
        self._path: list[Any] = []

    def read(self, function: Any, bound: Mapping[str, Any], *, depth: int) -> None:
        """Read a function's code. ``bound``: the arguments that are known."""
        plain, own = unwrap_function(function)
        if not isinstance(plain, FunctionType) or depth > MAX_DEPTH or plain.__code__ in self._path:
            return
        node = find_function(plain.__code__)
        if node is None:
            return
        names = {argument.arg for argument in _list_arguments(node.args)}
        arguments = {name: value for name, value in {**bound, **own}.items() if name in names}
        scope = build_scope(plain, node, arguments)
        self._path.append(plain.__code__)
        for part in walk_body(node):
            if isinstance(part, ast.Call):
                self._read_call(part, scope, depth)
        self._path.pop()

    def _read_call(self, call: ast.Call, scope: Scope, depth: int) -> None:
        try:
            function = evaluate_expression(call.func, scope)
        except UnknownValueError:
            return
        if isinstance(function, type):
            if issubclass(function, PrimitiveModel):
                arguments = evaluate_arguments(call, ["workflow"], scope)
                self.calls |= {(function.name, target) for target in _list_targets(function, arguments)}
            return
        plain, _ = unwrap_function(function)
        if isinstance(plain, FunctionType) and is_own(plain, self._root):
            names = [argument.arg for argument in list_positional(plain)]
            names = names[1:] if isinstance(function, MethodType) else names
            self.read(function, evaluate_arguments(call, names, scope), depth=depth + 1)


def unwrap_function(function: Any) -> tuple[Any, dict[str, Any]]:
    """Return the plain function of a partial, a method or a callable object, and the arguments bound to it."""
    match function:
        case functools.partial(func=inner, args=args, keywords=keywords):
            plain, bound = unwrap_function(inner)
            names = [argument.arg for argument in list_positional(plain) if argument.arg not in bound]
            return plain, {**bound, **dict(zip(names, args, strict=False)), **keywords}
        case MethodType(__func__=FunctionType() as plain, __self__=owner) if plain.__code__.co_argcount:
            return plain, {plain.__code__.co_varnames[0]: owner}
        case FunctionType() | type():
            return function, {}
    method = getattr(type(function), "__call__", None)  # noqa: B004  the function is wanted, not whether there is one
    if isinstance(method, FunctionType) and method.__code__.co_argcount:
        return method, {method.__code__.co_varnames[0]: function}
    return function, {}


def is_own(function: FunctionType, root: str) -> bool:
    """Whether a function is of the strategy's author, whose package is ``root``, and not of a library."""
    own_root = get_root(function)
    if own_root == root:
        return True
    return own_root != _LIBRARY and not is_library_file(function.__code__.co_filename)


def list_positional(function: Any) -> list[ast.arg]:
    node = find_function(function.__code__) if isinstance(function, FunctionType) else None
    return [] if node is None else [*node.args.posonlyargs, *node.args.args]


def _list_arguments(arguments: ast.arguments) -> list[ast.arg]:
    rest = [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *rest]


def walk_body(node: FunctionNode) -> Iterator[ast.AST]:
    for statement in [node.body] if isinstance(node, ast.Lambda) else node.body:
        yield from ast.walk(statement)


def build_scope(function: FunctionType, node: FunctionNode, arguments: Mapping[str, Any]) -> Scope:
    cells = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # the variable has no value yet
            continue
    code, parts = function.__code__, list(walk_body(node))
    stores = Counter(part.id for part in parts if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load))
    names = {*code.co_varnames, *code.co_cellvars, *stores, *(part.arg for part in parts if isinstance(part, ast.arg))}
    assigned: dict[str, ast.expr | None] = dict.fromkeys(names - {*arguments} | {*stores})
    for part in parts:
        match part:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if stores[name] == 1 and name not in arguments:
                assigned[name] = value
    return Scope({**vars(builtins), **function.__globals__, **cells, **arguments}, assigned)


def evaluate_expression(node: ast.expr, scope: Scope, depth: int = 0) -> Any:
    """Return the value of an expression of names, attributes, items and texts.

    Raises:
        UnknownValueError: it is known only when the function runs.
    """
    if depth > MAX_DEPTH:
        raise UnknownValueError
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name) if name in scope.assigned:
            if (expression := scope.assigned[name]) is None:
                raise UnknownValueError
            return evaluate_expression(expression, scope, depth + 1)
        case ast.Name(id=name) if name in scope.values:
            return scope.values[name]
        case ast.JoinedStr(values=parts):
            return "".join(str(evaluate_expression(part, scope, depth + 1)) for part in parts)
        case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
            return evaluate_expression(value, scope, depth + 1)
        case ast.Attribute(value=value, attr=name):
            read: Callable[[Any], Any] = attrgetter(name)
        case ast.Subscript(value=value, slice=index):
            read = itemgetter(evaluate_expression(index, scope, depth + 1))
        case _:
            raise UnknownValueError
    owner = evaluate_expression(value, scope, depth + 1)
    try:
        return read(owner)
    except Exception as error:
        raise UnknownValueError from error


def evaluate_arguments(call: ast.Call, names: list[str], scope: Scope) -> dict[str, Any]:
    """Return the arguments of a call that are known, by name."""
    plain = takewhile(lambda argument: not isinstance(argument, ast.Starred), call.args)
    expressions = dict(zip(names, plain, strict=False))
    expressions |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    values = {}
    for name, expression in expressions.items():
        try:
            values[name] = evaluate_expression(expression, scope)
        except UnknownValueError:
            continue
    return values


def _list_targets(model: type[PrimitiveModel], arguments: Mapping[str, Any]) -> set[str]:
    """Return the targets of a primitive for the arguments that are known; none where the target is not."""
    workflow, run = arguments.get("workflow", ""), arguments.get("run")
    targets = set()
    if isinstance(workflow, str) and workflow:
        targets |= {f"{'service' if row.kind == 'online' else 'workflow'}/{workflow}" for row in model.rows()}
    about: dict[str, Any] = {
        "workflow": workflow,
        **({} if run is None or "run" not in model.model_fields else {"run": run}),
    }
    try:
        target = model.model_construct(**about).target
    except (ScanflowError, AttributeError, TypeError, ValueError):  # it depends on arguments that are not known
        return targets
    return targets | ({target} if workflow or run else set())


def get_root(function: Any) -> str:
    module = getattr(inspect.unwrap(function) if callable(function) else function, "__module__", None)
    return str(module or "").partition(".")[0]
