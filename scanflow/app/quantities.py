"""Amounts as people write them: cores, bytes and durations, with what to write instead when they are wrong."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from scanflow.errors import InvalidError

__all__ = ["format_duration", "format_memory", "parse_cpu", "parse_duration", "parse_memory"]

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_DECIMAL = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_MEMORY_UNITS = {"": 1, **_BINARY, **_DECIMAL}
_TIME_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+))\s*([A-Za-z]*)\s*")
_TERM = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_cpu(value: float | str) -> float:
    """Return cores: ``2``, ``0.5``, ``"500m"`` (thousandths of a core), ``"2"``.

    Raises:
        InvalidError: not a number, or not above zero.
    """
    number, unit = _split(value, "cpu", "2, 0.5 or '500m'")
    if unit not in {"", "m"}:
        raise InvalidError(f"cpu {value!r} is not a number of cores. Write 2, 0.5 or '500m'.")
    cores = number / 1000 if unit == "m" else number
    if cores <= 0:
        raise InvalidError(f"cpu {value!r} is not above zero. Write how many cores, such as 2, 0.5 or '500m'.")
    return cores


def parse_memory(value: float | str) -> int:
    """Return bytes: ``"512Mi"``, ``"1Gi"`` (powers of 1024), ``"5G"`` (powers of 1000), or a number of bytes.

    Raises:
        InvalidError: an unknown unit (``"5Gb"``), not a whole number of bytes, or not above zero.
    """
    number, unit = _split(value, "memory", "'512Mi' or '4Gi'")
    if unit not in _MEMORY_UNITS:
        raise InvalidError(f"memory {value!r} has the unknown unit {unit!r}. {_memory_advice(number, unit)}")
    size = number * _MEMORY_UNITS[unit]
    if size < 1:
        raise InvalidError(f"memory {value!r} is not above zero. Write an amount such as '512Mi' or '4Gi'.")
    return math.ceil(size)


def format_memory(size: int) -> str:
    """Return the shortest exact spelling of ``size`` bytes: ``"1Gi"``, ``"512Mi"``, ``"1500"``."""
    for unit, factor in reversed(_BINARY.items()):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def parse_duration(value: float | str | timedelta) -> float:
    """Return seconds: ``90``, ``"90s"``, ``"1h30m"``, ``"250ms"`` or a ``timedelta``.

    Raises:
        InvalidError: not a duration, or not above zero.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str) and not _NUMBER.fullmatch(value):
        seconds = _sum_of_terms(value)
    else:
        number, unit = _split(value, "duration", "90, '90s' or '1h30m'")
        if unit and unit not in _TIME_UNITS:
            raise InvalidError(f"duration {value!r} has the unknown unit {unit!r}. Write 90, '90s', '15m' or '1h30m'.")
        seconds = number * _TIME_UNITS.get(unit, 1.0)
    if not seconds > 0:
        raise InvalidError(f"duration {value!r} is not above zero. Write seconds, or '90s', '15m', '1h30m'.")
    return seconds


def format_duration(seconds: float) -> str:
    """Return a duration for people: ``"0.25 s"``, ``"12.3 s"``, ``"2m 05s"``, ``"1h 02m"``."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m"


def _split(value: float | str, what: str, example: str) -> tuple[float, str]:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InvalidError(f"{what} cannot be {value!r}. Write {example}.")
    if isinstance(value, int | float):
        if not math.isfinite(value):
            raise InvalidError(f"{what} cannot be {value!r}. Write {example}.")
        return float(value), ""
    match = _NUMBER.fullmatch(value)
    if match is None:
        raise InvalidError(f"{what} {value!r} cannot be read. Write {example}.")
    return float(match[1]), match[2]


def _sum_of_terms(text: str) -> float:
    compact = text.replace(" ", "")
    terms = _TERM.findall(compact)
    if not terms or "".join(number + unit for number, unit in terms) != compact:
        raise InvalidError(f"duration {text!r} cannot be read. Write 90, '90s', '15m' or '1h30m'.")
    return sum(float(number) * _TIME_UNITS[unit] for number, unit in terms)


def _memory_advice(number: float, unit: str) -> str:
    amount = f"{number:g}"
    letter = unit[:1].upper()
    if f"{letter}i" in _BINARY:
        decimal = "k" if letter == "K" else letter
        return f"Did you mean '{amount}{letter}i' (powers of 1024) or '{amount}{decimal}' (powers of 1000)?"
    return "Write an amount such as '512Mi' or '4Gi'."
