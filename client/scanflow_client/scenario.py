"""What the demo sends to its service while the agents watch: which pictures and how many a second. Pure.

The agents decide; the scenario only makes the world that they look at. It is clean until the agents have looked once,
and drifted from then on. While they work less is sent, since a laptop has few cores; while the model is swapped, more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scanflow.agent.records import Event

__all__ = ["BEGIN", "Scenario", "after"]

FAST, SLOW, SWAP = 100.0, 4.0, 20.0
"""Predictions a second."""

Phase = Literal["clean", "checking", "drifted", "detecting", "learning", "swapping", "promoted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Where the demo stands."""

    phase: Phase
    kind: Literal["clean", "drifted"]
    rate: float

    @property
    def order(self) -> str:
        """What the traffic program is told: ``drifted 60``."""
        return f"{self.kind} {self.rate:g}"

    @property
    def waits_for(self) -> str:
        """What people see while nothing happens."""
        return {
            "clean": "clean digits are sent, until there are enough to be checked",
            "checking": "the clean digits are compared with what the model knows",
            "drifted": "drifted digits are sent, until there are enough to be checked",
            "detecting": "the drifted digits are compared with what the model knows",
            "learning": "the model learns what it did not know",
            "swapping": "the better model is put to use, and watched",
            "promoted": "the new champion reads drifted digits",
        }[self.phase]


BEGIN = Scenario(phase="clean", kind="clean", rate=FAST)
_DRIFTED = Scenario(phase="drifted", kind="drifted", rate=FAST)


def after(scenario: Scenario, event: Event) -> Scenario:
    """Return where the demo stands once this happened."""
    match scenario.phase, event.type:
        case "clean", _ if _looks(event):
            return Scenario(phase="checking", kind="clean", rate=SLOW)
        case "clean" | "checking", "drift.none" | "drift.found":
            return _DRIFTED
        case "drifted", _ if _looks(event):
            return Scenario(phase="detecting", kind="drifted", rate=SLOW)
        case "drifted" | "detecting", "drift.none":
            return _DRIFTED
        case "drifted" | "detecting", "drift.found":
            return Scenario(phase="learning", kind="drifted", rate=SLOW)
        case "learning", "model.judged" if event.data.get("better"):
            return Scenario(phase="swapping", kind="drifted", rate=SWAP)
        case "learning", "model.judged":
            return _DRIFTED
        case _, "model.rejected":
            return _DRIFTED
        case _, "model.promoted":
            return Scenario(phase="promoted", kind="drifted", rate=FAST)
        case _:
            return scenario


def _looks(event: Event) -> bool:
    """Say whether enough was sent, so that agents begin to compare it."""
    begun = event.type == "intent" and event.data.get("verdict") == "act" and event.subject == "workflow/detector"
    return begun or event.type == "predictions.counted"
