"""Whether a challenger is better than the champion, by points that both were evaluated on and neither was trained on.

Of paired answers only those points count on which one of the two is right and the other wrong. Whether more of them are
gained than lost is McNemar's question, answered by a binomial's mid-p-value (Fagerland et al., 2013); by how much, with
which interval, follows Bonett and Price (2012), whose adjustment of Wald's interval keeps its coverage with few points.
A challenger must be better on the current window, and not worse by more than a margin on every other slice: the
lower ends of the intervals decide.

A slice of few points cannot show that small a loss: at the full level it would keep out most models that are as good.
There both errors are held alike (compromise power analysis: Erdfelder, 1984), and with fewer points still the observed
loss must not be above the margin; several such slices are taken together. What such a slice may have lost beyond twice
the margin has to be outweighed: the lower end of the gain has to be above it. A challenger that is surely worse on any
one slice is rejected, however many points it has.

A challenger that is looked at again and again, as labels come, gets many chances to be lucky. The first look has 80 %
of the level and look k of the others ``1 / (k (k - 1))`` of the rest: these add up to the level however many there are.
That it is not worse is tested at the whole level each time: this alone promotes nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Literal

from scanflow.errors import InvalidError

CURRENT = "current"
"""The slice of the window that drifted. The others are earlier drifts and data without drift."""

MOST_NEEDED = 100_000

FIRST_LOOK = 0.8

UNSEEN = 2.0
"""A loss of so many margins that a slice of few points cannot exclude needs no gain to outweigh it."""

_EXACT_UP_TO = 5000
"""So many points decide exactly; of more, the normal approximation differs in no digit that is shown."""

Verdict = Literal["promote", "wait", "reject"]


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

    @property
    def gain(self) -> float:
        """By how much the challenger's share of right answers is higher, -1 to 1."""
        return (self.gained - self.lost) / self.n if self.n else 0.0

    @property
    def p(self) -> float:
        """How often a challenger that is no better gains more of the points, and half of how often as many: McNemar's
        mid-p-value. The exact test counts the latter whole, and is half as often wrong as its level allows."""
        discordant = self.gained + self.lost
        if discordant > _EXACT_UP_TO:
            return 0.5 * math.erfc((self.gained - discordant / 2) / math.sqrt(discordant / 2))
        more = sum(math.comb(discordant, k) for k in range(self.gained + 1, discordant + 1))
        return float((2 * more + math.comb(discordant, self.gained)) / 2 ** (discordant + 1))

    @property
    def estimate(self) -> tuple[float, float]:
        """The gain and its standard error, adjusted by a point gained and one lost."""
        gained, lost, n = (self.gained + 1) / (self.n + 2), (self.lost + 1) / (self.n + 2), self.n + 2
        return gained - lost, math.sqrt((gained + lost - (gained - lost) ** 2) / n)

    def interval(self, level: float) -> tuple[float, float]:
        """Return bounds of the gain; each is wrong with a probability of ``level``."""
        middle, error = self.estimate
        half = _z(level) * error
        return max(-1.0, middle - half), min(1.0, middle + half)

    def needed(self, bound: float, level: float) -> int:
        """Return how many more points tell whether the gain is above ``bound``, if all goes on as until now."""
        middle, error = self.estimate
        if middle == bound:
            return MOST_NEEDED
        n = math.ceil((_z(level) * error / (middle - bound)) ** 2 * (self.n + 2))
        return min(max(n - self.n, 1), MOST_NEEDED)

    def shows(self, margin: float, level: float) -> float:
        """Return how many standard errors a loss of up to ``margin`` can be told from none by, at that level of both
        errors: the level's, where the points suffice, and less down to 0."""
        return max(0.0, min(_z(level), margin / self.estimate[1] - _z(level)))

    def not_worse(self, margin: float, level: float) -> bool:
        """Say whether no more than ``margin`` was lost, as surely as so many points can show."""
        middle, error = self.estimate
        return middle - self.shows(margin, level) * error > -margin

    def unseen_loss(self, margin: float, level: float) -> float:
        """Return how much more than ``UNSEEN`` margins may be lost without so many points showing it, 0 or more."""
        worst, _ = self.interval(level)
        return max(0.0, -worst - UNSEEN * margin)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionDecision:
    """What is to become of a challenger, and why."""

    verdict: Verdict
    reason: str
    level: float
    """Of this look, one-sided; ``low`` and ``high`` are each wrong with this probability."""

    gain: float
    low: float
    high: float
    n: int
    p: float
    slices: tuple[Slice, ...]
    needed: int = 0
    """So many more labelled points, at least, before a challenger that waits may be promoted; 0 where no label of the
    current window would help, as it may lose on another slice."""

    def evidence(self, *, level: float = 0.05, **about: Any) -> dict[str, Any]:
        """Return all of it as JSON can hold it, each slice with the bounds of its gain, and what else is said."""
        slices = []
        for one in self.slices:
            low, high = one.interval(self.level if one.name == CURRENT else level)
            slices.append({**asdict(one), "gain": one.gain, "low": low, "high": high})
        return {**about, **asdict(self), "slices": slices}


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
        look: Which look at this challenger with so many points it is, from 1 on.

    Raises:
        InvalidError: no slice, or two, of the current window.
    """
    current = [one for one in slices if one.name == CURRENT]
    if len(current) != 1:
        raise InvalidError(f"There are {len(current)} slices named {CURRENT!r}. Evaluate both models on one such.")
    (now,) = current
    others = [one for one in slices if one.name != CURRENT]
    own = _spent(level, look)
    low, high = now.interval(own)
    waits: dict[str, int] = {}
    unsure: list[str] = []
    rejected: list[str] = []
    for one in others:
        _, best = one.interval(level)
        if best < -margin:
            rejected.append(f"worse on {one.name!r} by {_points(-one.gain)}, at least {_points(-best)}")
    wanted, wanted_by = min_gain, ""
    for one in _comparable(others, margin, level):
        if (unseen := one.unseen_loss(margin, level)) > wanted:
            wanted, wanted_by = unseen, f", and {_points(unseen)} are to outweigh what may be lost on {one.name!r}"
        if not one.not_worse(margin, level):
            worst, _ = one.interval(level)
            unsure.append(
                f"on {one.name!r} it may lose {_points(-worst)}, and {_points(margin)} are allowed; "
                f"about {one.needed(-margin, level):,} more points of that would tell"
            )
    if now.n < min_n:
        waits[f"evaluated on {now.n} points of {min_n}"] = min_n - now.n
    elif high <= min_gain:
        rejected.append(f"gains {_points(high)} at most, and more than {_points(min_gain)} is wanted")
    elif low <= wanted or now.p > own:
        waits[f"the gain may be as low as {_points(low)}{wanted_by}"] = now.needed(wanted, _spent(level, look + 1))
    needed = 0 if rejected else max(waits.values(), default=0)
    verdict: Verdict = "reject" if rejected else "wait" if waits or unsure else "promote"
    if rejected:
        reason = "; ".join(rejected)
    elif verdict == "wait":
        told = [f"{one}; about {needed:,} more labelled points would tell" for one in waits]
        reason = "; ".join([*told, *unsure])
    else:
        reason = f"better by {_points(now.gain)}, at least {_points(low)}; no other slice lost {_points(margin)}"
    return PromotionDecision(
        verdict=verdict,
        reason=reason,
        level=own,
        gain=now.gain,
        low=low,
        high=high,
        n=now.n,
        p=now.p,
        slices=tuple(slices),
        needed=needed,
    )


def _comparable(others: Sequence[Slice], margin: float, level: float) -> list[Slice]:
    """Return the slices, those of too few points to show the margin as one."""
    small = [one for one in others if one.shows(margin, level) == 0]
    if len(small) < 2:
        return list(others)
    counts = ("n", "champion_right", "challenger_right", "gained")
    whole = Slice(
        name=" and ".join(one.name for one in small), **{of: sum(getattr(one, of) for one in small) for of in counts}
    )
    return [*(one for one in others if one not in small), whole]


def sentence(evidence: Mapping[str, Any]) -> str:
    """Return in one line what was decided of a challenger, and why, from what :meth:`PromotionDecision.evidence` gave.

    What another program wrote, and does not hold that, is told by its ``reason`` alone.
    """
    try:
        return "; ".join(_parts(evidence))
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return str(evidence.get("reason", ""))


def _parts(evidence: Mapping[str, Any]) -> list[str]:
    slices = {one["name"]: one for one in evidence["slices"]}
    now, verdict = slices.pop(CURRENT), evidence["verdict"]
    old, new = _model(evidence, now, "champion"), _model(evidence, now, "challenger")
    what = {
        "promote": f"Replace {old} by {new}",
        "wait": f"Keep {old}; {new} waits",
        "reject": f"Keep {old}; {new} is rejected",
    }
    parts = [f"{what[verdict]}, n = {now['n']}, {_gain(now, ' points')}"]
    if verdict != "promote":
        parts.append(str(evidence["reason"]))
    if slices:
        changed = any(not one["low"] <= 0 <= one["high"] for one in slices.values())
        told = [f"{name} {_gain(one, n=True)}" for name, one in slices.items()]
        parts.append(f"other slices{'' if changed else ' unchanged'}: {', '.join(told)}")
    if evidence.get("drifted"):
        parts.append(f"drift in {', '.join(f'`{name}`' for name in evidence['drifted'])}")
    if evidence.get("run"):
        parts.append(f"run {evidence['run']}")
    return parts


def _model(evidence: Mapping[str, Any], now: Mapping[str, Any], who: str) -> str:
    number = evidence.get("version" if who == "challenger" else who)
    return f"{f'the {who}' if number is None else f'version {number}'} ({100 * now[f'{who}_right'] / now['n']:.1f} %)"


def _gain(part: Mapping[str, Any], unit: str = "", *, n: bool = False) -> str:
    low, high = (f"{100 * part[name]:+.1f}" for name in ("low", "high"))
    of = f", n = {part['n']}" if n else ""
    return f"{100 * part['gain']:+.1f}{unit} ({low} to {high}{of})"


def for_evaluation(point: bytes, *, share: float = 0.3) -> bool:
    """Say whether a point is for evaluation, and never for training, by what it is: the same point always is.

    Args:
        point: The point's bytes, without its label.
        share: Which share of all points is.
    """
    number = int.from_bytes(hashlib.sha256(b"evaluation:" + point).digest()[:8], "big")
    return number < share * 2**64


def _spent(level: float, look: int) -> float:
    return level * (FIRST_LOOK if look == 1 else (1 - FIRST_LOOK) / (look * (look - 1)))


def _z(level: float) -> float:
    return NormalDist().inv_cdf(1 - level)


def _points(share: float) -> str:
    return f"{100 * share:.1f} points"
