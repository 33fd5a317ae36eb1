"""The docstrings under the fields of classes, which Python does not keep: read from their sources."""

from __future__ import annotations

import ast
import inspect
from textwrap import dedent


def read_field_docstrings(model: type) -> dict[str, str]:
    """Return the docstring of each field of a class and its bases, as it is written; empty: it has none.

    A field that a class declares again has the docstring there. Bases of other packages are left out.
    """
    texts: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if cls.__module__.partition(".")[0].startswith("scanflow"):
            texts |= _read_own_docstrings(cls)
    return texts


def _read_own_docstrings(cls: type) -> dict[str, str]:
    (definition,) = ast.parse(dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for field, following in zip(definition.body, [*definition.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            value = following.value if isinstance(following, ast.Expr) else None
            text = value.value if isinstance(value, ast.Constant) else None
            texts[field.target.id] = text if isinstance(text, str) else ""
    return texts
