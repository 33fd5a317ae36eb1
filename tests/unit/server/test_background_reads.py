"""Readings in the background: nobody waits, each is made once, and its problem is said."""

from __future__ import annotations

import threading

import pytest

from scanflow.errors import InternalError, UnavailableError
from scanflow_server.background_reads import (
    LEAST_PAUSE_S,
    LONGEST_PAUSE_S,
    MAX_READINGS,
    OPENED_PAUSE_S,
    BackgroundReads,
)
from tests.waiting import wait_until


class Source:
    """What is read: it answers once it may."""

    def __init__(self) -> None:
        self.may_answer, self.reads, self.now = threading.Event(), 0, 100.0
        self.noticed = threading.Event()
        self.readings = BackgroundReads(self.noticed.set, clock=lambda: self.now)

    def read(self) -> int:
        self.reads += 1
        self.may_answer.wait(30)
        return self.reads

    def finish(self) -> None:
        self.may_answer.set()
        assert self.noticed.wait(30)
        self.noticed.clear()


def test_nobody_waits_and_what_was_read_stays_for_a_while() -> None:
    source = Source()
    assert [source.readings.get("a", source.read).value for _ in range(3)] == [None] * 3
    source.finish()
    reading = source.readings.get("a", source.read)
    assert (reading.value, reading.is_loading, source.reads) == (1, False, 1)
    source.now += LEAST_PAUSE_S + 1
    assert source.readings.get("a", source.read).value == 1, "it is shown while it is read again"
    source.finish()
    assert source.readings.get("a", source.read).value == 2


def test_what_took_long_is_read_again_within_minutes_and_at_once_when_it_is_opened() -> None:
    source = Source()
    source.readings.get("a", source.read)
    source.now += 2 * LONGEST_PAUSE_S
    source.finish()
    source.now += LONGEST_PAUSE_S + 1
    assert source.readings.get("a", source.read).is_loading, "it is not put off as long as its reading took"
    source.finish()
    source.now += OPENED_PAUSE_S + 1
    assert not source.readings.get("a", source.read).is_loading
    assert source.readings.get("a", source.read, is_opened=True).is_loading
    source.finish()
    assert source.readings.get("a", source.read, is_opened=True).value == 3
    assert source.reads == 3, "what was read a moment ago is not read again"


def test_a_problem_is_kept_and_tried_again_on_request() -> None:
    source = Source()
    source.may_answer.set()

    def fail() -> None:
        raise UnavailableError("No MLflow runs.")

    source.readings.get("a", fail)
    source.finish()
    reading = source.readings.get("a", source.read)
    assert (str(reading.problem), reading.value, source.reads) == ("No MLflow runs.", None, 0)
    source.readings.forget("a")
    source.readings.get("a", source.read)
    source.finish()
    assert source.readings.get("a", source.read).value == 1


def test_a_defect_is_a_problem_too() -> None:
    source = Source()
    source.readings.get("a", lambda: 1 // 0)
    source.finish()
    with pytest.raises(InternalError, match="ZeroDivisionError"):
        raise source.readings.get("a", source.read).problem or AssertionError


def test_readings_beyond_the_limit_are_forgotten() -> None:
    source = Source()
    for number in range(MAX_READINGS + 5):
        source.readings.get(number, source.read)
    source.may_answer.set()
    wait_until(lambda: source.readings.get(MAX_READINGS + 4, source.read).value is not None, "the last is read")
    assert source.reads <= MAX_READINGS + 1, "that which was begun, and those that are kept"
