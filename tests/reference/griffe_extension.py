"""An extension of griffe, which reads the code for mkdocstrings: docstrings as Markdown, and models by their fields."""

from __future__ import annotations

from typing import Any

from griffe import Class, Extension, Object

from tests.reference.markdown import format_docstring

MODELS = frozenset({"scanflow.app.model.Model", "scanflow.agent.primitive_model.PrimitiveModel"})


class ReadableDocstrings(Extension):
    """Shows roles of reStructuredText as code, and leaves out the signature ``(*values, **data)`` of models."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = format_docstring(obj.docstring.value)

    def on_class(self, *, cls: Class, **_: Any) -> None:
        if cls.path in MODELS:
            cls.members.pop("__init__", None)
