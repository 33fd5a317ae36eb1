"""Whether a challenger is better than the champion, by points that both were evaluated on and neither was trained on.

Of paired answers only those points count on which one of the two is right and the other wrong. Whether more of them are
gained than lost is McNemar's question, answered exactly by a binomial; by how much, with which interval, follows Bonett
and Price (2012), whose adjustment of Wald's interval keeps its coverage with few points. A challenger must be better on
the current window, and not worse by more than a margin on every other slice: the lower ends of the intervals decide.

A challenger that is looked at again and again, as labels come, gets many chances to be lucky. The first look has 80 %
of the level and look k of the others ``1 / (k (k - 1))`` of the rest: these add up to the level however many there are.
That it is not worse is tested at the whole level each time: this alone promotes nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scipy import stats

from scanflow.errors import InvalidError

CURRENT = "current"
"""The slice of the window that drifted. The others are earlier drifts and data without drift."""

MOST_NEEDED = 100_000

FIRST_LOOK = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Both models' answers to the same ``n`` labelled points of one kind."""

    name: str
    n: int
    champion_right: int
    challenger_right: int
    gained: int
    """Points that the challenger has right and the champion wrong."""

    def __post_init__(self) -> None:
        """Refuse what cannot be counts of the same points.

        Raises:
            InvalidError: they cannot.
        """
        wrong = self.n - self.champion_right
        if not (0 <= self.gained <= min(self.challenger_right, wrong) and 0 <= self.lost <= self.champion_right):
            raise InvalidError(
                f"Slice {self.name!r}: of {self.n} points the champion cannot have {self.champion_right} right, the "
                f"challenger {self.challenger_right}, and {self.gained} the challenger alone. "
                "Count the same points for both."
            )

    @property
    def lost(self) -> int:
        """Points that the champion has right and the challenger wrong."""
        return self.gained - (self.challenger_right - self.champion_right)

    def gain(self) -> float:
        """Return by how much the challenger's share of right answers is higher, -1 to 1."""
        return (self.gained - self.lost) / self.n if self.n else 0.0

    def interval(self, level: float) -> tuple[float, float]:
        """Return bounds of the gain; each is wrong with a probability of ``level``."""
        gained, lost, n = (self.gained + 1) / (self.n + 2), (self.lost + 1) / (self.n + 2), self.n + 2
        middle = gained - lost
        half = float(stats.norm.isf(level)) * math.sqrt((gained + lost - middle**2) / n)
        return max(-1.0, middle - half), min(1.0, middle + half)

    def p(self) -> float:
        """Return how often a challenger that is no better gains as many of the points, by McNemar's exact test."""
        discordant = self.gained + self.lost
        return float(stats.binom.sf(self.gained - 1, discordant, 0.5)) if discordant else 1.0

    def needed(self, bound: float, level: float) -> int:
        """Return how many more points it takes until the lower end is above ``bound``, if all goes on as until now."""
        gained, lost = (self.gained + 1) / (self.n + 2), (self.lost + 1) / (self.n + 2)
        above = gained - lost - bound
        if above <= 0:
            return MOST_NEEDED
        variance = gained + lost - (gained - lost) ** 2
        n = math.ceil((float(stats.norm.isf(level)) / above) ** 2 * variance)
        return min(max(n - self.n, 1), MOST_NEEDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionDecision:
    """What is to become of a challenger, and why."""

    verdict: Literal["promote", "wait", "reject"]
    reason: str
    level: float
    """Of this look, one-sided."""

    gain: float
    low: float
    high: float
    n: int
    p: float
    slices: tuple[Slice, ...]
    needed: int = 0
    """So many more labelled points, at least, before a challenger that waits may be promoted."""

    def interval_of(self, part: Slice) -> tuple[float, float]:
        """Return the bounds of one slice's gain."""
        return part.interval(self.level)


def decide(
    slices: Sequence[Slice],
    *,
    min_gain: float = 0.0,
    margin: float = 0.01,
    min_n: int = 50,
    level: float = 0.05,
    look: int = 1,
) -> PromotionDecision:
    """Say whether a challenger is to be promoted, waits for labels, or is rejected.

    Args:
        slices: One named ``current``, and others.
        min_gain: The lower end of the gain on the current slice has to be above this: 0 to 1.
        margin: The lower end of the gain on every other slice has to be above minus this: 0 to 1.
        min_n: The least number of points of the current slice.
        level: How often a challenger that is no better is promoted, at most.
        look: Which look at this challenger it is, from 1 on.

    Raises:
        InvalidError: no slice, or two, of the current window.
    """
    current = [one for one in slices if one.name == CURRENT]
    if len(current) != 1:
        raise InvalidError(f"There are {len(current)} slices named {CURRENT!r}. Evaluate both models on one such.")
    (now,) = current
    others = [one for one in slices if one.name != CURRENT]
    own = level * (FIRST_LOOK if look == 1 else (1 - FIRST_LOOK) / (look * (look - 1)))
    low, high = now.interval(own)
    found = _verdict(now, others, min_gain=min_gain, margin=margin, min_n=min_n, level=own, other_level=level)
    verdict, reason, needed = found
    return PromotionDecision(
        verdict=verdict,
        reason=reason,
        level=own,
        gain=now.gain(),
        low=low,
        high=high,
        n=now.n,
        p=now.p(),
        slices=tuple(slices),
        needed=needed,
    )


def _verdict(
    now: Slice, others: Sequence[Slice], *, min_gain: float, margin: float, min_n: int, level: float, other_level: float
) -> tuple[Literal["promote", "wait", "reject"], str, int]:
    low, high = now.interval(level)
    for one in others:
        _, best = one.interval(other_level)
        if best < -margin:
            return "reject", f"worse on {one.name!r} by {_points(-one.gain())}, at least {_points(-best)}", 0
    if now.n >= min_n and high <= min_gain:
        return "reject", f"better by {_points(high)} at most, and more than {_points(min_gain)} is wanted", 0
    waits: list[tuple[str, int]] = []
    if now.n < min_n:
        waits.append((f"evaluated on {now.n} points of {min_n}", min_n - now.n))
    elif low <= min_gain or now.p() > level:
        more = max(now.needed(min_gain, level), 1)
        waits.append((f"the gain may be as low as {_points(low)}", more))
    for one in others:
        worst, _ = one.interval(other_level)
        if worst <= -margin:
            waits.append((f"on {one.name!r} it may lose {_points(-worst)}", one.needed(-margin, other_level)))
    if waits:
        needed = max(more for _, more in waits)
        reason = "; ".join(why for why, _ in waits)
        return "wait", f"{reason}; about {needed} more labelled points would tell", needed
    return (
        "promote",
        f"better by {_points(now.gain())}, at least {_points(low)}; no other slice lost {_points(margin)}",
        0,
    )


def _points(share: float) -> str:
    return f"{100 * share:.1f} points"


def for_evaluation(point: bytes, *, share: float = 0.3) -> bool:
    """Say whether a point is for evaluation, and never for training, by what it is: the same point always is.

    Args:
        point: The point's bytes, without its label.
        share: Which share of all points is.
    """
    number = int.from_bytes(hashlib.sha256(b"evaluation:" + point).digest()[:8], "big")
    return number < share * 2**64
