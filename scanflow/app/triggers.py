"""The triggers of sensors (thesis Table 5.3)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Field

from scanflow.app.model import Model, Number, as_tuple, shorten
from scanflow.app.parameters import FrozenDict, Parameters
from scanflow.app.quantities import MAX_DURATION_S, Seconds
from scanflow.errors import InvalidError

MAX_NESTING = 20
MIN_INTERVAL_S = 0.01
_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_CRON_FIELDS: tuple[tuple[str, int, int, Sequence[str]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day", 1, 31, ()),
    ("month", 1, 12, "jan feb mar apr may jun jul aug sep oct nov dec".split()),
    ("weekday", 0, 7, "sun mon tue wed thu fri sat".split()),
)


def _check_interval(seconds: float) -> float:
    if seconds < MIN_INTERVAL_S:
        raise InvalidError(f"An interval of {seconds:g} s is too short. Write {MIN_INTERVAL_S:g} s or more.")
    return seconds


class Interval(Model):
    kind: Literal["interval"] = "interval"
    seconds: Annotated[Seconds, AfterValidator(_check_interval)]
    jitter: Number = Field(default=0.0, ge=0)
    """Each firing is delayed by a random number of seconds up to this, so that agents do not fire together."""


def _refuse_numbers(when: Any) -> Any:
    if isinstance(when, int | float):
        raise InvalidError(f"The time {shorten(when)} is not a date. Write one such as '2026-01-31T06:00:00Z'.")
    return when


def _check_zone(when: datetime) -> datetime:
    if when.tzinfo is None:
        raise InvalidError(f"The time {when.isoformat()!r} has no time zone. Write {when.isoformat() + 'Z'!r} for UTC.")
    return when


class Date(Model):
    kind: Literal["date"] = "date"
    when: Annotated[datetime, BeforeValidator(_refuse_numbers), AfterValidator(_check_zone)]


def _check_expression(expression: str) -> str:
    fields = parse_cron(expression)
    if len(fields.weekdays) == 7 and min(fields.days) > max(_MONTH_DAYS[month - 1] for month in fields.months):
        raise InvalidError(
            f"The cron expression {expression!r} never fires: none of its months has {min(fields.days)} days."
        )
    return expression


def _check_timezone(timezone: str) -> str:
    try:
        ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise InvalidError(
            f"The time zone {shorten(timezone)} is not known. Write one such as 'Europe/Madrid' or 'UTC'."
        ) from error
    return timezone


class Cron(Model):
    """Fires when the time matches five fields: minute, hour, day, month, weekday, as UNIX cron does."""

    kind: Literal["cron"] = "cron"
    expression: Annotated[str, AfterValidator(_check_expression)]
    timezone: Annotated[str, AfterValidator(_check_timezone)] = "UTC"


class CronFields(NamedTuple):
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""

    either: bool
    """Whether the day or the weekday is enough, as in UNIX cron if both are restricted."""


@lru_cache(maxsize=1024)
def parse_cron(expression: str) -> CronFields:
    texts = expression.split()
    if len(texts) != len(_CRON_FIELDS):
        raise InvalidError(
            f"The cron expression {expression!r} has {len(texts)} fields, not 5: minute, hour, day, month, "
            "weekday. Write '0 * * * *' for every full hour."
        )
    minutes, hours, days, months, weekdays = (
        frozenset(value for part in text.split(",") for value in _parse_cron_part(expression, part, *field))
        for text, field in zip(texts, _CRON_FIELDS, strict=True)
    )
    either = not texts[2].startswith("*") and not texts[4].startswith("*")
    return CronFields(minutes, hours, days, months, frozenset(day % 7 for day in weekdays), either)


class CallReceive(Model):
    """Fires when another agent, or a person, calls the sensor by its name."""

    kind: Literal["call"] = "call"


class EventTrigger(Model):
    """Fires when an event of this type arrives whose fields have these values."""

    kind: Literal["event"] = "event"
    type: str = Field(min_length=1)
    match: Parameters = Field(default_factory=FrozenDict)


def _check_depth(triggers: Sequence[Trigger]) -> Sequence[Trigger]:
    if _compute_depth(triggers) > MAX_NESTING:
        raise InvalidError(f"Triggers are nested more than {MAX_NESTING} deep. Flatten the inner ones.")
    checked: Sequence[Trigger] = as_tuple(triggers)
    return checked


def _compute_depth(triggers: Sequence[Trigger]) -> int:
    return 1 + max(
        (_compute_depth(trigger.triggers) for trigger in triggers if isinstance(trigger, AllOf | AnyOf)), default=0
    )


class AllOf(Model):
    kind: Literal["all_of"] = "all_of"
    triggers: Annotated[Sequence[Trigger], AfterValidator(_check_depth), Field(min_length=1)]


class AnyOf(Model):
    kind: Literal["any_of"] = "any_of"
    triggers: Annotated[Sequence[Trigger], AfterValidator(_check_depth), Field(min_length=1)]


Trigger = Annotated[Interval | Date | Cron | CallReceive | EventTrigger | AllOf | AnyOf, Field(discriminator="kind")]

AllOf.model_rebuild()
AnyOf.model_rebuild()


def every(
    *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0, jitter: float = 0.0
) -> Interval:
    """Return a trigger that fires at this interval: ``every(hours=1)``.

    Args:
        seconds: Seconds of the interval. The whole interval is the sum of all four, and at least 0.01 s.
        minutes: Minutes of the interval.
        hours: Hours of the interval.
        days: Days of the interval.
        jitter: Each firing is delayed by a random number of seconds up to this, so that agents do not fire together.
    """
    amounts: Mapping[str, tuple[Any, int]] = {
        "seconds": (seconds, 1),
        "minutes": (minutes, 60),
        "hours": (hours, 3600),
        "days": (days, 86_400),
    }
    for unit, (value, _) in amounts.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_DURATION_S:
            raise InvalidError(
                f"every({unit}={shorten(value)}) is not an interval. Write a number, as in every(minutes=5)."
            )
    return Interval(seconds=sum(value * size for value, size in amounts.values()), jitter=jitter)


def at(when: datetime) -> Date:
    """Return a trigger that fires once, at ``when``.

    Args:
        when: The time, with a time zone: ``datetime(2026, 1, 31, 6, tzinfo=UTC)``.
    """
    return Date(when=when)


def cron(expression: str, *, timezone: str = "UTC") -> Cron:
    """Return a trigger that fires when the time matches: ``cron("0 * * * *")`` is every full hour.

    When clocks are put forward, a time in the hour that they skip comes at once. When they are put back, the first of
    two equal times counts, unless the expression has every hour.

    Args:
        expression: Minute, hour, day, month and weekday, as UNIX cron reads them.
        timezone: The time zone of the expression: ``Europe/Madrid``.
    """
    return Cron(expression=expression, timezone=timezone)


def on_call() -> CallReceive:
    """Return a trigger that fires when the sensor is called by another agent or a person."""
    return CallReceive()


def on_event(type: str, **match: Any) -> EventTrigger:
    """Return a trigger that fires on an event of this type: ``on_event("run.failed", workflow="training")``.

    An agent gets the events of its own application, and those of another one if ``app`` names it.

    Args:
        type: The type of the event.
        match: Values that the event must have in its data, or as its ``app`` or ``subject``.
    """
    return EventTrigger(type=type, match=match)


def all_of(*triggers: Trigger) -> AllOf:
    """Return a trigger that fires once each of ``triggers`` has fired.

    Args:
        triggers: The triggers, one or more. They may be nested, up to 20 deep.
    """
    return AllOf(triggers=triggers)


def any_of(*triggers: Trigger) -> AnyOf:
    """Return a trigger that fires when one of ``triggers`` does.

    Args:
        triggers: The triggers, one or more. They may be nested, up to 20 deep.
    """
    return AnyOf(triggers=triggers)


def _parse_cron_part(expression: str, part: str, name: str, low: int, high: int, words: Sequence[str]) -> range:
    """Parse a part of a cron field, such as ``1-5`` or ``*/15``, into its values."""
    match = re.fullmatch(r"(\*|[0-9]{1,4}|[a-z]+)(?:-([0-9]{1,4}|[a-z]+))?(?:/([0-9]{1,4}))?", part.lower())
    problem = f"The cron expression {shorten(expression)}: {shorten(part)} cannot be a {name}."
    if match is None or (match[1] == "*" and match[2] is not None):
        raise InvalidError(f"{problem} Write a number, '*', '*/5', '1-5' or '1,15'.")
    if match[3] is not None and not 1 <= int(match[3]) <= high - low:
        raise InvalidError(f"{problem} The step after '/' must be from 1 to {high - low}.")
    bounds = [bound for bound in (match[1], match[2]) if bound not in {None, "*"}]
    values = [words.index(bound) + low if bound in words else int(bound) if bound.isdigit() else -1 for bound in bounds]
    if any(not low <= value <= high for value in values):
        raise InvalidError(f"{problem} It must be from {low} to {high}{', or ' + ' '.join(words) if words else ''}.")
    if bounds[1:] == ["sun"] and values[0] > 0:
        values[1] = 7  # mon-sun
    if values != sorted(values):
        last, first = (words[-1], words[0]) if bounds[0] in words else (high, low)
        raise InvalidError(f"{problem} The range runs backwards. Write '{bounds[0]}-{last},{first}-{bounds[1]}'.")
    begin, end = (low, high) if not values else (values[0], values[-1] if len(values) == 2 or not match[3] else high)
    return range(begin, end + 1, int(match[3] or 1))
