"""How long an instance that ended waits before it is started again. Pure."""

from __future__ import annotations

from collections.abc import Sequence

HEALTHY_S = 60.0
"""An instance that was well for so long starts with a clean record."""

LONGEST_S = 30.0
_FIRST_S = 0.5


def pause_s(failures: int) -> float:
    """Return the seconds to wait after so many ends in a row: 0, 0.5, 1, 2, 4 … 30. The first costs nothing."""
    if failures <= 1:
        return 0.0
    return min(LONGEST_S, _FIRST_S * 2.0 ** min(failures - 2, 16))


def failures_in_a_row(lives_s: Sequence[float]) -> int:
    """Return how many of the last lives, oldest first, were too short to count as healthy."""
    count = 0
    for life in reversed(lives_s):
        if life >= HEALTHY_S:
            break
        count += 1
    return count
