"""Descriptions in the source: the docstring under a field, and the sections of a function's docstring."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from scanflow.text.field_docstrings import read_field_docstrings
from tests.reference.markdown import format_code, format_docstring


def read_field_docs(model: type) -> dict[str, str]:
    """Return the docstrings under the fields of a class and its bases, as Markdown in one line."""
    return {name: format_text(text) for name, text in read_field_docstrings(model).items()}


def read_text(statement: ast.stmt) -> str:
    """Return a statement that is a text, as Markdown in one line; nothing for any other statement."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    text = value.value if isinstance(value, ast.Constant) else None
    return format_text(text) if isinstance(text, str) else ""


def format_text(text: str) -> str:
    return format_docstring(" ".join(text.split()))


def list_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a model, those of its bases after its own."""
    own = {name: field for name, field in model.model_fields.items() if name in vars(model).get("__annotations__", {})}
    return {**own, **model.model_fields}


def format_default(field: FieldInfo) -> str:
    """Return a field's default as code; nothing for one that is computed, which its description says."""
    if field.is_required():
        return "required"
    factory = field.default_factory
    if factory is not None:
        return format_code(repr(factory())) if factory in {dict, list, tuple} else ""
    return "" if field.default is None else format_code(repr(field.default))


def format_variable_default(field: FieldInfo) -> str:
    """Return a field's default as its environment variable would have it."""
    value = None if field.is_required() or field.default_factory is not None else field.default
    if isinstance(value, bool):
        return "`1`" if value else "`0`"
    if isinstance(value, float):
        value = f"{value:g}"
    return "" if value in (None, "", ()) else format_code(str(value))


def read_arguments(text: str) -> Mapping[str, str]:
    """Return the section ``Args`` of a docstring: the description of each argument."""
    section = re.search(r"^Args:\n((?:[ \t]+.*\n?|\n)*)", text, re.MULTILINE)
    if section is None:
        return {}
    entries = re.split(r"^(?=\S)", textwrap.dedent(section[1]), flags=re.MULTILINE)
    pairs = (entry.partition(":") for entry in entries if entry.strip())
    return {name.strip().lstrip("*"): format_docstring(" ".join(words.split())) for name, _, words in pairs}


def read_summary(thing: Any) -> str:
    """Return the first paragraph of a docstring."""
    return format_docstring(" ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split()))


def read_prose(thing: Any) -> str:
    """Return a docstring without its sections (``Args``, ``Returns``, ``Raises``)."""
    text = re.split(r"^(?:Args|Returns|Raises|Source|Yields):", inspect.getdoc(thing) or "", flags=re.MULTILINE)[0]
    return format_docstring(text.strip())


def format_annotation(hint: Any) -> str:
    """Return a type as people write it, without constraints: ``int | None``."""
    if isinstance(hint, str):
        return hint.strip("'")
    arguments = get_args(hint)
    if get_origin(hint) is Annotated:
        return format_annotation(arguments[0])
    if get_origin(hint) in {Union, UnionType}:
        return " | ".join(map(format_annotation, arguments))
    if get_origin(hint) is Literal:
        return " | ".join(map(repr, arguments))
    if hint in {None, NoneType, Ellipsis}:
        return "..." if hint is Ellipsis else "None"
    name = getattr(hint, "__name__", str(hint))
    return f"{name}[{', '.join(map(format_annotation, arguments))}]" if arguments else name
