"""How a state looks, everywhere: a mark and a colour, so that a reader who sees no colours can tell states apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class StateLook(NamedTuple):
    mark: str
    """One character, which says the same as the colour."""

    colour: str
    """A key of :data:`scanflow.drawing.svg.COLOURS`."""


_LOOKS: Mapping[StateLook, str] = {
    StateLook("✓", "green"): "succeeded started ready valid",
    StateLook("✗", "red"): "failed lost",
    StateLook("●", "blue"): "running",
    StateLook("·", "soft"): "pending starting draining",
    StateLook("–", "soft"): "skipped empty idle observed expired",
    StateLook("■", "violet"): "stopped refused revoked",
    StateLook("!", "amber"): "interrupted degraded backup",
    StateLook("≡", "green"): "reused",
    StateLook("↻", "amber"): "waiting reverted",
    StateLook("?", "amber"): "unsupervised",
}

STATE_LOOKS: Mapping[str, StateLook] = {state: look for look, states in _LOOKS.items() for state in states.split()}
"""The look of each state of a run, a task, a service, an instance, a job or an action."""

UNKNOWN_STATE = StateLook("?", "soft")
"""The look of a state that is none of these, from a newer server."""


def get_state_look(state: str) -> StateLook:
    return STATE_LOOKS.get(state, UNKNOWN_STATE)
