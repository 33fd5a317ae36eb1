"""When schedules are due, and what of it nobody looked at."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.app.triggers import Cron, parse_cron
from scanflow_agents.host.trigger_times import (
    Scheduled,
    apply_jitter,
    count_between,
    find_first_after,
    find_last_until,
    format_time,
)
from tests.counting import count_instructions

ANCHOR = 1_790_000_000.123
DAY_S = 86_400.0


def parse_time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


intervals = st.builds(
    lambda seconds: sf.every(seconds=seconds), st.floats(0.01, 100_000, allow_nan=False, allow_infinity=False)
)
crons = st.builds(
    lambda minute, hour, day, month, weekday, zone: sf.cron(f"{minute} {hour} {day} {month} {weekday}", timezone=zone),
    st.sampled_from(["*/7", "0", "59", "3,33", "10-20/5"]),
    st.sampled_from(["*", "2", "1-3", "*/6", "23"]),
    st.sampled_from(["*", "*", "1", "13", "28-31", "*/10"]),
    st.sampled_from(["*", "*", "3", "oct-nov"]),
    st.sampled_from(["*", "*", "sun", "1-5", "7"]),
    st.sampled_from(["UTC", "Europe/Madrid", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"]),
)
schedules = st.one_of(intervals, crons, st.builds(lambda s: sf.at(datetime.fromtimestamp(s, UTC)), st.floats(1e9, 2e9)))


@given(schedules, st.floats(0, 40 * DAY_S), st.floats(0, 3 * DAY_S))
def test_due_times_found_one_by_one_are_those_that_are_counted(trigger: Scheduled, start: float, span: float) -> None:
    begin = ANCHOR + start
    end = min(begin + span, begin + 300 * getattr(trigger, "seconds", span))
    times = []
    due = find_first_after(trigger, begin, anchor=ANCHOR)
    while due is not None and due <= end:
        times.append(due)
        due = find_first_after(trigger, due, anchor=ANCHOR)
    assert times == sorted(set(times))
    assert count_between(trigger, begin, end, anchor=ANCHOR) == len(times)
    assert find_last_until(trigger, end, after=begin, anchor=ANCHOR) == (times[-1] if times else None)


@given(crons, st.integers(0, 400 * 24 * 60))
def test_a_cron_time_has_come_when_the_clock_on_the_wall_says_so(trigger: Cron, minutes: int) -> None:
    fields, zone = parse_cron(trigger.expression), ZoneInfo(trigger.timezone)
    moment = parse_time("2026-01-01T00:00:00Z") + minutes * 60.0
    wall = datetime.fromtimestamp(moment, zone)
    if wall.utcoffset() != datetime.fromtimestamp(moment - 7200, zone).utcoffset():
        return  # clocks were just changed: told below
    day, weekday = wall.day in fields.days, wall.isoweekday() % 7 in fields.weekdays
    shown = (
        wall.minute in fields.minutes
        and wall.hour in fields.hours
        and wall.month in fields.months
        and ((day or weekday) if fields.either else (day and weekday))
    )
    assert count_between(trigger, moment - 1, moment, anchor=0.0) == int(shown)


def test_an_interval_begins_one_interval_after_its_anchor() -> None:
    assert find_first_after(sf.every(hours=1), ANCHOR, anchor=ANCHOR) == ANCHOR + 3600
    assert find_last_until(sf.every(hours=1), ANCHOR + 3599, after=0, anchor=ANCHOR) is None
    assert count_between(sf.every(seconds=1), ANCHOR, ANCHOR + 7 * DAY_S, anchor=ANCHOR) == 7 * 86_400


def test_a_date_is_due_once() -> None:
    moment = parse_time("2026-02-03T04:05:06Z")
    trigger = sf.at(datetime.fromtimestamp(moment, UTC))
    assert find_first_after(trigger, moment - 1, anchor=0) == moment
    assert find_first_after(trigger, moment, anchor=0) is None


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        ("0 * * * *", "UTC", "2026-01-31T05:59:59Z", ["2026-01-31T06:00:00Z", "2026-01-31T07:00:00Z"]),
        ("30 9 * * mon-fri", "Europe/Madrid", "2026-10-23T12:00:00Z", ["2026-10-26T08:30:00Z", "2026-10-27T08:30:00Z"]),
        ("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", ["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"]),
        ("0 12 13 * fri", "UTC", "2026-03-01T00:00:00Z", ["2026-03-06T12:00:00Z", "2026-03-13T12:00:00Z"]),
        ("0 0 * * 7", "UTC", "2026-11-21T00:00:00Z", ["2026-11-22T00:00:00Z", "2026-11-29T00:00:00Z"]),
        ("0 0 * * mon-sun", "UTC", "2026-11-21T00:00:00Z", ["2026-11-22T00:00:00Z", "2026-11-23T00:00:00Z"]),
        # Clocks go from 02:00 to 03:00 (01:00 UTC) on 29 March, and from 03:00 to 02:00 (01:00 UTC) on 25 October.
        ("30 2 * * *", "Europe/Madrid", "2026-03-28T12:00:00Z", ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]),
        ("30 2 * * *", "Europe/Madrid", "2026-10-24T12:00:00Z", ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]),
        ("*/20 2-3 * * *", "Europe/Madrid", "2026-03-28T12:00:00Z", ["2026-03-29T01:00:00Z", "2026-03-29T01:20:00Z"]),
        ("30 * * * *", "Europe/Madrid", "2026-03-29T00:00:00Z", ["2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z"]),
        ("30 * * * *", "Europe/Madrid", "2026-10-25T00:00:00Z", ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"]),
        ("15 0 * * *", "America/Santiago", "2026-09-05T12:00:00Z", ["2026-09-06T04:00:00Z", "2026-09-07T03:15:00Z"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", ["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"]),
    ],
)
def test_cron_is_read_as_unix_reads_it(expression: str, zone: str, after: str, expected: list[str]) -> None:
    trigger, moment, times = sf.cron(expression, timezone=zone), parse_time(after), []
    for _ in expected:
        due = find_first_after(trigger, moment, anchor=0)
        assert due is not None
        moment = due
        times.append(format_time(due))
    assert times == expected


def test_decades_of_minutes_are_counted_without_walking_them() -> None:
    trigger = sf.cron("* * * * *", timezone="Europe/Madrid")
    begin, decade, end = (
        parse_time("1926-01-01T00:00:00Z"),
        parse_time("2016-01-01T00:00:00Z"),
        parse_time("2026-01-01T00:00:00Z"),
    )
    minutes = (end - decade) / 60
    counting = count_instructions(lambda: count_between(trigger, decade, end, anchor=begin))
    looking_back = count_instructions(lambda: find_last_until(trigger, end, after=begin, anchor=begin))
    assert max(counting, looking_back) < minutes, "not one instruction for each"
    assert count_between(trigger, decade, end, anchor=begin) == minutes
    assert count_between(trigger, begin, end, anchor=begin) == (end - begin) / 60
    assert find_last_until(trigger, end, after=begin, anchor=begin) == end


@given(st.floats(0, 50), st.floats(0, 1000), st.text(max_size=8))
def test_jitter_delays_by_at_most_its_limit_and_is_the_same_again(jitter: float, due: float, seed: str) -> None:
    trigger = sf.every(seconds=60, jitter=jitter)
    assert due - 1e-6 <= apply_jitter(trigger, due, seed) <= due + jitter + 1e-6
    assert apply_jitter(trigger, due, seed) == apply_jitter(trigger, due, seed)


def test_jitter_separates_agents() -> None:
    trigger = sf.every(seconds=60, jitter=30)
    assert len({apply_jitter(trigger, 60.0, f"agent-{index}") for index in range(100)}) > 90


def test_times_are_written_in_utc() -> None:
    assert format_time(parse_time("2026-01-31T07:00:00+01:00")) == "2026-01-31T06:00:00Z"
    assert timedelta(seconds=parse_time(format_time(0.5))) == timedelta(seconds=0.5)
