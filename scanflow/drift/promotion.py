"""Decides whether a challenger replaces the champion, by points that both were evaluated on and neither trained on.

What decides is what the service answers: the gain over the expected traffic, in which each slice weighs as much
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

from pydantic import ConfigDict, Field

from scanflow.app.model import Model
from scanflow.drift.slices import CURRENT, Slice, compute_quantile
from scanflow.errors import InvalidError

__all__ = ["PromotionDecision", "PromotionEvidence", "decide", "for_evaluation"]

FIRST_LOOK_POWER = 0.8

MIN_TRAFFIC = 0.02
"""A slice with at least this share of the recent predictions still receives requests."""

SURER = 50
"""A loss of twice ``worst`` must be this many times less likely than the level: however few points a slice has, a
tenth of its requests is not lost without a person's approval."""

Verdict = Literal["promote", "ask", "wait", "reject"]
"""``ask``: it is better, but a person must decide whether its possible loss is acceptable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionDecision:
    """The decision about a challenger, and its reason."""

    verdict: Verdict
    """Whether to promote, to reject, to wait for more labels, or to ask a person."""

    reason: str
    """Why, as a sentence."""

    level: float
    """The level of this evaluation, one-sided; ``low`` and ``high`` are each wrong with this probability."""

    gain: float
    """The additional share of the expected traffic that the challenger answers correctly, -1 to 1."""

    low: float
    """The lower bound of the gain."""

    high: float
    """The upper bound of the gain."""

    n: int
    """Number of points of the current window."""

    p: float
    """The p-value of the current window: see :attr:`Slice.p`."""

    slices: tuple[Slice, ...]
    """The comparison on each slice of the data."""

    traffic: Mapping[str, float]
    """The share of each slice in the expected traffic."""

    needed: int = 0
    """About how many more labelled points of the current window a waiting challenger needs for its promotion."""

    def evidence(self, *, level: float = 0.05, **about: Any) -> PromotionEvidence:
        """Return the decision, each slice with the bounds of its gain at a level, together with ``about``."""
        slices: list[dict[str, Any]] = []
        for part in self.slices:
            low, high = part.compute_interval(self.level if part.name == CURRENT else level)
            slices.append({**asdict(part), "gain": part.gain, "low": low, "high": high})
        fields: dict[str, Any] = {**about, **asdict(self), "slices": slices}
        return PromotionEvidence(**fields)


class SliceEvidence(Model):
    """A slice on which a challenger was compared."""

    name: str
    n: int
    champion_right: int
    challenger_right: int
    gained: int = 0
    gain: float
    low: float
    high: float
    """The bounds of the gain."""


class PromotionEvidence(Model):
    """A decision about a challenger, and what it is about, as agents report and store it."""

    model_config = ConfigDict(extra="allow")

    verdict: Verdict
    """Whether to promote, to reject, to wait for more labels, or to ask a person."""

    reason: str
    """Why, as a sentence."""

    slices: tuple[SliceEvidence, ...] = ()
    """The comparison on each slice of the data."""

    traffic: Mapping[str, float] = Field(default_factory=dict)
    """The share of each slice in the expected traffic."""

    gain: float | None = None
    """None: nothing could be compared."""

    low: float | None = None
    """The lower bound of the gain."""

    high: float | None = None
    """The upper bound of the gain."""

    n: int = 0
    """Number of points of the current window."""

    needed: int = 0
    """About how many more labelled points a waiting challenger needs."""

    run: str = ""
    """The run that compared the models."""

    version: int | None = None
    """The challenger's; None: unknown."""

    champion: int | None = None
    """The version that it was compared with. None: unknown."""

    n_labelled: int = 0
    """The number of evaluation points that were labelled by then."""

    drifted: tuple[str, ...] = ()
    """The columns that had drifted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _WeighedGain:
    """The gain over some traffic, and its standard error; of these, the current window's part."""

    middle: float
    error: float
    own: float

    @classmethod
    def combine(cls, slices: Sequence[Slice], traffic: Mapping[str, float]) -> _WeighedGain:
        parts = {part.name: (traffic[part.name], *part.estimate) for part in slices if traffic.get(part.name)}
        weight, _, error = parts.get(CURRENT, (0.0, 0.0, 0.0))
        return cls(
            middle=sum(weight * gain for weight, gain, _ in parts.values()),
            error=math.sqrt(sum((weight * error) ** 2 for weight, _, error in parts.values())),
            own=weight * error,
        )

    def compute_interval(self, level: float) -> tuple[float, float]:
        half = compute_quantile(level) * self.error
        return max(-1.0, self.middle - half), min(1.0, self.middle + half)

    def estimate_missing_points(self, n: int, bound: float, level: float) -> float:
        """Estimate how many more points of the current window, beyond ``n``, show whether the gain is above ``bound``
        if the gain stays the same; infinite if no number does."""
        may_be = ((self.middle - bound) / compute_quantile(level)) ** 2 - (self.error**2 - self.own**2)
        return max(1.0, math.ceil(self.own**2 * (n + 2) / may_be - (n + 2))) if may_be > 0 else math.inf


