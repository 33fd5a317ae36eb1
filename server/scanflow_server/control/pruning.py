"""What may be forgotten, of all that a server remembers. Pure: the time, and what there is, come in.

Nothing goes that runs or is wanted, waits for a person or for its turn, is guarded, or counts for a budget or a pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from scanflow_server.arbiter.identity import acted, when
from scanflow_server.settings import ServerSettings
from scanflow_server.store.intents import ActionRow

DAY_S = 86_400.0

_MARKS = 100
"""Into so many parts the time for which events are kept is cut: events go at most one part later than they might."""

_SHORTEST_S, _LONGEST_S = 1.0, 300.0
_LOOKS = 20
"""So often within the shortest time that something is kept it is looked for what may go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """How long, and how much, is kept; 0 is without end."""

    events: int
    events_s: float
    ended_s: float
    keys_s: float

    @classmethod
    def of(cls, settings: ServerSettings) -> Self:
        """Return what the settings say."""
        return cls(
            events=settings.keep_events,
            events_s=settings.keep_events_days * DAY_S,
            ended_s=settings.keep_ended_days * DAY_S,
            keys_s=settings.keep_keys_days * DAY_S,
        )

    @property
    def pause_s(self) -> float:
        """How long to wait from one look to the next, in seconds."""
        times = [one for one in (self.events_s, self.ended_s, self.keys_s) if one > 0]
        return min(_LONGEST_S, max(_SHORTEST_S, min(times, default=_LONGEST_S * _LOOKS) / _LOOKS))


class Mark(NamedTuple):
    """At that time, by the server's clock, the event of that number was the newest."""

    number: int
    at: float


def bookmark_now(last: Mark | None, newest: int, now: float, keep: Keep) -> bool:
    """Say whether it is to be noted which event is the newest."""
    if newest == 0 or keep.events_s == 0 or (last is not None and newest <= last.number):
        return False
    # A clock that was set back must not keep marks from being made.
    return last is None or not 0 <= now - last.at < keep.events_s / _MARKS


def gone_until(marks: Sequence[Mark], newest: int, now: float, keep: Keep) -> int:
    """Return up to which number events may go; the newest stays.

    How old an event is, is told by the marks, since its own time is what its sender's clock said.
    """
    by_count = newest - keep.events if keep.events > 0 else 0
    by_age = max((mark.number for mark in marks if is_old(mark.at, now, keep.events_s)), default=0)
    return max(0, min(max(by_count, by_age), newest - 1))


def is_old(at: float | None, now: float, kept_s: float) -> bool:
    """Say whether what ended at that time, if it did, was kept for long enough."""
    return at is not None and kept_s > 0 and now - at > kept_s


def is_open(stored: ActionRow) -> bool:
    """Say whether something is still to become of an action. A suggestion is only told; nobody has to answer it."""
    if stored.guard_until is not None or stored.reverting is not None:
        return True
    return stored.action.state in {"pending", "running"} and stored.action.decision.verdict != "suggest"


def needed_until(stored: ActionRow) -> float:
    """Return until when the arbiter may have to know of an action: its strategy's budget, and its pauses."""
    intent = stored.intent
    if not acted(stored.action):
        return 0.0
    window_s = 0.0 if intent.budget is None else intent.budget_window_s
    return when(stored.action) + max(window_s, intent.cool_down_s, intent.hysteresis_s)


def may_forget(stored: ActionRow, now: float, keep: Keep, *, surplus: bool) -> bool:
    """Say whether what became of an intent need not be known any more.

    ``surplus``: there are more than enough that came after it. That counts only where nothing was done about it.
    """
    action = stored.action
    if is_open(stored) or now <= needed_until(stored):
        return False
    ended = action.decision.at if action.ended is None else action.ended
    return is_old(ended, now, keep.ended_s) or (surplus and not acted(action))
