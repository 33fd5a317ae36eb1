"""Applications as text: JSON and YAML, with the version of the schema inside. No file is read or written here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from scanflow.app.application import Application
from scanflow.errors import InvalidError

__all__ = ["SCHEMA", "dump_json", "dump_yaml", "load_json", "load_yaml"]

SCHEMA = "scanflow/v1"
"""Written first in every file; a reader refuses what it does not know."""


def dump_json(app: Application) -> str:
    """Return the application as JSON."""
    return json.dumps(_document(app), indent=2, ensure_ascii=False)


def dump_yaml(app: Application) -> str:
    """Return the application as YAML."""
    text: str = yaml.safe_dump(_document(app), sort_keys=False, allow_unicode=True, width=120)
    return text


def load_json(text: str) -> Application:
    """Return the application that ``text`` describes.

    Raises:
        InvalidError: not JSON, another schema, or not a valid application.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidError(f"This is not JSON: {error}.") from error
    return _application(document)


def load_yaml(text: str) -> Application:
    """Return the application that ``text`` describes.

    Raises:
        InvalidError: not YAML, another schema, or not a valid application.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidError(f"This is not YAML: {error}.") from error
    return _application(document)


def _document(app: Application) -> dict[str, Any]:
    return {"schema": SCHEMA, **app.model_dump(mode="json", exclude_defaults=True)}


def _application(document: Any) -> Application:
    if not isinstance(document, Mapping):
        raise InvalidError(f"An application is a mapping that begins with 'schema: {SCHEMA}'; this is {document!r:.60}.")
    schema = document.get("schema")
    if schema != SCHEMA:
        found = "has no 'schema'" if schema is None else f"has the schema {schema!r}"
        raise InvalidError(f"This file {found}; this version of scanflow reads {SCHEMA!r}. Write 'schema: {SCHEMA}'.")
    return Application(**{str(key): value for key, value in document.items() if key != "schema"})
