"""Encode objects for the API server. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.errors import InvalidError

_ESCAPED: Final = re.compile("[\x7f-\uffff]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def encode_body(content: Any, *, what: str = "The request") -> bytes:
    """Return an object, or a patch of one, as a text that reads the same as JSON and as YAML.

    A server-side apply is read as YAML. YAML takes no pairs of escapes for characters beyond U+FFFF, which are sent as
    they are; of the others it folds line separators and refuses control characters, which are sent as escapes.

    Raises:
        InvalidError: a text has half of a surrogate pair, which UTF-8 cannot express. ``what`` names the object.
    """
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    if _SURROGATE.search(text):
        where, value = next(_list_surrogates(content, ""))
        raise InvalidError(
            f"{what} cannot be sent: {where} has a character that UTF-8 does not have, in {value!a:.200}. Write it "
            "without; it may come from a file name or a file that is not UTF-8."
        )
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode()


def describe_manifest(manifest: Manifest) -> str:
    """Describe an object: ``The ConfigMap 'a' of the namespace 'b'``."""
    metadata = manifest["metadata"]
    name = metadata.get("name") or metadata.get("generateName", "")
    namespace = f" of the namespace {metadata['namespace']!r}" if "namespace" in metadata else ""
    return f"The {manifest['kind']} {name!r}{namespace}"


def _list_surrogates(content: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each field with half of a surrogate pair."""
    if isinstance(content, str):
        if _SURROGATE.search(content):
            yield path.lstrip(".") or "it", content
    elif isinstance(content, dict):
        for name, value in content.items():
            yield from _list_surrogates(str(name), f"{path}: the name of a field")
            yield from _list_surrogates(value, f"{path}.{name!a}" if not str(name).isidentifier() else f"{path}.{name}")
    elif isinstance(content, list | tuple):
        for place, value in enumerate(content):
            yield from _list_surrogates(value, f"{path}[{place}]")
