"""Whether a canary is promoted, taken back, or watched on. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scanflow.backends.service_records import Judgement

__all__ = ["Conduct", "Verdict", "judge"]


@dataclass(frozen=True, slots=True)
class Conduct:
    """What one revision did since the judgement began."""

    requests: int = 0
    errors: int = 0
    mean_s: float | None = None
    p95_s: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision, and why, for people."""

    decision: Literal["promote", "take back", "wait"]
    reason: str


def judge(rule: Judgement, *, current: Conduct, canary: Conduct, elapsed_s: float) -> Verdict:
    """Return what becomes of the canary.

    Where the current revision answered nothing meanwhile, there is nothing to compare with: its value counts as 0, so
    that only ``slack`` lets a canary through. A canary that fails nothing always passes on ``errors``.
    """
    if canary.requests < rule.after_requests:
        seen = f"{canary.requests} of {rule.after_requests} requests"
        if elapsed_s >= rule.within_s:
            return Verdict("take back", f"it answered {seen} within {rule.within_s:g} s")
        return Verdict("wait", f"it has answered {seen}")
    mine, theirs = _value(rule, canary), _value(rule, current)
    limit = rule.ratio * theirs + rule.slack
    compared = f"{rule.metric} {mine:.4g} against at most {rule.ratio:g} x {theirs:.4g} + {rule.slack:g} = {limit:.4g}"
    return Verdict("promote" if mine <= limit else "take back", compared)


def _value(rule: Judgement, conduct: Conduct) -> float:
    if rule.metric == "errors":
        return conduct.errors / conduct.requests if conduct.requests else 0.0
    return (conduct.p95_s if rule.metric == "p95" else conduct.mean_s) or 0.0
