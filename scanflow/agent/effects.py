"""Find what a function of a strategy does besides returning a value, by reading its code.

A function in ``then`` is called to find out what is requested, also in a replay, and before the strategy's limits are
known to hold. That is right for one that only chooses. One that also does something is an action itself: its strategy's
limits hold for the call, and a replay leaves it out. What cannot be read, or calls what is not known here, counts as
doing something.
"""

from __future__ import annotations

import ast
import builtins
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Any

from scanflow.agent.actions import Act, Call
from scanflow.agent.actuators.actuator import Actuator
from scanflow.agent.function_source import find_function
from scanflow.agent.primitive_model import PrimitiveModel
from scanflow.agent.static_calls import (
    MAX_DEPTH,
    Scope,
    UnknownValueError,
    build_scope,
    evaluate_arguments,
    evaluate_expression,
    get_root,
    is_own,
    list_positional,
    unwrap_function,
    walk_body,
)

_FUNCTIONS = frozenset(
    "abs all any ascii bin chr divmod format getattr hasattr hash hex id isinstance issubclass iter len max min next "
    "oct ord pow repr round sorted sum vars".split()
)
"""Built-in functions that only compute. Those among the arguments, such as a key, are read too."""

_TYPES = (
    *(bool, bytes, complex, dict, enumerate, filter, float, frozenset, int, list, map, object, range, reversed, set),
    *(slice, str, tuple, type, zip),
)
_PLAIN = (str, bytes, int, float, complex, bool, type(None), list, tuple, dict, set, frozenset, Mapping, range)
_METHODS = frozenset(
    "casefold capitalize center copy count decode difference encode endswith expandtabs find format format_map get "
    "index intersection is_integer isalnum isalpha isascii isdecimal isdigit isdisjoint isidentifier islower isnumeric "
    "isspace issubset issuperset istitle isupper items join keys ljust lower lstrip model_dump partition removeprefix "
    "removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase "
    "symmetric_difference title total_seconds translate union upper values zfill date time isoformat timestamp weekday "
    "strftime astimezone group groups item tolist mean sum min max std any all".split()
)
"""Methods of plain values that only read."""

_CHANGES = frozenset(
    "add append appendleft clear discard extend insert pop popitem popleft remove reverse setdefault sort "
    "update".split()
)
"""Methods that change their own value: allowed for what the function itself made."""

_MODULES = frozenset(
    "collections copy datetime decimal fractions functools heapq bisect itertools json math numbers numpy operator re "
    "statistics string textwrap time typing zoneinfo".split()
)
_NOT_THERE = frozenset({"dump", "sleep", "fromfile", "memmap", "tofile"})
_WRITES = frozenset({"print"})
_REQUESTS = ("scanflow.agent.primitives", "scanflow.agent.primitive_model", "scanflow.agent.actions")


def find_effect(function: Any, *, declared: bool = False) -> str | None:
    """Return what a function in ``then`` does besides choosing actions, with its line; None: nothing.

    ``declared``: the strategy says with ``may`` what the function requests. One that requests nothing, and writes to
    a terminal or log, does that.
    """
    if isinstance(function, Act | Call) or (isinstance(function, type) and issubclass(function, Act)):
        return None
    try:
        return _find_effect(function, declared)
    except TypeError:  # it cannot be hashed
        return _find_effect.__wrapped__(function, declared)


@functools.lru_cache(maxsize=4096)  # read once, while the file is as it was loaded
def _find_effect(function: Any, declared: bool) -> str | None:
    plain = function.function if isinstance(function, Actuator) else function
    reader = _EffectReader(get_root(unwrap_function(plain)[0]))
    effect = reader.read(plain, {}, depth=0)
    if effect is not None or declared or reader.requests or isinstance(function, Actuator):
        return effect
    return reader.written


