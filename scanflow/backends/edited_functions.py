"""Functions of finished steps that were changed since: what they do, not how they are written."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from types import CodeType, FunctionType
from typing import Any

from scanflow.app.workflow import Workflow

_PLAIN = (bool, int, float, complex, str, bytes)


def digest_functions(workflow: Workflow) -> dict[str, str]:
    """Return a digest of each step's function, as far as this process has it. Takes microseconds: nothing is read."""
    digests = {}
    for node in workflow.steps:
        call = None if node.target is None else node.target.call
        function = None if call is None else inspect.unwrap(getattr(call, "function", call))
        if isinstance(function, FunctionType):
            code = function.__code__
            has_docstring = function.__doc__ is not None and code.co_consts[:1] == (function.__doc__,)
            described = [_describe(code, skip=has_docstring), _describe_defaults(function)]
            digests[node.name] = hashlib.sha256(repr(described).encode(errors="surrogatepass")).hexdigest()[:16]
    return digests


def list_changed_functions(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the steps whose functions do something else now."""
    return [step for step, digest in before.items() if step in now and now[step] != digest]


def _describe(code: CodeType, *, skip: bool = False) -> list[Any]:
    constants = [
        _describe(constant) if isinstance(constant, CodeType) else _describe_constant(constant)
        for constant in code.co_consts[skip:]
    ]
    return [code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants]


def _describe_constant(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    return [_describe_constant(item) for item in value] if isinstance(value, tuple) else repr(value)


def _describe_defaults(function: FunctionType) -> list[str]:
    """Return the defaults that have a text of their own."""
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [repr(default) for default in defaults if default is None or type(default) in _PLAIN]
