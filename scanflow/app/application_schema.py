"""The JSON schema of applications as files, made of the models that read them: for editors of YAML.

It refuses what the models refuse for its shape: an unknown field, a missing one, a wrong type, a wrong choice. What
only the models know (a cycle, an unknown name, a quantity that cannot be read) it accepts. Of a number it wants the
plain spelling, where the models also read text such as ``"3"``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from scanflow.app.application import Application
from scanflow.app.application_files import SCHEMA
from scanflow.app.model import Model
from scanflow.text.field_docstrings import read_field_docstrings

__all__ = ["build_application_schema"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
"""pydantic leaves its own words where a bound follows a validator."""

_ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")


def build_application_schema() -> dict[str, Any]:
    """Return the JSON schema of the documents that :func:`scanflow.app.application_files.load_document` reads."""
    schema = Application.model_json_schema()
    definitions = schema["$defs"]
    classes = {model.__name__: model for model in _iterate_models(Model)}
    for name, definition in [*definitions.items(), ("Application", schema)]:
        _describe(definition, classes.get(name))
    for part in _iterate_parts(schema):
        if isinstance(text := part.get("description"), str):
            part["description"] = _clean(text)
        for word in _BOUNDS.keys() & part.keys():
            part[_BOUNDS[word]] = part.pop(word)
        if discriminator := part.pop("discriminator", None):
            _require_kinds(definitions, discriminator)
    version = {"const": SCHEMA, "description": "The version of this format."}
    schema["properties"] = {"schema": version, **schema["properties"]}
    schema["required"] = ["schema", *schema["required"]]
    return {"$schema": _DIALECT, **schema}


def _require_kinds(definitions: dict[str, Any], discriminator: dict[str, Any]) -> None:
    for reference in discriminator["mapping"].values():
        definition = definitions[reference.rpartition("/")[2]]
        word = discriminator["propertyName"]
        definition["required"] = [word, *(name for name in definition.get("required", ()) if name != word)]


def _describe(definition: dict[str, Any], model: type[Model] | None) -> None:
    """Add the docstrings of a model's fields."""
    texts = {} if model is None else read_field_docstrings(model)
    for name, field in definition.get("properties", {}).items():
        if texts.get(name):
            field["description"] = texts[name]


def _clean(text: str) -> str:
    return _ROLE.sub(r"\1", inspect.cleandoc(text)).replace("``", "`")


def _iterate_models(model: type[Model]) -> Iterator[type[Model]]:
    for subclass in model.__subclasses__():
        if subclass.__module__.startswith("scanflow.app."):
            yield subclass
        yield from _iterate_models(subclass)


def _iterate_parts(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for part in list(schema.values()):
            yield from _iterate_parts(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _iterate_parts(part)
