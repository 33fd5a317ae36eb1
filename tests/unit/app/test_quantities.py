"""Cores, bytes and durations as people write them."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.app.quantities import (
    MAX_DURATION_S,
    MAX_MEMORY,
    MIN_MEMORY,
    format_bytes,
    format_cpu,
    format_duration,
    format_memory,
    parse_cpu,
    parse_duration,
    parse_memory,
    round_memory,
)
from scanflow.errors import InvalidError
from tests.unit.app.app_builders import message, script

NO_NUMBERS: tuple[Any, ...] = (
    math.nan,
    math.inf,
    True,
    False,
    "",
    [],
    "nan",
    "1e3",
    "9" * 400,
    pytest.param(10**5000, id="huge"),
    -1,
    0,
)
UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


@given(st.integers(MIN_MEMORY, MAX_MEMORY))
def test_memory_survives_being_written_and_read(size: int) -> None:
    assert parse_memory(format_memory(size)) == size
    assert parse_memory(size) == size
    assert sf.Resources(memory=size).memory_bytes == size


@given(st.integers(1, 10**6))
def test_cores_survive_being_written_and_read(thousandths: int) -> None:
    text = format_cpu(thousandths / 1000)
    assert parse_cpu(text) == thousandths / 1000
    assert text.endswith("m") == bool(thousandths % 1000)


@given(st.integers(1, 4096), st.sampled_from(["Mi", "Gi", "Ti", "M", "G", "T"]))
def test_a_unit_multiplies(amount: int, unit: str) -> None:
    assert parse_memory(f"{amount}{unit}") == parse_memory(f" {amount} {unit} ") == amount * UNITS[unit]


@given(st.text(st.characters(categories=["Lu", "Ll"], max_codepoint=127), min_size=1, max_size=4))
def test_a_unit_that_is_none_is_refused_with_those_there_are(unit: str) -> None:
    if unit in {*UNITS, "Pi", "P", "Ei", "E"}:
        return
    with pytest.raises(InvalidError, match=r"unknown unit") as error:
        parse_memory(f"7{unit}")
    assert "Did you mean '7" in message(error) or "Write an amount such as '512Mi'" in message(error)


def test_gigabytes_are_distinguished_from_gibibytes() -> None:
    with pytest.raises(InvalidError) as error:
        sf.Resources(memory="5Gb")
    assert message(error) == (
        "Resources: memory '5Gb' has the unknown unit 'Gb'. Did you mean '5Gi' (powers of 1024) or "
        "'5G' (powers of 1000)?"
    )


@pytest.mark.parametrize("size", [4, "512", "0.1", "64k"])
def test_an_amount_without_its_unit_is_taken_for_what_it_is_a_slip(size: Any) -> None:
    with pytest.raises(InvalidError, match=r"too little to run in\. Write a unit, as in '512Mi'"):
        sf.Resources(memory=size)


@pytest.mark.parametrize(
    "value",
    [
        *NO_NUMBERS,
        *"Infinity Gi 1_000_000 \uff11Gi 100E -1Gi 0Gi 0x10 1Gi1Gi 1.2.3Gi".split(),
        -math.inf,
        "  ",
        {},
        b"1Gi",
    ],
)
def test_what_is_no_amount_of_memory_is_refused_in_one_short_line(value: Any) -> None:
    with pytest.raises(InvalidError) as error:
        sf.Resources(memory=value)
    assert message(error).startswith("Resources: memory ")
    assert "'4Gi'" in message(error)
    assert "\n" not in message(error)
    assert len(message(error)) < 200


@given(st.integers(1, 100_000_000))
def test_thousandths_of_a_core_are_read_exactly(thousandths: int) -> None:
    assert parse_cpu(f"{thousandths}m") == thousandths / 1000
    assert parse_cpu(thousandths / 1000) == thousandths / 1000


@pytest.mark.parametrize("value", [*NO_NUMBERS, *"-2 -500m 0.5m 1k ٣".split(), "2 cores", 1e-09, 1e308])
def test_what_is_no_number_of_cores_is_refused_in_one_short_line(value: Any) -> None:
    with pytest.raises(InvalidError) as error:
        sf.Resources(cpu=value)
    assert message(error).startswith("Resources: cpu ")
    assert "'500m'" in message(error)
    assert len(message(error)) < 200


@given(st.integers(0, 400), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_the_terms_of_a_duration_add_up(hours: int, minutes: int, seconds: int, ms: int) -> None:
    text = f"{hours}h{minutes}m{seconds}s{ms}ms"
    if hours == minutes == seconds == ms == 0:
        with pytest.raises(InvalidError, match="not above zero"):
            parse_duration(text)
    else:
        assert parse_duration(text) == pytest.approx(hours * 3600 + minutes * 60 + seconds + ms / 1000, rel=1e-12)


@given(st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=36_500)))
def test_a_timedelta_and_its_seconds_are_the_same_duration(delta: timedelta) -> None:
    assert parse_duration(delta) == parse_duration(delta.total_seconds()) == delta.total_seconds()


ODD_DURATIONS = (
    timedelta(0),
    timedelta(days=-1),
    timedelta.max,
    MAX_DURATION_S + 1,
    "9" * 400 + "h1s",
    "5 minutes",
    "1h x",
)


@pytest.mark.parametrize("value", [*NO_NUMBERS, *ODD_DURATIONS, *"0s -5m 5M 1w 10us --5 ٣s".split()])
def test_what_is_no_duration_is_refused_by_its_fields_name(value: Any) -> None:
    with pytest.raises(InvalidError) as error:
        script("train", timeout=value)
    assert message(error).startswith("Executor 'train': timeout ")
    assert "'90s'" in message(error)
    assert len(message(error)) < 200


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.251, "0.25 s"), (9.994, "9.99 s"), (12.34, "12.3 s"), (125, "2m 05s"), (3599.6, "1h 00m"), (3720, "1h 02m")],
)
def test_durations_are_shown_as_people_say_them(seconds: float, shown: str) -> None:
    assert format_duration(seconds) == shown


@given(st.floats(0, 1e9))
def test_every_duration_can_be_shown(seconds: float) -> None:
    assert 4 <= len(format_duration(seconds)) <= 12


@pytest.mark.parametrize(
    ("size", "message"),
    [(0, "0"), (1023, "1023"), (2**30 - 1, "1024Mi"), (24_684_084 << 10, "23.5Gi"), (7 << 40, "7Ti")],
)
def test_memory_is_shown_to_people_in_few_digits(size: int, message: str) -> None:
    assert round_memory(size) == message


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (28, "28 B"), (7858, "7.7 KiB"), (25 * 2**10, "25 KiB"), (2**20, "1 MiB"), (47 * 2**29, "23.5 GiB")],
)
def test_sizes_of_files_have_a_unit(size: int, text: str) -> None:
    assert format_bytes(size) == text
