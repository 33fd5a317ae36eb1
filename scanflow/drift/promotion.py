"""Whether a challenger takes over from the champion, by points that both were evaluated on and neither was trained on.

What decides is what the service answers: the gain over the traffic to be expected, in which each slice weighs as much
as its share of the recent predictions, and data of before, which may return, a little. The lower end of that gain's
interval has to be above what is wanted (a stratified estimate: Cochran, Sampling Techniques, 1977, 5.3). And on the
current window more points are gained than lost, and not by chance.

Beside that, no kind of data may lose much: as much as costs all traffic ``margin``, and ``worst`` at most. A slice that
people still ask for, and that surely loses more, rejects a challenger. Where nobody asks for it, or it is not sure, a
person decides: no label that people can give of the current window tells of another one.

A challenger that is looked at again and again, as labels come, gets many chances to be lucky. The first look has 80 %
of the level and look k of the others ``1 / (k (k - 1))`` of the rest: these add up to the level however many there are.
That it is not worse is tested at the whole level each time: this alone promotes nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from scanflow.drift.slices import CURRENT, Slice, quantile
from scanflow.errors import InvalidError

FIRST_LOOK = 0.8

LEAST_TRAFFIC = 0.02
"""A slice with so large a share of the recent predictions is one that people still ask for."""

SURER = 50
"""A loss of twice ``worst`` has to be so much less likely than the level says: however few points a slice has, nobody
loses a tenth of what they ask for unless a person agrees."""

Verdict = Literal["promote", "ask", "wait", "reject"]
"""``ask``: it is better, but a person has to say whether what it may lose is worth it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionDecision:
    """What is to become of a challenger, and why."""

    verdict: Verdict
    reason: str
    level: float
    """Of this look, one-sided; ``low`` and ``high`` are each wrong with this probability."""

    gain: float
    """By how much more of the traffic to be expected the challenger answers right, -1 to 1."""

    low: float
    high: float
    n: int
    """Points of the current window."""

    p: float
    """Of the current window: see :attr:`Slice.p`."""

    slices: tuple[Slice, ...]
    traffic: Mapping[str, float]
    """The share of each slice in the traffic to be expected."""

    needed: int = 0
    """So many more labelled points of the current window, about, before a challenger that waits may be promoted."""

    def evidence(self, *, level: float = 0.05, **about: Any) -> dict[str, Any]:
        """Return all of it as JSON can hold it, each slice with the bounds of its gain, and what else is said."""
        slices = []
        for one in self.slices:
            low, high = one.interval(self.level if one.name == CURRENT else level)
            slices.append({**asdict(one), "gain": one.gain, "low": low, "high": high})
        return {**about, **asdict(self), "slices": slices}


@dataclass(frozen=True, slots=True, kw_only=True)
class _WeighedGain:
    """The gain over some traffic, and its standard error; of these, the current window's part."""

    middle: float
    error: float
    own: float

    @classmethod
    def of(cls, slices: Sequence[Slice], traffic: Mapping[str, float]) -> _WeighedGain:
        parts = {one.name: (traffic[one.name], *one.estimate) for one in slices if traffic.get(one.name)}
        weight, _, error = parts.get(CURRENT, (0.0, 0.0, 0.0))
        return cls(
            middle=sum(weight * gain for weight, gain, _ in parts.values()),
            error=math.sqrt(sum((weight * error) ** 2 for weight, _, error in parts.values())),
            own=weight * error,
        )

    def interval(self, level: float) -> tuple[float, float]:
        half = quantile(level) * self.error
        return max(-1.0, self.middle - half), min(1.0, self.middle + half)

    def needed(self, n: int, bound: float, level: float) -> float:
        """Return with how many more points of the current window, beside ``n``, it is told whether the gain is above
        ``bound``, if all goes on as until now; infinite: with none."""
        may_be = ((self.middle - bound) / quantile(level)) ** 2 - (self.error**2 - self.own**2)
        return max(1.0, math.ceil(self.own**2 * (n + 2) / may_be - (n + 2))) if may_be > 0 else math.inf


def expected_traffic(
    names: Sequence[str], recent: Mapping[str, float] | None = None, *, returning: float = 0.1
) -> dict[str, float]:
    """Return the share of each slice in the traffic to be expected; they add up to 1.

    Args:
        names: The slices, ``current`` among them.
        recent: The share of each in the recent predictions, as far as that is known; the rest is current.
        returning: The share of what may return, divided among all slices but the current one: 0 to 1.
    """
    known = {name: (recent or {}).get(name, 0.0) for name in names if name != CURRENT}
    if not known:
        return {CURRENT: 1.0}
    whole = max(1.0, sum(known.values()))
    now, floor = max(0.0, 1.0 - sum(known.values())), returning / len(known)
    return {CURRENT: (1 - returning) * now} | {
        name: (1 - returning) * share / whole + floor for name, share in known.items()
    }


