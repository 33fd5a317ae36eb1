"""Parses and formats quantities: cores, bytes and durations, with errors that suggest a correction."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationInfo

from scanflow.app.model import shorten
from scanflow.errors import InvalidError

MAX_CORES = 100_000
MIN_MEMORY = 10**6  # no program runs in less: a unit was forgotten
MAX_MEMORY = 2**63 - 1  # what Kubernetes can count
MAX_DURATION_S = 100 * 366 * 86_400  # a hundred years

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_MEMORY_UNITS = {"": 1, **_BINARY, **_DECIMAL}
_TIME_UNITS = {"ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600), "d": Fraction(86400)}
_NUMBER = re.compile(r"\s*([+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40}))\s*([A-Za-z]*)\s*")
_TERM = re.compile(r"([0-9]{1,40}(?:\.[0-9]{1,40})?)(ms|s|m|h|d)")


def parse_cpu(value: float | str) -> float:
    """Parse a number of cores: ``2``, ``0.5``, ``"2"``, ``"500m"`` (thousandths of a core)."""
    number, unit = _split_unit(value, "cpu", "2, 0.5 or '500m'")
    if unit not in {"", "m"}:
        raise InvalidError(f"cpu {shorten(value)} is not a number of cores. Write 2, 0.5 or '500m'.")
    cores = number / 1000 if unit == "m" else number
    if cores <= 0:
        raise InvalidError(f"cpu {shorten(value)} is not above zero. Write how many cores, such as 2, 0.5 or '500m'.")
    if not Fraction(1, 1000) <= cores <= MAX_CORES:
        raise InvalidError(f"cpu {shorten(value)} is not between '1m' and {MAX_CORES} cores. Write 2, 0.5 or '500m'.")
    return float(cores)


def parse_memory(value: float | str, *, what: str = "memory", least: int = MIN_MEMORY) -> int:
    """Parse bytes, rounded up: ``"1Gi"`` (powers of 1024), ``"5G"`` (of 1000), a number. Errors call it ``what``."""
    number, unit = _split_unit(value, what, "'512Mi' or '4Gi'")
    if unit not in _MEMORY_UNITS:
        raise InvalidError(f"{what} {shorten(value)} has the unknown unit {unit!r}. {_suggest_memory(number, unit)}")
    size = math.ceil(number * _MEMORY_UNITS[unit])
    if number <= 0 or size > MAX_MEMORY:
        problem = "not above zero" if number <= 0 else "more than any machine has"
        raise InvalidError(f"{what} {shorten(value)} is {problem}. Write an amount such as '512Mi' or '4Gi'.")
    if size < least:
        raise InvalidError(
            f"{what} {shorten(value)} is {size} bytes, too little to run in. Write a unit, as in '512Mi' or '4Gi'."
        )
    return size


def format_memory(size: int) -> str:
    """Format ``size`` bytes exactly: ``"1Gi"``, ``"512Mi"``, ``"1500"``."""
    for unit, factor in reversed(_BINARY.items()):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def round_memory(size: int) -> str:
    """Format ``size`` bytes for people, to a tenth: ``"4Gi"``, ``"23.5Gi"``, ``"295Mi"``."""
    exponent = min(4, max(0, (size.bit_length() - 1) // 10))
    return f"{round(size / 1024**exponent, 1):g}{['', 'Ki', 'Mi', 'Gi', 'Ti'][exponent]}"


def format_bytes(size: int) -> str:
    """Format the size of a file or of a process for people: ``"0 B"``, ``"28 B"``, ``"7.7 KiB"``, ``"23.5 GiB"``."""
    amount = round_memory(size)
    return f"{amount.rstrip('KMGTi')} {amount.lstrip('0123456789.')}B"


def format_cpu(cores: float) -> str:
    """Format cores as a Kubernetes quantity: ``"2"``, ``"500m"``."""
    return f"{round(cores * 1000)}m" if cores % 1 else str(int(cores))


def parse_duration(value: float | str | timedelta, *, what: str = "duration", zero: bool = False) -> float:
    """Parse seconds: ``90``, ``"90s"``, ``"1h30m"``, ``"250ms"``, a ``timedelta``. Errors call it ``what``."""
    if isinstance(value, timedelta):
        seconds = Fraction(value.total_seconds())
    elif isinstance(value, str) and not _NUMBER.fullmatch(value):
        seconds = _parse_terms(value, what)
    else:
        number, unit = _split_unit(value, what, "90, '90s' or '1h30m'")
        if unit and unit not in _TIME_UNITS:
            raise InvalidError(
                f"{what} {shorten(value)} has the unknown unit {unit!r}. Write 90, '90s', '15m' or '1h30m'."
            )
        seconds = number * _TIME_UNITS[unit or "s"]
    if zero and seconds == 0:
        return 0.0
    if not 0 < seconds <= MAX_DURATION_S:
        problem = "not above zero" if seconds <= 0 else "longer than a hundred years"
        raise InvalidError(f"{what} {shorten(value)} is {problem}. Write seconds, or '90s', '15m', '1h30m'.")
    return float(seconds)


def _parse_seconds(value: Any, info: ValidationInfo) -> float:
    return parse_duration(value, what=info.field_name or "duration")


Seconds = Annotated[float | str | timedelta, BeforeValidator(_parse_seconds)]
Duration = Annotated[float | str, BeforeValidator(_parse_seconds)] | None
"""None: without limit."""


Wait = Annotated[
    float | str | timedelta,
    BeforeValidator(lambda value, info: parse_duration(value, what=info.field_name or "duration", zero=True)),
]
"""0: not at all."""

Size = Annotated[
    str | int,
    BeforeValidator(lambda value, info: format_memory(parse_memory(value, what=info.field_name or "size", least=1))),
]
"""A size that may be small: ``"64Mi"``, ``"200k"`` or a number; stored in the shortest exact spelling."""


def format_duration(seconds: float) -> str:
    """Format a duration for people: ``"0.25 s"``, ``"12.3 s"``, ``"2m 05s"``, ``"1h 02m"``."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m"


