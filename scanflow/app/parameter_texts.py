"""Parameters that are given as text, as on a command line: each becomes the value that its type says.

The type is that of the annotation, else that of the present value, else what JSON reads. Pure.
"""

from __future__ import annotations

import json
import math
from typing import Any

from pydantic import TypeAdapter

from scanflow.app.annotations import build_adapter
from scanflow.errors import InvalidError

_SCALARS = (bool, int, float, type(None))
_MAX_EXACT_BITS = 64  # longer whole numbers of scripts stay text


def parse_json(text: str) -> Any:
    """Return JSON as its value, other text (``NaN`` too) as it is."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    return value


def parse_script_parameter(text: str, present: Any = None) -> Any:
    """Return the value of a script's parameter, which is ``text`` again on the script's command line.

    ``null`` is None, which leaves the option out.
    """
    value = parse_json(text)
    if isinstance(value, str) or isinstance(present, str) or json.dumps(value) != text:
        return text
    return text if isinstance(value, int) and value.bit_length() > _MAX_EXACT_BITS else value


def parse_parameter(text: str, annotation: Any = Any, present: Any = None) -> Any:
    """Return the value of a function's parameter.

    Text that the annotation takes only after a conversion (a date, an enum's value, a path) stays text, which the
    step converts; so does text that does not fit it, for whoever checks the parameter to refuse.
    """
    adapter = None if annotation in (Any, object) else build_adapter(annotation)
    if adapter is None:
        return _parse_by_present_value(text, present)
    value = parse_json(text)
    takes_json = not isinstance(value, str) and _takes_json(adapter, text, value)
    if isinstance(value, int | float):
        value = _convert_number(adapter, value)
    if _takes_text(adapter, text):
        return value if takes_json and _prefers_json(text, value, present) else text
    if takes_json:
        return value
    return value if _accepts(adapter, value) and not _accepts(adapter, text) else text


def _parse_by_present_value(text: str, present: Any) -> Any:
    if isinstance(present, str):
        return text
    value = parse_json(text)
    if not isinstance(present, bool | int | float) or not isinstance(value, str | bool | int):
        return value
    if isinstance(value, bool) == isinstance(present, bool) and not isinstance(value, str):
        return value
    try:
        converted = TypeAdapter(type(present)).validate_python(text)
    except ValueError:
        return value
    return converted if math.isfinite(converted) else value


def _takes_text(adapter: TypeAdapter[Any], text: str) -> bool:
    """Return whether the type has text as one of its own kinds, and takes this one unchanged."""
    try:
        taken = adapter.validate_python(text, strict=True)
    except Exception:  # noqa: BLE001  a validator of the user's may fail in its own way
        return False
    return type(taken) is str and taken == text


def _takes_json(adapter: TypeAdapter[Any], text: str, value: Any) -> bool:
    """Return whether the type takes the JSON value, other than text, as it is: no decimal or date is made of it."""
    try:
        taken = adapter.validate_json(text, strict=True)
    except Exception:  # noqa: BLE001  a validator of the user's may fail in its own way
        return False
    return isinstance(value, list | dict) or type(taken) in _SCALARS


def _convert_number(adapter: TypeAdapter[Any], value: float) -> Any:
    """Return a number as the annotation has it: 3 is 3.0 for ``float``, and 1e3 is 1000 for ``int``."""
    try:
        converted = adapter.validate_python(value)
    except Exception:  # noqa: BLE001  a validator of the user's may fail in its own way
        return value
    return converted if type(converted) in _SCALARS and converted == value else value


def _accepts(adapter: TypeAdapter[Any], value: Any) -> bool:
    try:
        adapter.validate_python(value)
    except Exception:  # noqa: BLE001  a validator of the user's may fail in its own way
        return False
    return True


def _prefers_json(text: str, value: Any, present: Any) -> bool:
    """Return whether a parameter that may be text or another value is the other value."""
    if value is None or not isinstance(value, bool | int | float):
        return True
    if present is not None:
        return not isinstance(present, str)
    return json.dumps(value) == text


def parse_parameter_lines(text: str) -> dict[str, str]:
    """Parse parameters, a line each, such as ``epochs=3``.

    Raises:
        InvalidError: a line is no parameter.
    """
    texts: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, mark, value = line.partition("=")
        if not mark or not name.strip():
            raise InvalidError(f"{line!r:.60} is not a parameter. Write one in each line, with its value: epochs=3")
        texts[name.strip()] = value.strip()
    return texts