def compute_expected_traffic(
    names: Sequence[str], recent: Mapping[str, float] | None = None, *, returning: float = 0.1
) -> dict[str, float]:
    """Return the share of each slice in the expected traffic; they add up to 1.

    Args:
        names: The slices, ``current`` among them.
        recent: The share of each in the recent predictions, as far as that is known; the rest is current.
        returning: The share of what may return, divided among all slices but the current one: 0 to 1.
    """
    shares = {name: (recent or {}).get(name, 0.0) for name in names if name != CURRENT}
    if not shares:
        return {CURRENT: 1.0}
    whole = max(1.0, sum(shares.values()))
    now, floor = max(0.0, 1.0 - sum(shares.values())), returning / len(shares)
    return {CURRENT: (1 - returning) * now} | {
        name: (1 - returning) * share / whole + floor for name, share in shares.items()
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
    """Decide whether a challenger is promoted, needs a person's approval, waits for labels, or is rejected.

    Args:
        slices: One named ``current``, and others.
        recent: See :func:`compute_expected_traffic`.
        returning: See :func:`compute_expected_traffic`.
        min_gain: The lower end of the gain over the expected traffic has to be above this: 0 to 1.
        margin: Of all answers, so many may be lost by one slice other than the current one: 0 to 1.
        worst: Of its own answers, such a slice may lose so many: 0 to 1.
        min_n: The least number of points of the current slice.
        most_n: So many points of it people label at most. None: as many as are asked for.
        level: How often a challenger that is no better is promoted, at most.
        look: Which look at this challenger with so many points it is, from 1 on.

    Raises:
        InvalidError: no slice, or two, of the current window.
    """
    current = [part for part in slices if part.name == CURRENT]
    if len(current) != 1:
        raise InvalidError(f"There are {len(current)} slices named {CURRENT!r}. Evaluate both models on exactly one.")
    (now,) = current
    evaluated = [part for part in slices if part.n or part is now]
    traffic = compute_expected_traffic([part.name for part in evaluated], recent, returning=returning)
    weighed, own = _WeighedGain.combine(evaluated, traffic), _spend_level(level, look)
    low, high = weighed.compute_interval(own)
    others = _set_limits([part for part in evaluated if part is not now], traffic, recent or {}, margin, worst, level)
    surely = [loss for other in others if other.has_traffic and (loss := other.describe_sure_loss(level))]
    unsure = [
        loss for other in others if (loss := other.describe_sure_loss(level) or other.describe_possible_loss(level))
    ]
    if high <= min_gain:
        surely.append(f"gains at most {_format_points(high)}, but more than {_format_points(min_gain)} is required")
    waits, needed = "", 0.0
    if now.n < min_n:
        waits, needed = f"evaluated on {now.n} points of {min_n}", min_n - now.n
    elif low <= min_gain or now.p > own:
        waits = f"the gain may be as low as {_format_points(low)}"
        needed = weighed.estimate_missing_points(now.n, min_gain, _spend_level(level, look + 1))
    verdict: Verdict = "reject" if surely else "wait" if waits else "ask" if unsure else "promote"
    if verdict == "wait":
        tell = (
            "more labels would not decide"
            if math.isinf(needed)
            else (f"about {needed:,.0f} more labelled points would decide")
        )
        waits += f"; {tell}"
        if now.n + needed > (math.inf if most_n is None else most_n) or math.isinf(needed):
            verdict = "reject"
            waits += "" if most_n is None else f", but people label at most {most_n:,}"
    gain, least = _format_points(weighed.middle), _format_points(low)
    better = f"better by {gain} on the expected traffic ({_format_traffic(traffic)}), at least {least}"
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
    """A slice other than the current one, the loss allowed in it, and the loss to be ruled out: 0 to 1."""

    part: Slice
    allowed: float
    large_loss: float
    has_traffic: bool

    def describe_sure_loss(self, level: float) -> str | None:
        _, best = self.part.compute_interval(level)
        if best >= -self.allowed:
            return None
        loss, least = _format_points(-self.part.gain), _format_points(-best)
        return f"worse on {self.part.name!r} by {loss}, at least {least}{self._limit}"

    def describe_possible_loss(self, level: float) -> str | None:
        least, _ = self.part.compute_interval(level / SURER)
        if self.part.is_not_worse(self.allowed, level) and least > -self.large_loss:
            return None
        low, _ = self.part.compute_interval(level)
        return f"on {self.part.name!r} it may lose {_format_points(-low)}{self._limit}"

    @property
    def _limit(self) -> str:
        return f", but {_format_points(self.allowed)} are allowed"


def _set_limits(
    others: Sequence[Slice],
    traffic: Mapping[str, float],
    recent: Mapping[str, float],
    margin: float,
    worst: float,
    level: float,
) -> list[_OtherSlice]:
    """Return the slices with their limits; those without traffic and with too few points to show a loss are merged."""

    def with_limit(part: Slice, share: float, now: float = 0.0) -> _OtherSlice:
        allowed = worst if share == 0 else min(worst, margin / share)
        return _OtherSlice(part=part, allowed=allowed, large_loss=2 * worst, has_traffic=now >= MIN_TRAFFIC)

    limited = [with_limit(part, traffic[part.name], recent.get(part.name, 0.0)) for part in others]
    small = [
        other.part
        for other in limited
        if not other.has_traffic and other.part.compute_critical_value(other.allowed, level) == 0
    ]
    if len(small) < 2:
        return limited
    counts = ("n", "champion_right", "challenger_right", "gained")
    names = " and ".join(part.name for part in small)
    whole = Slice(name=names, **{count: sum(getattr(part, count) for part in small) for count in counts})
    rest = [other for other in limited if other.part not in small]
    return [*rest, with_limit(whole, sum(traffic[part.name] for part in small))]


def format_decision(evidence: Mapping[str, Any]) -> str:
    """Format the evidence of a :meth:`PromotionDecision.evidence`, as JSON, in one line.

    Evidence of another form, by another program, is reduced to its ``reason``.
    """
    try:
        return "; ".join(_format_parts(PromotionEvidence(**evidence)))
    except (InvalidError, KeyError, TypeError, ZeroDivisionError):
        return str(evidence.get("reason", ""))


def _format_parts(evidence: PromotionEvidence) -> list[str]:
    slices = {part.name: part for part in evidence.slices}
    now = slices.pop(CURRENT)
    old = _format_model("champion", evidence.champion, now.champion_right / now.n)
    new = _format_model("challenger", evidence.version, now.challenger_right / now.n)
    what = {
        "promote": f"Replace {old} by {new}",
        "ask": f"Replace {old} by {new} if a person approves",
        "wait": f"Keep {old}; {new} waits",
        "reject": f"Keep {old}; {new} is rejected",
    }
    parts = [f"{what[evidence.verdict]}, n = {now.n}, {_format_gain(now, ' points')}"]
    traffic = {name: share for name, share in evidence.traffic.items() if share}
    if len(traffic) > 1:
        parts.append(f"gain on the expected traffic {_format_gain(evidence)}: {_format_traffic(traffic)}")
    if evidence.verdict != "promote":
        parts.append(evidence.reason)
    if slices:
        changed = any(not part.low <= 0 <= part.high for part in slices.values())
        gains = [f"{name} {_format_gain(part, n=part.n)}" for name, part in slices.items()]
        parts.append(f"other slices{'' if changed else ', no clear change'}: {', '.join(gains)}")
    if evidence.drifted:
        parts.append(f"drift in {', '.join(f'`{name}`' for name in evidence.drifted)}")
    return [*parts, f"run {evidence.run}"] if evidence.run else parts


def _format_model(who: str, number: int | None, share: float) -> str:
    return f"{f'the {who}' if number is None else f'version {number}'} ({100 * share:.1f} %)"


def _format_gain(part: SliceEvidence | PromotionEvidence, unit: str = "", *, n: int | None = None) -> str:
    gain, low, high = (f"{100 * (bound or 0.0):+.1f}" for bound in (part.gain, part.low, part.high))
    return f"{gain}{unit} ({low} to {high}{'' if n is None else f', n = {n}'})"


def _format_traffic(traffic: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in traffic.items() if share)


def for_evaluation(point: bytes, *, share: float = 0.3) -> bool:
    """Return whether a point is reserved for evaluation, by a hash of its bytes: the same for the same point.

    Args:
        point: The point's bytes, without its label.
        share: Which share of all points is.
    """
    number = int.from_bytes(hashlib.sha256(b"evaluation:" + point).digest()[:8], "big")
    return number < share * 2**64


def _spend_level(level: float, look: int) -> float:
    return level * (FIRST_LOOK_POWER if look == 1 else (1 - FIRST_LOOK_POWER) / (look * (look - 1)))


def _format_points(share: float) -> str:
    return f"{100 * share:.1f} points"
