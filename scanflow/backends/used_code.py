"""What a function does, with all that it uses of its author's own code: functions, classes and constants.

The description is the same in every process that has the same code. Comments, formatting, docstrings and the places of
definitions do not count; neither do libraries, and objects that have no equal, such as locks and random generators.
"""

from __future__ import annotations

import copyreg
import dis
import hashlib
import inspect
import operator
import pickle
import sys
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from functools import partial
from types import CellType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

from scanflow.modules import is_library_file

_LONG = (str, bytes, bytearray)
_PLAIN = (bool, int, float, complex, type(None), type(...), *_LONG)
_BLOCK = 1 << 10
_MANY = 10_000
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_FIELD = operator.attrgetter("default", "default_factory", "metadata")
"""What a field of a pydantic model says beside its annotation."""


def digest_call(call: Any) -> str:
    """Return a digest of what a callable object does. No file is read, and nothing of it is called."""
    described = _Description()
    described.add(call)
    return _digest("\n".join(described.lines()))


class _Description:
    """The functions and classes that a function leads to, each by itself: cycles do no harm, and order none."""

    def __init__(self) -> None:
        self._queue: list[Any] = []
        self._seen: dict[int, Any] = {}
        self._open: list[int] = []
        self._in_value = False
        self._lines: set[str] = set()

    def add(self, call: Any) -> None:
        self._lines.add(f"call: {self._describe(call)}")

    def lines(self) -> list[str]:
        while self._queue:
            value, described = self._queue.pop(), None
            with suppress(Exception):  # whatever a class of the user's raises as it is looked at
                described = self._describe_definition(value)
            self._lines.add(f"{_get_name(value)}: {described}")
        return sorted(self._lines)

    def _describe_definition(self, value: Any) -> Any:
        if isinstance(value, type):
            return [self._describe(list(value.__bases__)), self._describe(dict(_iterate_members(value)))]
        code = value.__code__
        has_docstring = value.__doc__ is not None and code.co_consts[:1] == (value.__doc__,)
        names = {name: value.__globals__[name] for name in sorted(_list_globals(code)) if name in value.__globals__}
        hints = {name: hint for name, hint in value.__annotations__.items() if name != "return"}
        given = [value.__defaults__, value.__kwdefaults__, value.__closure__, vars(value), hints]
        return [_describe_code(code, skip=has_docstring), self._describe(names), self._describe(given)]

    def _describe(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return repr(value) if kind not in _LONG or len(value) < _BLOCK else [len(value), _digest(value)]
        if isinstance(value, FunctionType | type):
            return self._describe_name(value)
        if id(value) in self._open:
            return f"cycle {self._open.index(id(value))}"
        self._open.append(id(value))
        try:
            return self._describe_parts(kind, value)
        except Exception:  # noqa: BLE001  whatever an object of the user's raises as it is looked at
            return kind.__qualname__
        finally:
            self._open.pop()

    def _describe_parts(self, kind: type, value: Any) -> Any:
        if kind in {list, tuple, dict} and len(value) > _MANY:
            return [kind.__name__, _digest(pickle.dumps(value, 5))]
        if kind in {list, tuple}:
            return [kind.__name__, *map(self._describe, value)]
        if kind in {dict, MappingProxyType}:
            return ["dict", *([self._describe(key), self._describe(inner)] for key, inner in value.items())]
        if kind in {set, frozenset}:
            return [kind.__name__, *sorted(map(repr, map(self._describe, value)))]
        match value:
            case CellType():
                return self._describe(value.cell_contents)
            case ModuleType():
                return value.__name__
            case Enum():
                return self._describe([kind, value.name, value.value])
            case MethodType():
                return self._describe(["method", value.__func__, value.__self__])
            case partial():
                return self._describe(["partial", value.func, value.args, value.keywords])
            case property():
                return self._describe(["property", value.fget, value.fset, value.fdel])
        if (wrapped := getattr(value, "__wrapped__", None)) is not None:
            return [kind.__name__, self._describe(wrapped)]
        return self._describe_object(kind, value)

    def _describe_object(self, kind: type, value: Any) -> Any:
        """Describe an object by what pickle would write of it, if it compares by value or its class is one's own."""
        if not (self._in_value or _is_own(kind) or _compares_by_value(kind)):
            return kind.__qualname__
        before, self._in_value = self._in_value, self._in_value or not _is_own(kind)
        try:
            reduced = reduce_object(value)
            if isinstance(reduced, str):
                return reduced
            return [self._describe(list(part) if isinstance(part, Iterator) else part) for part in (kind, *reduced)]
        finally:
            self._in_value = before

    def _describe_name(self, value: Any) -> str:
        """Return the name of a function or class; of one's own, what it does is described beside it."""
        if id(value) not in self._seen and (_is_own(value) or _is_wrapper(value)):
            self._seen[id(value)] = value
            self._queue.append(value)
        return _get_name(value)


def reduce_object(value: Any) -> Any:
    """Return what pickle would write of an object: a name, or how it is made and its state. Raises what its class
    raises."""
    reduce = copyreg.dispatch_table.get(type(value))
    return value.__reduce_ex__(4) if reduce is None else reduce(value)


def _digest(value: str | bytes | bytearray) -> str:
    content = value.encode(errors="surrogatepass") if isinstance(value, str) else value
    return hashlib.sha256(content).hexdigest()[:16]


def _get_name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _is_wrapper(value: Any) -> bool:
    """Return whether a function of a library stands for one's own, and has its arguments in its closure."""
    return isinstance(value, FunctionType) and hasattr(value, "__wrapped__") and _is_own(inspect.unwrap(value))


def _is_own(value: Any) -> bool:
    """Return whether a function or class is its author's own, and not of a library."""
    if isinstance(value, FunctionType):
        return not is_library_file(value.__code__.co_filename)
    module = str(value.__module__)
    file = getattr(sys.modules.get(module), "__file__", None)
    return module.partition(".")[0] not in sys.stdlib_module_names and (file is None or not is_library_file(file))


def _compares_by_value(kind: Any) -> bool:
    return kind.__eq__ is not object.__eq__


def _iterate_members(value: type) -> Iterator[tuple[str, Any]]:
    """Yield what a class defines, of class methods and static methods their functions."""
    for name, member in sorted(vars(value).items()):
        member = getattr(member, "__func__", member)
        is_special = name.startswith(("__", "_abc_"))
        if name == "__pydantic_fields__":
            yield name, {field: _FIELD(info) for field, info in member.items()}
        elif not is_special or isinstance(member, FunctionType) or name == "__annotations__":
            yield name, member


def _list_globals(code: CodeType) -> set[str]:
    """Return the names that a function looks up in its module, also in functions within it."""
    names = {str(found.argval) for found in dis.get_instructions(code) if found.opname in _GLOBAL}
    return names.union(*(_list_globals(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _describe_code(code: CodeType, *, skip: bool = False) -> list[Any]:
    constants = [
        _describe_code(constant) if isinstance(constant, CodeType) else _describe_constant(constant)
        for constant in code.co_consts[skip:]
    ]
    return [code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants]


def _describe_constant(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    return [_describe_constant(item) for item in value] if isinstance(value, tuple) else repr(value)
