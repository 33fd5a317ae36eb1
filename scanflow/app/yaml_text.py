"""YAML as plain values, and back, with stricter rules than YAML's. The only module that uses PyYAML.

Plain scalars are those of YAML 1.2 (https://yaml.org/spec/1.2.2, its core schema), as in JSON: ``NO`` and ``12:30`` are
text, and ``1e-3`` is a number. PyYAML has those of YAML 1.1: False, 750, and text.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from scanflow.app.model import shorten
from scanflow.errors import InvalidError
from scanflow.text.printable import make_one_line

MAX_DEPTH = 100
MAX_VALUES = 10_000_000

_Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: type[yaml.SafeDumper] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


_TAG = "tag:yaml.org,2002:"
_SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
)


class _Loading(_Loader):  # type: ignore[valid-type, misc]  # chosen when this is imported
    def construct_int(self, node: yaml.ScalarNode) -> int:
        return int(node.value, 0 if node.value[:2] in {"0o", "0x"} else 10)


_Loading.yaml_implicit_resolvers = {}  # none of YAML 1.1's
_Loading.add_constructor(f"{_TAG}int", _Loading.construct_int)


class _Dumping(_Dumper):  # type: ignore[valid-type, misc]
    """Puts into quotes what either version of YAML would not read as text."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  its base's signature
        return True


for _class in (_Loading, _Dumping):
    for _name, _pattern, _first in _SCALARS:
        _class.add_implicit_resolver(f"{_TAG}{_name}", re.compile(f"(?:{_pattern})$"), _first)

# Hera changes how every dumper of this process writes text of several lines, once it is imported.
_Dumping.add_representer(str, yaml.representer.SafeRepresenter.represent_str)


def read_yaml(text: str) -> Any:
    """Return the document in ``text``; reject duplicate keys, deep nesting and endless aliases."""
    try:
        _check_depth(text)
        loader = _Loading(text)
        node = loader.get_single_node()
        _count_values(node, {})
        return None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        parts = [getattr(error, "context", None), getattr(error, "problem", None)]
        problem = ", ".join(filter(None, parts)) or make_one_line(str(error), 200)
        if "maximum nesting depth" in problem:  # libyaml's own limit, of 1,000, from 0.2.6 on
            raise _make_depth_error() from None
        raise InvalidError(
            f"This is not YAML: {problem}{place}. Write it there in YAML, or name another file."
        ) from error


def write_yaml(document: Any) -> str:
    text: str = yaml.dump(document, Dumper=_Dumping, sort_keys=False, allow_unicode=True, width=120)
    return text


def _check_depth(text: str) -> None:
    """Reject nesting that would exhaust the stack, since libyaml would crash."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise _make_depth_error()
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _make_depth_error() -> InvalidError:
    return InvalidError(
        f"This file is nested more than {MAX_DEPTH} levels deep, too deeply for an application. Look for an extra "
        "bracket."
    )


def _count_values(node: yaml.Node | None, sizes: dict[int, int]) -> int:
    """Count the values, with a copy for every alias; reject duplicate keys and endless aliases."""
    if not isinstance(node, yaml.MappingNode | yaml.SequenceNode):
        return 1
    if id(node) not in sizes:
        sizes[id(node)] = 0
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
        inner = node.value if isinstance(node, yaml.SequenceNode) else [value for _, value in node.value]
        sizes[id(node)] = 1 + sum(_count_values(child, sizes) for child in inner)
    size = sizes[id(node)]
    if size == 0:
        raise InvalidError(
            "An alias (*name) refers to the value that contains it, which would be endless. Write the value out."
        )
    if size > MAX_VALUES:
        raise InvalidError(f"Its aliases (*name) expand to more than {MAX_VALUES:,} values. Use fewer aliases.")
    return size


def _check_keys(node: yaml.MappingNode) -> None:
    seen: set[tuple[str, str]] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if (key.tag, key.value) in seen:
                line = key.start_mark.line + 1
                raise InvalidError(
                    f"Line {line} has the key {shorten(key.value)} for the second time. Keep one of the two."
                )
            seen.add((key.tag, key.value))
