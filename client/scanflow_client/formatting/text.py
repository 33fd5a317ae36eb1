"""Formatting of amounts, times and states for people."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from scanflow.app.quantities import format_count, format_duration
from scanflow.drawing.states import STATE_LOOKS
from scanflow.text.printable import make_one_line
from scanflow.text.times import bound_time, to_datetime

MARKS: Mapping[str, str] = {state: look.mark for state, look in STATE_LOOKS.items()}
"""The mark of each state of a run, a task, a service or an instance."""

SHORT = 160  # most characters of free text in a table or a line
MAX_VALUE_LINES = 12
MAX_VALUE_WIDTH = 400
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def format_bytes(size: float) -> str:
    """Return an amount of memory with one decimal: ``"1.2 GiB"``."""
    unit = "B"
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"


def format_amount(amount: float, digits: int = 3) -> str:
    """Return an amount rounded to so many digits, large ones without an exponent: ``"35.5"``, ``"1,120"``."""
    rounded = float(f"{amount:.{digits}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10 ** (digits - 1) else f"{amount:.{digits}g}"


_is_kept: ContextVar[bool] = ContextVar("is_kept", default=False)


@contextmanager
def keep_times() -> Iterator[None]:
    """Have times written with their zones, in place of how long ago they were: what is kept is read later."""
    token = _is_kept.set(True)
    try:
        yield
    finally:
        _is_kept.reset(token)


def format_wait(until: float) -> str:
    """Return how long it is until a moment: ``"in 5m 10s"``."""
    if _is_kept.get():
        return format_time(until)
    return f"in {format_duration(max(0.0, bound_time(until) - time.time()))}"


def format_age(when: float | None, *, now: float | None = None) -> str:
    """Return the age of a moment: ``"3 min ago"``; ``"-"`` for None."""
    if when is None:
        return "-"
    if _is_kept.get():
        return format_time(when)
    seconds = max(0.0, (time.time() if now is None else now) - bound_time(when))
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{seconds // size:.0f} {unit} ago"
    return f"{seconds // 86400:.0f} d ago"


def format_time(at: float) -> str:
    zone = " %Z" if _is_kept.get() else ""
    return f"{to_datetime(at).astimezone():%Y-%m-%d %H:%M:%S{zone}}"


def format_seconds(seconds: float | None) -> str:
    return format_duration(seconds) if seconds else "-"


def format_latency(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else format_duration(seconds)


def format_percent(share: float | None, digits: int = 1) -> str:
    return "-" if share is None else f"{share:.{digits}%}"


def format_optional(value: object) -> str:
    """Return a value as text; ``"-"`` for None and for empty text."""
    return "-" if value is None or value == "" else str(value)


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def to_document(value: Any) -> Any:
    """Return records and values as what JSON can hold: NaN and infinities as null, arrays as lists, else text."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return to_jsonable_python(value, by_alias=False, inf_nan_mode="null", fallback=_to_list_or_text)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError):  # it contains itself, or is too deep
        return repr(value)


def _to_list_or_text(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def shorten(text: str) -> str:
    """Return free text on one line of at most 160 characters."""
    return make_one_line(text, SHORT)


def format_value(value: Any, *, whole: str) -> list[str]:
    """Return a value as JSON, indented where it is long, in at most 12 lines of at most 400 characters; ``whole``: the
    command that prints all of it."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):  # keys that are no text, or it contains itself
        value = text = repr(value)
    lines = [text] if len(text) <= SHORT else json.dumps(value, ensure_ascii=False, default=str, indent=2).splitlines()
    if len(lines) > MAX_VALUE_LINES:
        hidden = len(lines) - MAX_VALUE_LINES + 1
        lines = [*lines[: MAX_VALUE_LINES - 1], f"... {format_count(hidden, 'line')} more; all of it: {whole}"]
    return [line if len(line) <= MAX_VALUE_WIDTH else line[: MAX_VALUE_WIDTH - 1] + "…" for line in lines]
