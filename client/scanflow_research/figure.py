"""A table or figure of a source: its claims, and whether they hold here. Pure.

A source's figure was measured on another machine, so its numbers are no measure for ours. What it *shows* is a ratio:
two arms of an experiment, of which one is better, worse, or the same. Each round of an experiment measures every arm,
and the ratios of the rounds have an interval of 95 % (:mod:`scanflow.tuning.comparison`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from pydantic import with_config

Expectation = Literal["more", "less", "same", "at least"]
Verdict = Literal["holds", "holds in part", "does not hold", "cannot be tested here"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

SAME_TOLERANCE = 0.1
"""Ratios that differ from 1 by less than this look the same to a reader of a figure."""


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One sentence of a source about its figure."""

    statement: str
    """In the source's terms, with its numbers."""

    metric: str = ""
    arm: str = ""
    base: str = ""
    """The arm that ``arm`` is divided by; empty: the metric itself is checked."""

    expect: Expectation = "more"
    published: float | None = None
    """The source's ratio, where it gives one; its middle, where it gives a range."""

    least: float = 0.0
    """For ``at least``."""

    untested: str = ""
    """Why it cannot be tested on this kind of machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One measurement of every arm."""

    arms: Mapping[str, Mapping[str, float]]
    """By arm, by metric."""

    curves: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    """By metric, by arm: one value for each request, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """The rounds of an experiment; without a round, the problem."""

    rounds: tuple[Round, ...] = ()
    problem: str = ""

    def select_values(self, arm: str, metric: str) -> list[float]:
        """Return the values of a metric of an arm, one for each round that has it."""
        values = (part.arms.get(arm, {}).get(metric, math.nan) for part in self.rounds)
        return [value for value in values if math.isfinite(value)]

    def compute_median(self, arm: str, metric: str) -> float | None:
        values = self.select_values(arm, metric)
        return statistics.median(values) if values else None

    def compute_ratios(self, arm: str, base: str, metric: str) -> list[float]:
        """Return the ratios of two arms, one for each round."""
        ratios = []
        for part in self.rounds:
            above, below = (part.arms.get(name, {}).get(metric, math.nan) for name in (arm, base))
            if above > 0 and below > 0:
                ratios.append(above / below)
        return ratios

    @property
    def arms(self) -> list[str]:
        """The arms, in the order in which they were first measured."""
        return list(dict.fromkeys(name for part in self.rounds for name in part.arms))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimResult:
    """A claim with its verdict and measurement."""

    claim: Claim
    verdict: Verdict
    measured: str
    """``1.31× (1.24 to 1.38)``, or why there is no value."""


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True, kw_only=True)
class FigurePanel:
    """One plot of a figure."""

    metric: str
    label: str
    """The label of the axis, with its unit."""

    arms: tuple[str, ...] = ()
    """The arms to draw; empty: all arms with the metric."""

    curve: bool = False
    """Draw the metric of each request, and not the medians of the rounds."""


@with_config(extra="forbid")
@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    name: str
    """Its name in commands: ``fig4.2``."""

    source: str
    title: str
    experiment: str = ""
    claims: tuple[Claim, ...] = ()
    panels: tuple[FigurePanel, ...] = ()
    cpu: str = ""
    """The maker of the CPU that it needs: ``AMD``; empty: any."""

    untested: str = ""
    """Why none of it can be measured on a machine of this kind; empty: it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureResult:
    figure: Figure
    findings: tuple[ClaimResult, ...]
    measured: Measurements
    simulated: bool = False

    @property
    def verdict(self) -> Verdict:
        """The verdict over all claims that could be tested."""
        tested = [finding.verdict == "holds" for finding in self.findings if finding.verdict != "cannot be tested here"]
        if not tested:
            return "cannot be tested here"
        return "holds" if all(tested) else "holds in part" if any(tested) else "does not hold"

    @property
    def reason(self) -> str:
        """Why it cannot be tested; empty: it was."""
        if self.verdict != "cannot be tested here":
            return ""
        reasons = [self.figure.untested, self.measured.problem, *(finding.measured for finding in self.findings)]
        return next((reason for reason in reasons if reason), "")


def evaluate(figure: Figure, measured: Measurements, *, simulated: bool = False) -> FigureResult:
    """Evaluate a figure's claims on the measurements of its experiment."""
    findings = tuple(check_claim(claim, measured) for claim in figure.claims)
    return FigureResult(figure=figure, findings=findings, measured=measured, simulated=simulated)


def check_claim(claim: Claim, measured: Measurements) -> ClaimResult:
    """Check a claim: ``more`` and ``less`` hold beyond the noise, ``same`` within it."""
    if claim.untested or measured.problem:
        return ClaimResult(claim=claim, verdict="cannot be tested here", measured=claim.untested or measured.problem)
    if not claim.base:
        return _check_value(claim, measured)
    from scanflow.tuning.comparison import compare

    ratios = measured.compute_ratios(claim.arm, claim.base, claim.metric)
    if not ratios:
        reason = f"{claim.arm} or {claim.base} was not measured: this machine has no room for it"
        return ClaimResult(claim=claim, verdict="cannot be tested here", measured=reason)
    comparison = compare(ratios)
    if comparison.pairs == 1:
        words = f"{comparison.ratio:.2f}× in one round, which does not show the noise"
        return ClaimResult(claim=claim, verdict="cannot be tested here", measured=words)
    holds = {
        "more": comparison.low > 1,
        "less": comparison.high < 1,
        "same": abs(comparison.ratio - 1) <= SAME_TOLERANCE or comparison.low <= 1 <= comparison.high,
        "at least": comparison.ratio >= claim.least,
    }[claim.expect]
    words = f"{comparison.ratio:.2f}× ({comparison.low:.2f} to {comparison.high:.2f})"
    return ClaimResult(claim=claim, verdict="holds" if holds else "does not hold", measured=words)


def _check_value(claim: Claim, measured: Measurements) -> ClaimResult:
    value = measured.compute_median(claim.arm, claim.metric)
    if value is None:
        return ClaimResult(claim=claim, verdict="cannot be tested here", measured=f"{claim.arm} was not measured")
    verdict: Verdict = "holds" if value >= claim.least else "does not hold"
    return ClaimResult(claim=claim, verdict=verdict, measured=f"{value:.3g} ({claim.least:g} at least)")