class _EffectReader:
    def __init__(self, root: str) -> None:
        self.requests = False
        """Whether the code requests a primitive or a call."""

        self.written: str | None = None
        """What it writes to a terminal or log."""

        self.root = root
        self._path: list[Any] = []

    def read(self, function: Any, bound: Mapping[str, Any], *, depth: int) -> str | None:
        plain, own = unwrap_function(function)
        name = getattr(plain, "__name__", type(plain).__name__)
        if not isinstance(plain, FunctionType):
            return f"it calls {name!r}"
        if plain.__code__ in self._path:
            return None
        node = find_function(plain.__code__)
        if node is None or depth > MAX_DEPTH:
            return f"the code of {name!r} cannot be read"
        names = set(plain.__code__.co_varnames)
        arguments = {name: value for name, value in {**_list_defaults(plain), **bound, **own}.items() if name in names}
        scope = build_scope(plain, node, arguments)
        scope = _with_imports(node, scope)
        body = _Body(self, scope, [*walk_body(node)], depth)
        self._path.append(plain.__code__)
        effect = body.find_effect()
        self._path.pop()
        return effect


class _Body:
    """The body of one function."""

    def __init__(self, reader: _EffectReader, scope: Scope, parts: Sequence[ast.AST], depth: int) -> None:
        self._reader, self._scope, self._parts, self._depth = reader, scope, parts, depth
        self._local = {part.name for part in parts if isinstance(part, ast.FunctionDef)}
        self._local |= {name for name, value in scope.assigned.items() if isinstance(value, ast.Lambda)}
        self._made = set(_list_made(parts))

    def find_effect(self) -> str | None:
        for part in self._parts:
            if (what := self._check(part)) is not None:
                return f"{what} (line {getattr(part, 'lineno', '?')})"
        return None

    def _check(self, part: ast.AST) -> str | None:
        match part:
            case ast.Global() | ast.Nonlocal():
                return f"it changes {part.names[0]!r}"
            case ast.With() | ast.AsyncWith() | ast.Await() | ast.AsyncFor() | ast.Yield() | ast.YieldFrom():
                return f"it has {type(part).__name__.lower()!r}"
            case ast.Import(names=names) if any(name.name not in sys.modules for name in names):
                return f"it imports {names[0].name!r}"
            case ast.ImportFrom(module=module) if module not in sys.modules:
                return f"it imports {module!r}"
            case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
                return None if self._is_made(part.value) else f"it changes {ast.unparse(part.value)!r}"
            case ast.Name(ctx=ast.Load()):
                self._note_action(part)
            case ast.Call():
                return self._check_call(part)
        return None

    def _check_call(self, call: ast.Call) -> str | None:
        name = ast.unparse(call.func)
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
            if (effect := self._check_argument(argument)) is not None:
                return effect
        try:
            function = evaluate_expression(call.func, self._scope)
        except UnknownValueError:
            return None if self._is_known_method(call.func) else f"it calls {name!r}"
        return self._check_function(function, call, name)

    def _check_argument(self, argument: ast.expr) -> str | None:
        """Check a function that is handed on, as the key of ``sorted``."""
        if not isinstance(argument, ast.Name | ast.Attribute):
            return None
        try:
            function = evaluate_expression(argument, self._scope)
        except UnknownValueError:
            return None
        if isinstance(function, type) or not callable(function):
            return None
        return self._check_function(function, ast.Call(argument, [], []), ast.unparse(argument))

    def _check_function(self, function: Any, call: ast.Call, name: str) -> str | None:
        reader, unknown = self._reader, f"it calls {name!r}"
        if isinstance(function, type):
            return self._check_type(function, unknown)
        plain, _ = unwrap_function(function)
        module = str(getattr(plain, "__module__", None) or "")
        root, short = module.partition(".")[0], str(getattr(plain, "__name__", ""))
        if isinstance(function, Actuator):
            return unknown
        if isinstance(function, MethodType) and isinstance(function.__self__, Actuator):
            reader.requests = True
            return reader.read(function.__self__.function, {}, depth=self._depth + 1)
        if module.startswith(_REQUESTS):
            reader.requests = True
            return None
        if root == "logging" or (root == "builtins" and short in _WRITES and not call.keywords):
            reader.written = reader.written or f"it calls {name!r} (line {call.lineno})"
            return None
        if isinstance(plain, FunctionType) and is_own(plain, reader.root):
            names = [argument.arg for argument in list_positional(plain)]
            names = names[1:] if isinstance(function, MethodType) else names
            return reader.read(function, evaluate_arguments(call, names, self._scope), depth=self._depth + 1)
        owner = getattr(plain, "__self__", None)
        if owner is not None and not isinstance(owner, ModuleType):
            reads = (isinstance(owner, _PLAIN) or _is_of_library(owner)) and short in _METHODS
            return None if reads or (isinstance(owner, type) and _is_of_library(owner)) else unknown
        if any(plain is known for known in _list_builtins()):
            return None
        is_known = root in _MODULES and short not in _NOT_THERE and not short.startswith("save")
        return None if is_known or _is_of_library(plain) else unknown

    def _check_type(self, made: type, unknown: str) -> str | None:
        if issubclass(made, PrimitiveModel | Call):
            self._reader.requests = True
            return None
        if made in _TYPES or issubclass(made, BaseException) or _is_of_library(made):
            return None
        for name in ("__init__", "__post_init__", "__new__"):
            method = getattr(made, name, None)
            is_made = (is_dataclass(made) and name == "__init__") or get_root(method) == "pydantic"
            if isinstance(method, FunctionType) and not is_made:
                if not is_own(method, self._reader.root):
                    return unknown
                if (effect := self._reader.read(method, {}, depth=self._depth + 1)) is not None:
                    return effect
        return None

    def _is_known_method(self, function: ast.expr) -> bool:
        """Whether a function that is not known reads a value, or changes one that this function made."""
        match function:
            case ast.Name(id=name):
                return name in self._local
            case ast.Attribute(value=value, attr=name):
                if name in _CHANGES and self._is_made(value):
                    return True
                try:
                    owner = evaluate_expression(value, self._scope)
                except UnknownValueError:
                    return name in _METHODS
                return name in _METHODS and isinstance(owner, _PLAIN)
        return isinstance(function, ast.Lambda)

    def _is_made(self, value: ast.expr) -> bool:
        while isinstance(value, ast.Subscript):
            value = value.value
        return isinstance(value, ast.Name) and value.id in self._made

    def _note_action(self, name: ast.Name) -> None:
        try:
            value = evaluate_expression(name, self._scope)
        except UnknownValueError:
            return
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        self._reader.requests |= any(isinstance(inner, Act | Call) for inner in values)