def decide(
    slices: Sequence[Slice],
    *,
    recent: Mapping[str, float] | None = None,
    returning: float = 0.1,
    min_gain: float = 0.0,
    margin: float = 0.005,
    worst: float = 0.05,
    min_n: int = 50,
    most_n: int | None = None,
    level: float = 0.05,
    look: int = 1,
) -> PromotionDecision:
    """Say whether a challenger is to be promoted, by itself or by a person, waits for labels, or is rejected.

    Args:
        slices: One named ``current``, and others.
        recent: See :func:`expected_traffic`.
        returning: See :func:`expected_traffic`.
        min_gain: The lower end of the gain over the traffic to be expected has to be above this: 0 to 1.
        margin: Of all answers, so many may be lost by one slice other than the current one: 0 to 1.
        worst: Of its own answers, such a slice may lose so many: 0 to 1.
        min_n: The least number of points of the current slice.
        most_n: So many points of it people label at most. None: as many as are asked for.
        level: How often a challenger that is no better is promoted, at most.
        look: Which look at this challenger with so many points it is, from 1 on.

    Raises:
        InvalidError: no slice, or two, of the current window.
    """
    current = [one for one in slices if one.name == CURRENT]
    if len(current) != 1:
        raise InvalidError(f"There are {len(current)} slices named {CURRENT!r}. Evaluate both models on one such.")
    (now,) = current
    known = [one for one in slices if one.n or one is now]
    traffic = expected_traffic([one.name for one in known], recent, returning=returning)
    weighed, own = _WeighedGain.of(known, traffic), _spent(level, look)
    low, high = weighed.interval(own)
    others = _comparable([one for one in known if one is not now], traffic, recent or {}, margin, worst, level)
    surely = [said for one in others if one.has_traffic and (said := one.surely_worse(level))]
    unsure = [said for one in others if (said := one.surely_worse(level) or one.may_be_worse(level))]
    if high <= min_gain:
        surely.append(f"gains {_points(high)} at most, and more than {_points(min_gain)} is wanted")
    waits, needed = "", 0.0
    if now.n < min_n:
        waits, needed = f"evaluated on {now.n} points of {min_n}", min_n - now.n
    elif low <= min_gain or now.p > own:
        waits = f"the gain may be as low as {_points(low)}"
        needed = weighed.needed(now.n, min_gain, _spent(level, look + 1))
    verdict: Verdict = "reject" if surely else "wait" if waits else "ask" if unsure else "promote"
    if verdict == "wait":
        tell = "no label would tell" if math.isinf(needed) else f"about {needed:,.0f} more labelled points would tell"
        waits += f"; {tell}"
        if now.n + needed > (math.inf if most_n is None else most_n) or math.isinf(needed):
            verdict = "reject"
            waits += "" if most_n is None else f", and people label {most_n:,} at most"
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in traffic.items() if share)
    better = f"better by {_points(weighed.middle)} of the traffic to be expected ({shares}), at least {_points(low)}"
    reason = {"promote": [better], "ask": unsure, "wait": [waits], "reject": surely or [waits]}[verdict]
    return PromotionDecision(
        verdict=verdict,
        reason="; ".join(reason),
        level=own,
        gain=weighed.middle,
        low=low,
        high=high,
        n=now.n,
        p=now.p,
        slices=tuple(slices),
        traffic=traffic,
        needed=int(needed) if verdict == "wait" else 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _OtherSlice:
    """A slice other than the current one, how much of it may be lost, and what is to be ruled out: 0 to 1."""

    part: Slice
    allowed: float
    much: float
    has_traffic: bool

    def surely_worse(self, level: float) -> str | None:
        _, best = self.part.interval(level)
        if best >= -self.allowed:
            return None
        return f"worse on {self.part.name!r} by {_points(-self.part.gain)}, at least {_points(-best)}{self._limit}"

    def may_be_worse(self, level: float) -> str | None:
        least, _ = self.part.interval(level / SURER)
        if self.part.not_worse(self.allowed, level) and least > -self.much:
            return None
        low, _ = self.part.interval(level)
        return f"on {self.part.name!r} it may lose {_points(-low)}{self._limit}"

    @property
    def _limit(self) -> str:
        return f", and {_points(self.allowed)} are allowed"


def _comparable(
    others: Sequence[Slice],
    traffic: Mapping[str, float],
    recent: Mapping[str, float],
    margin: float,
    worst: float,
    level: float,
) -> list[_OtherSlice]:
    """Return the slices; those that nobody asks for, with too few points to show what they may lose, as one."""

    def with_limit(part: Slice, share: float, now: float = 0.0) -> _OtherSlice:
        allowed = worst if share == 0 else min(worst, margin / share)
        return _OtherSlice(part=part, allowed=allowed, much=2 * worst, has_traffic=now >= LEAST_TRAFFIC)

    found = [with_limit(one, traffic[one.name], recent.get(one.name, 0.0)) for one in others]
    small = [one.part for one in found if not one.has_traffic and one.part.shows(one.allowed, level) == 0]
    if len(small) < 2:
        return found
    counts = ("n", "champion_right", "challenger_right", "gained")
    names = " and ".join(one.name for one in small)
    whole = Slice(name=names, **{of: sum(getattr(one, of) for one in small) for of in counts})
    rest = [one for one in found if one.part not in small]
    return [*rest, with_limit(whole, sum(traffic[one.name] for one in small))]


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
        "ask": f"Replace {old} by {new} if a person says so",
        "wait": f"Keep {old}; {new} waits",
        "reject": f"Keep {old}; {new} is rejected",
    }
    parts = [f"{what[verdict]}, n = {now['n']}, {_gain(now, ' points')}"]
    traffic = {name: share for name, share in (evidence.get("traffic") or {}).items() if share}
    if len(traffic) > 1:
        shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in traffic.items())
        parts.append(f"of the traffic to be expected {_gain(evidence)}: {shares}")
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


def _points(share: float) -> str:
    return f"{100 * share:.1f} points"
