"""Which digits the demo sends, and how many a second, while the agents watch. Pure.

The agents decide; this only makes the data they see: clean until they have looked once, drifted from then on. While
they work less is sent, since a laptop has few cores; while the model is swapped, more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scanflow.agent.records import Event

FAST, SLOW, SWAP = 100.0, 4.0, 20.0
"""Predictions a second."""

_ACTIVITY = {
    "clean": "sending clean digits, until there are enough to check",
    "checking": "comparing the clean digits with the training data",
    "drifted": "sending drifted digits, until there are enough to check",
    "detecting": "comparing the drifted digits with the training data",
    "learning": "retraining the model on labelled drifted digits",
    "swapping": "swapping in the better model, and watching it",
    "promoted": "the new champion predicts drifted digits",
}


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of the demo, and its traffic."""

    name: Literal["clean", "checking", "drifted", "detecting", "learning", "swapping", "promoted"]
    kind: Literal["clean", "drifted"]
    rate: float

    @property
    def order(self) -> str:
        """Return the command to the traffic program: ``drifted 60``."""
        return f"{self.kind} {self.rate:g}"

    @property
    def activity(self) -> str:
        """Return what is going on, in words."""
        return _ACTIVITY[self.name]


FIRST = Phase("clean", "clean", FAST)
_DRIFTED = Phase("drifted", "drifted", FAST)


def phase_after(phase: Phase, event: Event) -> Phase:
    """Return the phase that follows on an event."""
    match phase.name, event.type:
        case "clean", _ if _starts_a_check(event):
            return Phase("checking", "clean", SLOW)
        case "drifted", _ if _starts_a_check(event):
            return Phase("detecting", "drifted", SLOW)
        case "drifted" | "detecting", "drift.found":
            return Phase("learning", "drifted", SLOW)
        case "learning", "model.judged" if event.data.get("better"):
            return Phase("swapping", "drifted", SWAP)
        case _, "model.promoted":
            return Phase("promoted", "drifted", FAST)
        case ("clean" | "checking", "drift.none" | "drift.found") | ("drifted" | "detecting", "drift.none"):
            return _DRIFTED
        case ("learning", "model.judged") | (_, "model.rejected"):
            return _DRIFTED
    return phase


def _starts_a_check(event: Event) -> bool:
    accepted = event.type == "intent" and event.data.get("verdict") == "act" and event.subject == "workflow/detector"
    return accepted or event.type == "predictions.counted"
