"""What becomes of a connection whose instance is gone. Pure.

The client of such a connection has noticed nothing yet: the socket is open, and its request may have been read. What
may be done depends on how far the request was, and on whether it may be to blame.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Ending", "Fate", "Orphan", "Phase", "decide"]

Phase = Literal["idle", "waiting", "running", "answering"]
Ending = Literal["drained", "killed", "crashed", "stuck"]
"""How its instance ended: of its own will; by SIGKILL, which no request sends; any other way; or it was ended by us,
since it answered no more."""

Fate = Literal["take", "take fresh", "wait", "answer 502", "answer 503", "close"]
"""``take``: by any ready instance; ``take fresh``: only by one that began after the other ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """What is known of a connection without an instance."""

    phase: Phase
    ending: Ending | None = None
    """None: not known yet."""

    whole: bool = True
    """Whether all that was read of its request is at hand."""

    replays: int = 0
    """How often the request was tried before."""

    held_s: float = 0.0


def decide(orphan: Orphan, *, limit_s: float, ready: bool, fresh: bool, hope: bool) -> Fate:
    """Return what to do with a connection now.

    Args:
        orphan: the connection.
        limit_s: longest that one is held.
        ready: whether any instance could take it.
        fresh: whether one that began since could.
        hope: whether an instance may still become ready; without hope what needs one is not made to wait.
    """
    if orphan.phase == "answering":
        return "close"
    if orphan.phase != "idle" and not orphan.whole:
        return "answer 503"
    late = orphan.held_s >= limit_s
    if orphan.phase == "running":
        return _running(orphan, late=late, fresh=fresh, hope=hope)
    if ready:
        return "take"
    if late or not hope:
        return "close" if orphan.phase == "idle" else "answer 503"
    return "wait"


def _running(orphan: Orphan, *, late: bool, fresh: bool, hope: bool) -> Fate:
    """A request that ran may be what ended its instance: it is tried once more only where it cannot have been."""
    if orphan.ending is None:
        return "answer 503" if late else "wait"
    if orphan.replays > 0 or orphan.ending in {"crashed", "stuck"}:
        return "answer 502"
    if fresh:
        return "take fresh"
    return "answer 503" if late or not hope else "wait"