def format_count(number: int, noun: str) -> str:
    """Format a count with its noun: ``"1 step"``, ``"2 steps"`` or ``"3 strategies"``."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def format_cores(cores: float) -> str:
    """Format a number of cores for people: ``"1 core"``, ``"0.5 cores"``."""
    return f"{cores:g} core{'' if cores == 1 else 's'}"


def _split_unit(value: float | str, what: str, example: str) -> tuple[Fraction, str]:
    wrong = isinstance(value, bool) or not isinstance(value, int | float | str)
    if wrong or (isinstance(value, float) and not math.isfinite(value)):
        raise InvalidError(f"{what} cannot be {shorten(value)}. Write {example}.")
    if not isinstance(value, str):
        return Fraction(value), ""
    match = _NUMBER.fullmatch(value)
    if match is None:
        raise InvalidError(f"{what} {shorten(value)} cannot be read. Write {example}.")
    return Fraction(match[1]), match[2]


def _parse_terms(text: str, what: str) -> Fraction:
    compact = text.replace(" ", "")
    terms = _TERM.findall(compact)
    if not terms or "".join(number + unit for number, unit in terms) != compact:
        raise InvalidError(f"{what} {shorten(text)} cannot be read. Write 90, '90s', '15m' or '1h30m'.")
    return sum((Fraction(number) * _TIME_UNITS[unit] for number, unit in terms), Fraction(0))


def _suggest_memory(number: Fraction, unit: str) -> str:
    amount = f"{float(number):g}"
    letter = unit[:1].upper()
    if f"{letter}i" in _BINARY:
        decimal = "k" if letter == "K" else letter
        return f"Did you mean '{amount}{letter}i' (powers of 1024) or '{amount}{decimal}' (powers of 1000)?"
    return "Write an amount such as '512Mi' or '4Gi'."
