"""A change of an application's file that gives a step or a service its resources: as a patch, to be looked at. Pure."""

from __future__ import annotations

import ast
import difflib
from io import StringIO

from scanflow.errors import InvalidError, NotFoundError, did_you_mean

_KINDS = frozenset({"Executor", "Service"})


def resources_patch(text: str, file: str, name: str, resources: str) -> str:
    """Return a unified diff that has ``resources`` stand at the step or service of that name; empty: they do already.

    Raises:
        InvalidError: the text is no Python.
        NotFoundError: no call of ``sf.Executor`` or ``sf.Service`` names it.
    """
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        raise InvalidError(f"{file} cannot be read: line {error.lineno}: {error.msg}.") from error
    calls = {named: call for call in ast.walk(module) if isinstance(call, ast.Call) and (named := _name_of(call))}
    if name not in calls:
        raise NotFoundError(
            f"{file} makes no step or service {name!r} by sf.Executor or sf.Service.{did_you_mean(name, calls)}"
        )
    lines = _lines(text)
    begin, end, written = _place(calls[name], lines, resources)
    changed = text[:begin] + written + text[end:]
    return "".join(difflib.unified_diff(lines, _lines(changed), f"a/{file}", f"b/{file}"))


def _lines(text: str) -> list[str]:
    """Return lines as Python counts them: a form feed, at which ``str.splitlines`` cuts, begins none."""
    return list(StringIO(text))


def _name_of(call: ast.Call) -> str | None:
    function = call.func
    kind = (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )
    if kind not in _KINDS:
        return None
    value = next((one.value for one in call.keywords if one.arg == "name"), None)
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def _place(call: ast.Call, lines: list[str], resources: str) -> tuple[int, int, str]:
    """Return which characters to replace, and by what."""
    given = next((one.value for one in call.keywords if one.arg == "resources"), None)
    if given is not None:
        return _offset(lines, given.lineno, given.col_offset), _end(lines, given), resources
    last = call.keywords[-1].value
    at = _end(lines, last)
    if call.lineno == call.end_lineno:
        return at, at, f", resources={resources}"
    indent = len(lines[last.lineno - 1]) - len(lines[last.lineno - 1].lstrip())
    return at, at, f",\n{' ' * indent}resources={resources}"


def _end(lines: list[str], node: ast.expr) -> int:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return _offset(lines, node.end_lineno, node.end_col_offset)


def _offset(lines: list[str], line: int, column: int) -> int:
    """Return the place of a character; ``column`` is in bytes of UTF-8, as of ast."""
    before = sum(map(len, lines[: line - 1]))
    return before + len(lines[line - 1].encode()[:column].decode())
