"""When a service was not well, as periods to draw: degraded, its backup answered, it failed (thesis Fig. 5.15)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scanflow.agent.agent_records import Event
from scanflow.drawing.line_chart import EventLine, Period
from scanflow.drawing.states import get_state_look

TYPES = ("service.unready", "service.ready")
"""The types of events that say so."""

RESTARTED = "service.restarted"
"""The type of the event of an instance that ended and was started again, however short the time between."""

WORDS = {"backup": "backup answers"}


def list_unready_periods(events: Iterable[Event], service: str) -> Sequence[Period]:
    """Return the periods of a service in each state but its good ones, from the server's events in order of time.

    The last one has no end if it goes on.
    """
    periods: list[Period] = []
    for event in events:
        if event.type not in TYPES or event.subject != f"service/{service}":
            continue
        if periods and periods[-1].end is None:
            periods[-1] = periods[-1]._replace(end=event.at)
        if event.type == "service.unready":
            state = str(event.data.get("state"))
            look = get_state_look(state)
            periods.append(Period(event.at, None, f"{look.mark} {WORDS.get(state, state)}", look.colour))
    return periods


def describe_restart(event: Event) -> str:
    return f"instance {event.data.get('instance')} restarted"


def mark_restart(event: Event, address: str) -> EventLine:
    """Return the mark of a restart on a plot; ``address``: where the event is shown."""
    return EventLine(event.at, describe_restart(event), "amber", "!", address=address)
