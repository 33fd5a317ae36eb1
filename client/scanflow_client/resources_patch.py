"""A patch of an application's file that sets the resources of a step or a service. Pure."""

from __future__ import annotations

import ast
import difflib
from io import StringIO

from scanflow.errors import InvalidError, NotFoundError, did_you_mean

_KINDS = frozenset({"Executor", "Service"})


def build_resources_patch(text: str, file: str, name: str, resources: str) -> str:
    """Return a unified diff that sets ``resources`` of the step or service of that name; empty: they are set already.

    Raises:
        InvalidError: the text is not valid Python.
        NotFoundError: no call of ``sf.Executor`` or ``sf.Service`` has that name.
    """
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        raise InvalidError(f"{file} cannot be read: line {error.lineno}: {error.msg}.") from error
    calls = {named: call for call in ast.walk(module) if isinstance(call, ast.Call) and (named := _read_name(call))}
    if name not in calls:
        raise NotFoundError(
            f"{file} defines no step or service {name!r} with sf.Executor or sf.Service.{did_you_mean(name, calls)}"
        )
    lines = _split_lines(text)
    begin, end, written = _locate(calls[name], lines, resources)
    changed = text[:begin] + written + text[end:]
    return "".join(difflib.unified_diff(lines, _split_lines(changed), f"a/{file}", f"b/{file}"))


def _split_lines(text: str) -> list[str]:
    """Return the lines as Python counts them: unlike ``str.splitlines``, a form feed does not end one."""
    return list(StringIO(text))


def _read_name(call: ast.Call) -> str | None:
    function = call.func
    kind = (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )
    if kind not in _KINDS:
        return None
    value = next((keyword.value for keyword in call.keywords if keyword.arg == "name"), None)
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def _locate(call: ast.Call, lines: list[str], resources: str) -> tuple[int, int, str]:
    """Return the range of characters to replace, and the replacement."""
    current = next((keyword.value for keyword in call.keywords if keyword.arg == "resources"), None)
    if current is not None:
        resources = _keep_gpus(current, "".join(lines), resources)
        return (
            _compute_offset(lines, current.lineno, current.col_offset),
            _compute_end_offset(lines, current),
            resources,
        )
    last = call.keywords[-1].value
    at = _compute_end_offset(lines, last)
    if call.lineno == call.end_lineno:
        return at, at, f", resources={resources}"
    indent = len(lines[last.lineno - 1]) - len(lines[last.lineno - 1].lstrip())
    return at, at, f",\n{' ' * indent}resources={resources}"


def _keep_gpus(current: ast.expr, text: str, resources: str) -> str:
    """Return resources with the GPUs of the current ones, if they name none: a program is not measured there."""
    if "gpu=" in resources or not isinstance(current, ast.Call):
        return resources
    gpus = [
        ast.get_source_segment(text, keyword) or ast.unparse(keyword)
        for keyword in current.keywords
        if keyword.arg in {"gpu", "gpu_memory"}
    ]
    return f"{resources[:-1]}, {', '.join(gpus)})" if gpus else resources


def _compute_end_offset(lines: list[str], node: ast.expr) -> int:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return _compute_offset(lines, node.end_lineno, node.end_col_offset)


def _compute_offset(lines: list[str], line: int, column: int) -> int:
    """Return the offset of a character; ``column`` is in bytes of UTF-8, as in ast."""
    before = sum(map(len, lines[: line - 1]))
    return before + len(lines[line - 1].encode()[:column].decode())
