"""Label and field selectors, as the API server reads them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from scanflow.errors import InvalidError

_SET = re.compile(r"(?P<key>[^\s!=,()]+)\s+(?P<how>in|notin)\s+\((?P<values>[^)]*)\)")
_EQUAL = re.compile(r"(?P<key>[^\s!=,()]+)\s*(?P<how>==|=|!=)\s*(?P<value>[^\s,]*)")
_THERE = re.compile(r"(?P<not>!?)\s*(?P<key>[^\s!=,()]+)")


def selects(manifest: Mapping[str, Any], labels: str, fields: str) -> bool:
    """Return whether an object is selected by a label selector and a field selector; an empty one selects all."""
    found = manifest["metadata"].get("labels") or {}
    return all(_holds(part, found) for part in _parts(labels)) and all(
        _field_holds(part, manifest) for part in _parts(fields)
    )


def _parts(selector: str) -> list[str]:
    return [part.strip() for part in re.split(r",(?![^(]*\))", selector) if part.strip()]


def _holds(part: str, labels: Mapping[str, str]) -> bool:
    if found := _SET.fullmatch(part):
        values = [value.strip() for value in found["values"].split(",")]
        return (labels.get(found["key"]) in values) is (found["how"] == "in")
    if found := _EQUAL.fullmatch(part):
        return (labels.get(found["key"]) == found["value"]) is (found["how"] != "!=")
    if found := _THERE.fullmatch(part):
        return (found["key"] in labels) is not bool(found["not"])
    raise InvalidError(f"The cluster refuses it: unable to parse requirement: {part!r}")


def _field_holds(part: str, manifest: Mapping[str, Any]) -> bool:
    found = _EQUAL.fullmatch(part)
    if found is None:
        raise InvalidError(f"The cluster refuses it: invalid field selector {part!r}")
    value: Any = manifest
    for name in found["key"].split("."):
        value = value.get(name, "") if isinstance(value, Mapping) else ""
    return (str(value) == found["value"]) is (found["how"] != "!=")
