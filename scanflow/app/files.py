"""Applications as text: JSON and YAML, with the version of the schema inside. No file is read or written here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from scanflow.app.application import Application
from scanflow.app.model import short
from scanflow.errors import InvalidError

__all__ = ["SCHEMA", "dump_json", "dump_yaml", "load_json", "load_yaml"]

SCHEMA = "scanflow/v1"
"""Written first in every file; a reader refuses what it does not know."""

MAX_DEPTH = 100
MAX_VALUES = 10_000_000
_DEEP = f"This file is nested more than {MAX_DEPTH} levels deep, which no application is. Look for a bracket too many."

_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: type[yaml.SafeDumper] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumping(_Dumper):  # type: ignore[valid-type, misc]  # chosen when this is imported
    """Writes YAML without anchors."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  its base's signature
        return True


def dump_json(app: Application) -> str:
    """Return the application as JSON."""
    return json.dumps(_document(app), indent=2, ensure_ascii=False)


def dump_yaml(app: Application) -> str:
    """Return the application as YAML."""
    text: str = yaml.dump(_document(app), Dumper=_Dumping, sort_keys=False, allow_unicode=True, width=120)
    return text


def load_json(text: str) -> Application:
    """Return the application that ``text`` describes.

    Raises:
        InvalidError: not JSON, another schema, or not a valid application.
    """
    try:
        document = json.loads(text.removeprefix("\ufeff"), object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise InvalidError(f"This is not JSON: {error}.") from error
    except RecursionError:
        raise InvalidError(_DEEP) from None
    return _application(document)


def load_yaml(text: str) -> Application:
    """Return the application that ``text`` describes.

    Raises:
        InvalidError: not YAML, another schema, or not a valid application.
    """
    try:
        _check_depth(text)
        loader = _Loader(text)
        node = loader.get_single_node()
        _size(node, {})
        document = None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        raise InvalidError(f"This is not YAML: {error}.") from error
    return _application(document)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        doubled = next(key for key in keys if keys.count(key) > 1)
        raise InvalidError(f"An object has the key {doubled!r} twice. Keep one of the two.")
    return found


def _check_depth(text: str) -> None:
    """Refuse what is nested so deep that reading it would exhaust the stack, which libyaml does not survive."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise InvalidError(_DEEP)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _size(node: yaml.Node | None, known: dict[int, int]) -> int:
    """Return how many values there are once every alias stands for a copy; refuse what is said twice or has no end."""
    if not isinstance(node, yaml.MappingNode | yaml.SequenceNode):
        return 1
    if id(node) not in known:
        known[id(node)] = 0
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
        inner = node.value if isinstance(node, yaml.SequenceNode) else [value for _, value in node.value]
        known[id(node)] = 1 + sum(_size(one, known) for one in inner)
    size = known[id(node)]
    if size == 0:
        raise InvalidError("An alias (*name) stands inside what it names, so that it would have no end. Write it out.")
    if size > MAX_VALUES:
        raise InvalidError(f"Its aliases (*name) make more than {MAX_VALUES:,} values of it. Write less.")
    return size


def _check_keys(node: yaml.MappingNode) -> None:
    seen: set[tuple[str, str]] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if (key.tag, key.value) in seen:
                line = key.start_mark.line + 1
                raise InvalidError(
                    f"Line {line} has the key {short(key.value)} for the second time. Keep one of the two."
                )
            seen.add((key.tag, key.value))


def _document(app: Application) -> dict[str, Any]:
    return {"schema": SCHEMA, **app.model_dump(mode="json", exclude_defaults=True)}


def _application(document: Any) -> Application:
    if not isinstance(document, Mapping):
        raise InvalidError(
            f"An application is a mapping that begins with 'schema: {SCHEMA}'; this is {short(document)}."
        )
    schema = document.get("schema")
    if schema != SCHEMA:
        found = "has no 'schema'" if schema is None else f"has the schema {short(schema)}"
        raise InvalidError(f"This file {found}; this version of scanflow reads {SCHEMA!r}. Write 'schema: {SCHEMA}'.")
    return Application(**{str(key): value for key, value in document.items() if key != "schema"})
