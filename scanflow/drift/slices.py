"""Paired evaluation of two models on the same labelled points: the gain and its confidence.

Of paired answers only those points count on which one of the two is right and the other wrong. Whether more of them are
gained than lost is McNemar's question, answered by a binomial's mid-p-value (Fagerland et al., 2013); by how much, with
which interval, follows Bonett and Price (2012), whose adjustment of Wald's interval keeps its coverage with few points.

A slice of few points cannot show a small loss: at the full level it would keep out most models that are as good. There
both errors are held alike (compromise power analysis: Erdfelder, 1984), and with fewer points still the observed loss
must not be above what is allowed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, Field

from scanflow.errors import InvalidError

CURRENT = "current"
"""The slice of the drifted window. The other slices are earlier drifts and data without drift."""

CLEAN = "clean"
"""The slice of data without drift."""

WINDOW = "window "
"""Prefix of the names of slices of earlier windows with drift."""

_EXACT_UP_TO = 5000
"""Up to this many points are computed exactly; beyond that, the normal approximation differs in no printed digit."""


Count: TypeAlias = Annotated[
    int, BeforeValidator(lambda value: None if isinstance(value, bool) else value), Field(ge=0)
]
"""A count, also as text, where it is read from JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Both models' answers to the same ``n`` labelled points of one kind."""

    name: str
    n: Count
    champion_right: Count
    challenger_right: Count
    gained: Count
    """Points that the challenger answers correctly and the champion does not."""

    def __post_init__(self) -> None:
        """Reject counts that cannot be of the same points.

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
        """Points that the champion answers correctly and the challenger does not."""
        return self.gained - (self.challenger_right - self.champion_right)

    @property
    def gain(self) -> float:
        """The difference of the shares of correct answers, challenger minus champion, -1 to 1."""
        return (self.gained - self.lost) / self.n if self.n else 0.0

    @property
    def p(self) -> float:
        """The probability that a challenger that is no better gains more points, plus half the probability that
        it gains as many (McNemar's mid-p-value). The exact test counts the latter in full, and is wrong only half as
        often as its level allows."""
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

    def compute_interval(self, level: float) -> tuple[float, float]:
        """Return bounds of the gain; each is wrong with a probability of ``level``."""
        middle, error = self.estimate
        half = compute_quantile(level) * error
        return max(-1.0, middle - half), min(1.0, middle + half)

    def compute_critical_value(self, margin: float, level: float) -> float:
        """Return the number of standard errors that separates a loss of ``margin`` from none at that level of both
        errors: the level's quantile if the points suffice, else less, down to 0."""
        return max(0.0, min(compute_quantile(level), margin / self.estimate[1] - compute_quantile(level)))

    def is_not_worse(self, margin: float, level: float) -> bool:
        """Return whether no more than ``margin`` was lost, as far as this many points can show."""
        middle, error = self.estimate
        return middle - self.compute_critical_value(margin, level) * error > -margin


def compute_quantile(level: float) -> float:
    """Return the one-sided normal quantile of ``level``, in standard errors."""
    return NormalDist().inv_cdf(1 - level)


def format_window_name(run: str) -> str:
    """Return the slice name of the window of a detection run."""
    return f"{WINDOW}{run}"