def _list_made(parts: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the local names that only have values which the function makes itself, as lists that it fills."""
    values: dict[str, list[ast.expr]] = {}
    for part in parts:
        match part:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                values.setdefault(name, []).append(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                values.setdefault(name, []).append(value)
    stores = Counter(part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store))
    augmented = Counter(
        part.target.id for part in parts if isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name)
    )
    for name, assigned in values.items():
        if stores[name] - augmented[name] == len(assigned) and all(map(_is_new, assigned)):
            yield name


def _is_new(value: ast.expr) -> bool:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id in {"list", "dict", "set", "sorted"}
    displays = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
    return isinstance(value, displays)


def _list_defaults(function: FunctionType) -> dict[str, Any]:
    defaults = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return {**dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)), **(function.__kwdefaults__ or {})}


def _with_imports(node: ast.AST, scope: Scope) -> Scope:
    """Return a scope with the names that the function imports itself."""
    values = dict(_iterate_imports(ast.walk(node)))
    assigned = {name: value for name, value in scope.assigned.items() if name not in values}
    return Scope({**scope.values, **values}, assigned)


def _iterate_imports(parts: Iterable[ast.AST]) -> Iterator[tuple[str, Any]]:
    for part in parts:
        match part:
            case ast.ImportFrom(module=str(module), names=names, level=0):
                for name in names:
                    value = getattr(sys.modules.get(module), name.name, None)
                    if value is not None:
                        yield name.asname or name.name, value
            case ast.Import(names=names):
                for name in names:
                    top = name.name if name.asname else name.name.partition(".")[0]
                    if top in sys.modules:
                        yield name.asname or top, sys.modules[top]


def _is_of_library(value: Any) -> bool:
    kind = value if isinstance(value, type) else type(value)
    return str(kind.__module__).partition(".")[0] in _MODULES


@functools.cache
def _list_builtins() -> tuple[Callable[..., Any], ...]:
    return tuple(getattr(builtins, name) for name in sorted(_FUNCTIONS))
