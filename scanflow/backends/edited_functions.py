"""What of finished steps was changed since: what functions do, not how they are written, and what they are given."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from types import CodeType, FunctionType
from typing import Any

from scanflow.app.workflow import Workflow

_ARGUMENTS = {"parameters", "for_each", "when", "env"}
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
            digests[node.name] = _digest(repr(described))
    return digests


def digest_arguments(workflow: Workflow) -> dict[str, str]:
    """Return a digest of what each step is given: its parameters, items, condition and variables."""
    given = {node.name: node.model_dump(mode="json", include=_ARGUMENTS) for node in workflow.steps}
    return {step: _digest(json.dumps(arguments, sort_keys=True)) for step, arguments in given.items()}


def list_changed_steps(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the steps that have another digest now."""
    return [step for step, digest in before.items() if step in now and now[step] != digest]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


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
