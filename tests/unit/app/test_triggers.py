"""When a sensor fires, said as values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.app.triggers import AllOf, Date, Interval, Trigger
from scanflow.errors import InvalidError
from tests.unit.app.app_builders import message, triggers

RANGES = {"minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 7)}
POSITIONS = list(enumerate(RANGES.items()))


def expression(position: int, part: str) -> str:
    fields = ["*"] * 5
    fields[position] = part
    return " ".join(fields)


@given(triggers)
def test_a_trigger_survives_being_written_and_read(trigger: Trigger) -> None:
    assert sf.Sensor.model_validate({"name": "s", "trigger": trigger.model_dump(mode="json")}).trigger == trigger


@given(st.sampled_from(POSITIONS), st.data())
def test_what_is_inside_a_cron_field(field: tuple[int, tuple[str, tuple[int, int]]], data: st.DataObject) -> None:
    position, (_, (low, high)) = field
    first, last = sorted(data.draw(st.tuples(st.integers(low, high), st.integers(low, high))))
    step = data.draw(st.integers(1, high - low))
    part = data.draw(
        st.sampled_from([f"{first}", f"{first}-{last}", f"*/{step}", f"{first}/{step}", f"{first}-{last}/{step}"])
    )
    assert sf.cron(expression(position, f"{part},{last}")).expression == expression(position, f"{part},{last}")


@given(st.sampled_from(POSITIONS), st.integers(0, 200), st.data())
def test_what_is_outside_it(field: tuple[int, tuple[str, tuple[int, int]]], value: int, data: st.DataObject) -> None:
    position, (name, (low, high)) = field
    bad = value if value < low else high + 1 + value
    part = data.draw(st.sampled_from([f"{bad}", f"{low}-{bad}" if bad > high else f"{bad}-{high}", f"{low},{bad}"]))
    with pytest.raises(InvalidError) as error:
        sf.cron(expression(position, part))
    assert f"cannot be a {name}. It must be from {low} to {high}" in message(error)


@pytest.mark.parametrize(
    "text",
    [
        "* * * jan-dec *",
        "* * * * mon-fri",
        "* * * * mon-sun",
        "0 9 * FEB Sun",
        "* * 29 2 *",
        "* * 31 2 mon",
        "* * 31 1,4 *",
    ],
)
def test_names_and_rare_dates_are_taken(text: str) -> None:
    assert sf.cron(text).expression == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("* * * *", "has 4 fields, not 5: minute, hour, day, month, weekday. Write '0 * * * *' for every full hour."),
        ("", "has 0 fields, not 5"),
        ("@daily", "has 1 fields, not 5"),
        ("* * * * * *", "has 6 fields, not 5"),
        ("? * * * *", "'?' cannot be a minute. Write a number, '*', '*/5', '1-5' or '1,15'."),
        ("1,,2 * * * *", "'' cannot be a minute. Write a number"),
        ("1-2-3 * * * *", "'1-2-3' cannot be a minute. Write a number"),
        ("*-5 * * * *", "'*-5' cannot be a minute. Write a number"),
        ("-5 * * * *", "'-5' cannot be a minute. Write a number"),
        ("٣ * * * *", "'٣' cannot be a minute. Write a number"),
        ("*/0 * * * *", "'*/0' cannot be a minute. The step after '/' must be from 1 to 59."),
        ("*/90 * * * *", "'*/90' cannot be a minute. The step after '/' must be from 1 to 59."),
        ("*/" + "9" * 5000 + " * * * *", "cannot be a minute. Write a number"),
        ("9" * 5000 + " * * * *", "cannot be a minute. Write a number"),
        ("50-10 * * * *", "The range runs backwards. Write '50-59,0-10'."),
        ("* * * * fri-mon", "The range runs backwards. Write 'fri-sat,sun-mon'."),
        ("* * * nov-feb *", "The range runs backwards. Write 'nov-dec,jan-feb'."),
        ("* * * foo *", "It must be from 1 to 12, or jan feb mar apr may jun jul aug sep oct nov dec."),
        ("* * * * monday", "It must be from 0 to 7, or sun mon tue wed thu fri sat."),
        ("* * 30 2 *", "never fires: none of its months has 30 days"),
        ("* * 31 apr,jun,sep,nov *", "never fires: none of its months has 31 days"),
    ],
)
def test_what_is_no_cron_expression_says_what_is(text: str, reason: str) -> None:
    with pytest.raises(InvalidError) as error:
        sf.cron(text)
    assert message(error).startswith("Cron: The cron expression ")
    assert reason in message(error)
    assert len(message(error)) < 300


@pytest.mark.parametrize("given_back", ["50-59,0-10 * * * *", "* * * * fri-sat,sun-mon", "* * * nov-dec,jan-feb *"])
def test_what_a_message_says_to_write_is_taken(given_back: str) -> None:
    assert sf.cron(given_back).expression == given_back


def test_a_moment_may_be_text_and_an_interval_a_duration() -> None:
    assert sf.at(datetime(2026, 1, 31, 6, tzinfo=UTC)) == Date(when="2026-01-31T06:00:00Z")  # type: ignore[arg-type]  # as in a file
    assert Interval(seconds="1h30m").seconds == Interval(seconds=timedelta(minutes=90)).seconds == 5400


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 1000))
def test_an_interval_is_the_sum_of_its_parts(seconds: int, minutes: int, hours: int, days: int) -> None:
    interval = sf.every(seconds=seconds, minutes=minutes, hours=hours, days=days)
    assert interval.seconds == timedelta(seconds=seconds, minutes=minutes, hours=hours, days=days).total_seconds()


def test_groups_nest_but_not_without_end() -> None:
    trigger: Trigger = sf.on_call()
    for _ in range(20):
        trigger = sf.all_of(trigger)
    assert AllOf.model_validate_json(trigger.model_dump_json()) == trigger
    with pytest.raises(InvalidError, match="Triggers are nested more than 20 deep"):
        sf.any_of(trigger)
