"""An experiment: its rounds, and the requirements on the machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scanflow_research.figure import Round

Observe = Callable[[str], None]
"""Called with a description of the current measurement."""

MeasureRound = Callable[[int], "Round"]
"""Measure every arm once. The number of the round is the random seed, and rotates the order of the arms."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    name: str
    method: str
    """Description in a few sentences, with sizes and units."""

    rounds: int
    round_s: float
    """Approximate duration of a round on two cores."""

    find_problem: Callable[[], str | None]
    """Return why this machine cannot run it, and what to install; None: it can."""

    open: Callable[[Observe], AbstractContextManager[MeasureRound]]
    """A context manager that prepares the rounds and cleans up."""

    simulated: bool = False


def find_core_problem(purpose: str = "") -> str | None:
    """Return a message if this machine has fewer than two cores, else None."""
    from scanflow.placement.sysfs import read_topology

    return f"two cores are needed{purpose}" if read_topology().effective_count < 2 else None


def read_cpu_field(name: str) -> str:
    """Return a field of this machine's first CPU, such as ``model name``; empty: the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
