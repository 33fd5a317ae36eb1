"""Detects neighbours that slow a service down, from the service's own metrics (thesis Fig. 5.14). Pure.

Windows in which the neighbour ran on the same cores are compared with windows in which it did not. A disturbed window
is paired with a quiet one of comparable load; of the pairs, the medians and Wilcoxon's signed-rank test decide.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

MIN_REQUESTS = 20
"""The 95th percentile of a window with fewer requests is not used."""

MIN_PAIRS = 8
"""Minimum number of pairs of windows for a decision. Eight pairs that all agree have p = 0.004."""

LEVEL = 0.005
MIN_EFFECT = 1.2
"""Minimum ratio of latencies at which a neighbour counts as a disturbance."""

MIN_GAIN, LEVEL_OF_GAIN = 1.15, 0.05
"""Minimum factor by which the latency must fall for a move to count as helpful, and the maximum p-value of that
fall: the move itself was based on evidence."""

SAME_LOAD = 0.95
MAX_LOAD = 3.0
"""A quiet window may have 5 % less load than the disturbed one, and up to this many times as much: more load does
not make it faster, and clients that wait for answers send fewer requests to a disturbed service."""

AGREEING, CONFIRMATION = 3, 5
"""A single check never decides: three of the last five must agree."""


KEPT_WINDOWS = 500
"""Number of the newest windows that are stored."""


class LoadPoint(NamedTuple):
    load: float
    """Requests per second of each instance."""

    p95_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The metrics of a service between two measurements."""

    ended: float
    point: LoadPoint
    revision: str
    beside: frozenset[str] = frozenset()
    """The neighbours that ran at that time on cores shared with the service."""

    avoided: frozenset[str] = frozenset()
    """The neighbours that ran at that time on other cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    pairs: int
    quiet_p95_s: float
    disturbed_p95_s: float
    """Medians over the pairs."""

    ratio: float
    """The median of the pairs' ratios: the disturbed latency as a multiple of the quiet one."""

    p: float
    """Probability of such a result if the neighbour had no effect: Wilcoxon's signed-rank test, one-sided."""

    def is_disturbing(self, neighbours: int = 1) -> bool:
        """Return whether the effect is significant and large, corrected for the number of neighbours tested
        (Bonferroni)."""
        return self.p < LEVEL / max(1, neighbours) and self.ratio >= MIN_EFFECT


def compare_move(before: Sequence[LoadPoint], after: Sequence[LoadPoint]) -> tuple[Slowdown | None, bool | None]:
    """Compare a service's windows before and after a move, and return whether it helped; None: there are not yet enough
    windows after the move."""
    slowdown = compare([(after, before)])
    if slowdown is None or (slowdown.pairs < len(before) and len(after) < 3 * len(before)):
        return slowdown, None
    return slowdown, slowdown.ratio >= MIN_GAIN and slowdown.p < LEVEL_OF_GAIN


class Disturbance(NamedTuple):
    """A neighbour that slows a service down."""

    neighbour: str
    slowdown: Slowdown
    agreed: int
    """Number of the last checks that agreed."""


class InterferenceWatch:
    """The newest windows of a service, and the result of each check for each neighbour."""

    def __init__(self) -> None:
        self.windows: deque[Window] = deque(maxlen=KEPT_WINDOWS)
        self._agree: defaultdict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=CONFIRMATION))

    def observe(self, window: Window | None, since: Callable[[str], float] = lambda _: -math.inf) -> Disturbance | None:
        """Add a window (None: there was none, and nothing is confirmed by it), and return the neighbour that disturbs
        most, if enough checks agree; None: no neighbour. ``since``: the time from which windows count for a neighbour.
        """
        if window is not None:
            self.windows.append(window)
        seen, worst = sorted({neighbour for window in self.windows for neighbour in window.beside}), None
        for neighbour in seen:
            slowdown, agree = (
                compare(split(self.select_windows_after(since(neighbour)), neighbour)),
                self._agree[neighbour],
            )
            if window is not None:
                agree.append(slowdown is not None and slowdown.is_disturbing(len(seen)))
            if (
                slowdown is not None
                and is_confirmed(agree)
                and (worst is None or slowdown.ratio > worst.slowdown.ratio)
            ):
                worst = Disturbance(neighbour, slowdown, sum(agree))
        return worst

    def select_windows_after(self, since: float) -> list[Window]:
        return [window for window in self.windows if window.ended > since]

    def forget(self, neighbour: str) -> None:
        """Discard the checks of a neighbour: the next verdict needs as many as the first."""
        self._agree.pop(neighbour, None)


def is_confirmed(looks: Sequence[bool], agreeing: int = AGREEING, of: int = CONFIRMATION) -> bool:
    """Return whether ``agreeing`` of the last ``of`` checks agree, including the newest."""
    return bool(looks) and looks[-1] and sum(list(looks)[-of:]) >= agreeing


def split(windows: Iterable[Window], neighbour: str) -> list[tuple[list[LoadPoint], list[LoadPoint]]]:
    """Return quiet and disturbed windows that differ only in this neighbour: same model, same other neighbours."""
    groups: defaultdict[object, tuple[list[LoadPoint], list[LoadPoint]]] = defaultdict(lambda: ([], []))
    for window in windows:
        quiet, disturbed = groups[window.revision, window.beside - {neighbour}]
        (disturbed if neighbour in window.beside else quiet).append(window.point)
    return [group for group in groups.values() if all(group)]


def compare(groups: Iterable[tuple[Sequence[LoadPoint], Sequence[LoadPoint]]]) -> Slowdown | None:
    """Compare quiet and disturbed windows, group by group; None: too few are comparable."""
    pairs = [pair for quiet, disturbed in groups for pair in pair_windows(quiet, disturbed)]
    if len(pairs) < MIN_PAIRS:
        return None
    effects = [math.log(disturbed.p95_s / quiet.p95_s) for quiet, disturbed in pairs]
    return Slowdown(
        pairs=len(pairs),
        quiet_p95_s=median(quiet.p95_s for quiet, _ in pairs),
        disturbed_p95_s=median(disturbed.p95_s for _, disturbed in pairs),
        ratio=math.exp(median(effects)),
        p=_test_signed_rank(effects),
    )


def pair_windows(quiet: Iterable[LoadPoint], disturbed: Iterable[LoadPoint]) -> list[tuple[LoadPoint, LoadPoint]]:
    """Pair each disturbed window with a quiet one of comparable load, as many as possible; each is used once."""
    unpaired, pairs = sorted(quiet), list[tuple[LoadPoint, LoadPoint]]()
    for slow in sorted(disturbed):
        while unpaired and unpaired[0].load < SAME_LOAD * slow.load:
            unpaired.pop(0)
        if unpaired and unpaired[0].load <= MAX_LOAD * slow.load:
            pairs.append((unpaired.pop(0), slow))
    return pairs


def compute_coverage(start: float, end: float, spans: Iterable[tuple[float, float]]) -> float:
    """Return the share of an interval that spans cover; they may overlap."""
    total, reached = 0.0, start
    for began, ended in sorted(spans):
        total += max(0.0, min(ended, end) - max(began, reached))
        reached = max(reached, min(ended, end))
    return total / (end - start) if end > start else 0.0


def _test_signed_rank(effects: Sequence[float]) -> float:
    from scipy.stats import wilcoxon

    if not any(effects):
        return 1.0
    _, p = map(float, wilcoxon(effects, alternative="greater"))
    return p
