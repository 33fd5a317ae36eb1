"""Fewer points for the same picture: of those that are drawn in one column, the least and the greatest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Protocol, TypeVar


class TimedValue(Protocol):
    @property
    def at(self) -> float: ...

    @property
    def value(self) -> float: ...


TimedValueT = TypeVar("TimedValueT", bound=TimedValue)


def downsample(points: Sequence[TimedValueT], begin: float, end: float, columns: int) -> list[TimedValueT]:
    """Return at most two points a column, and the first and the last of all.

    Args:
        points: In the order of time.
        begin: The left edge of the first column, in the unit of their times.
        end: The right edge of the last column.
        columns: As a rule the width in pixels.
    """
    if len(points) <= 2 * columns:
        return list(points)
    scale = columns / max(end - begin, 1e-9)
    chosen = {0, len(points) - 1}
    for _, group in groupby(range(len(points)), lambda place: int((points[place].at - begin) * scale)):
        places = list(group)
        chosen.add(min(places, key=lambda place: points[place].value))
        chosen.add(max(places, key=lambda place: points[place].value))
    return [points[place] for place in sorted(chosen)]
