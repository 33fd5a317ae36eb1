"""An experiment: what is done once in each round, and what a machine needs for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scanflow_client.reproduction.figure import Round

Observe = Callable[[str], None]
"""Told what is measured at the moment."""

MeasureRound = Callable[[int], "Round"]
"""Measure every arm once. The number of the round is the seed of what is random in it, and turns the arms' order."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    name: str
    method: str
    """What is done, in a few sentences, with sizes and units."""

    rounds: int
    round_s: float
    """How long a round takes, roughly, on two cores."""

    find_problem: Callable[[], str | None]
    """Return why this machine cannot do it, and what to install where that helps; None: it can."""

    open: Callable[[Observe], AbstractContextManager[MeasureRound]]
    """A context: it makes ready what all rounds need, and leaves nothing behind."""

    simulated: bool = False
