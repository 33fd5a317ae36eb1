"""Applications as JSON and YAML text, with the version of the schema inside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scanflow.app.application import Application
from scanflow.app.model import shorten
from scanflow.errors import InvalidError

__all__ = ["dump_json", "dump_yaml", "load_json", "load_yaml"]

SCHEMA = "scanflow/v1"
_DEEP = "This file is nested too deeply for an application. Look for an extra bracket."


def dump_json(app: Application) -> str:
    """Return the application as JSON, which :func:`load_json` reads."""
    return json.dumps(dump_document(app), indent=2, ensure_ascii=False)


def dump_yaml(app: Application) -> str:
    """Return the application as YAML, which :func:`load_yaml` reads."""
    from scanflow.app.yaml_text import write_yaml

    return write_yaml(dump_document(app))


def load_json(text: str) -> Application:
    """Return the application that ``text`` describes, or raise an InvalidError."""
    try:
        document = json.loads(text.removeprefix("\ufeff"), object_pairs_hook=_check_keys_unique)
    except json.JSONDecodeError as error:
        raise InvalidError(f"This is not JSON: {error}. Write it there in JSON, or name another file.") from error
    except RecursionError:
        raise InvalidError(_DEEP) from None
    return load_document(document)


def load_yaml(text: str) -> Application:
    """Return the application that ``text`` describes, or raise an InvalidError."""
    from scanflow.app.yaml_text import read_yaml  # here, since most runs never see any YAML

    return load_document(read_yaml(text))


def load_document(document: Any) -> Application:
    """Return the application that a parsed document describes, or raise an InvalidError."""
    if not isinstance(document, Mapping):
        raise InvalidError(
            f"An application is a mapping that begins with 'schema: {SCHEMA}'; this is {shorten(document)}. "
            "Write one in YAML or Python, as in docs/workflows.md; an example in Python: scanflow init"
        )
    schema = document.get("schema")
    if schema != SCHEMA:
        problem = "has no 'schema'" if schema is None else f"has the schema {shorten(schema)}"
        raise InvalidError(f"This file {problem}; this version of scanflow reads {SCHEMA!r}. Write 'schema: {SCHEMA}'.")
    return Application(**{str(key): value for key, value in document.items() if key != "schema"})


def _check_keys_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = [key for key, _ in pairs]
        doubled = next(key for key in keys if keys.count(key) > 1)
        raise InvalidError(f"An object has the key {doubled!r} twice. Keep one of the two.")
    return mapping


def dump_document(app: Application) -> dict[str, Any]:
    """Return an application as a JSON document."""
    return {"schema": SCHEMA, **app.model_dump(mode="json", exclude_defaults=True)}
