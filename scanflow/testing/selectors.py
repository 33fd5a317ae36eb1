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
    values = manifest["metadata"].get("labels") or {}
    return all(_holds(part, values) for part in _parts(labels)) and all(
        _field_holds(part, manifest) for part in _parts(fields)
    )


def _parts(selector: str) -> list[str]:
    return [part.strip() for part in re.split(r",(?![^(]*\))", selector) if part.strip()]


def _holds(part: str, labels: Mapping[str, str]) -> bool:
    if match := _SET.fullmatch(part):
        values = [value.strip() for value in match["values"].split(",")]
        return (labels.get(match["key"]) in values) is (match["how"] == "in")
    if match := _EQUAL.fullmatch(part):
        return (labels.get(match["key"]) == match["value"]) is (match["how"] != "!=")
    if match := _THERE.fullmatch(part):
        return (match["key"] in labels) is not bool(match["not"])
    raise InvalidError(f"The cluster rejects the request: unable to parse requirement: {part!r}")


def _field_holds(part: str, manifest: Mapping[str, Any]) -> bool:
    match = _EQUAL.fullmatch(part)
    if match is None:
        raise InvalidError(f"The cluster rejects the request: invalid field selector {part!r}")
    value: Any = manifest
    for name in match["key"].split("."):
        value = value.get(name, "") if isinstance(value, Mapping) else ""
    return (str(value) == match["value"]) is (match["how"] != "!=")
