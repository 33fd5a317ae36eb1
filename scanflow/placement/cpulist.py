"""Lists of CPUs and nodes as the kernel writes them: ``0-3,8``. Standard library only: an instance imports this."""

from __future__ import annotations

import re
from collections.abc import Iterable

from scanflow.errors import InvalidError

MAX_CPU = 2**16 - 1  # the kernel's own limit is 8192
_RANGE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6})(?::([0-9]{1,6})/([0-9]{1,6}))?)?")


def parse_cpus(text: str) -> tuple[int, ...]:
    """Parse a list such as ``0-3,8`` or ``0-30:2/8`` (2 of every 8) into sorted numbers."""
    cpus: set[int] = set()
    for part in filter(None, (part.strip() for part in text.strip("\0 \t\r\n").split(","))):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise InvalidError(f"{text!r:.60} is not a list of CPUs. Write it as in '0-3,8'.")
        first = int(match[1])
        last = int(match[2] or first)
        used, group = (int(match[3]), int(match[4])) if match[3] else (1, 1)
        if last < first or last > MAX_CPU or not 0 < used <= group:
            raise InvalidError(f"{text!r:.60} is not a list of CPUs: {part!r} is not a range.")
        cpus.update(cpu for cpu in range(first, last + 1) if (cpu - first) % group < used)
    return tuple(sorted(cpus))


def parse_mask(text: str) -> tuple[int, ...]:
    """Parse a mask such as ``00000000,0000000f``, which old kernels write instead of a list."""
    words = text.strip("\0 \t\r\n").split(",")
    try:
        bits = int("".join([words[0], *(word.zfill(8) for word in words[1:])]) or "0", 16)
    except ValueError as error:
        raise InvalidError(f"{text!r:.60} is not a mask of CPUs.") from error
    return tuple(place for place in range(bits.bit_length()) if bits >> place & 1)


def format_cpus(cpus: Iterable[int]) -> str:
    """Format numbers as the kernel lists them: ``0-3,8``."""
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def format_numbered(what: str, numbers: Iterable[int]) -> str:
    """Format numbers as ``"CPU 3"`` or ``"CPUs 0-3,8"``."""
    listed = sorted(set(numbers))
    return f"{what}{'' if len(listed) == 1 else 's'} {format_cpus(listed)}"
