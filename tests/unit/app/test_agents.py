"""Agents as they are described."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.errors import InvalidError
from tests.unit.app.app_builders import message, refusal

HOURLY = sf.every(hours=1)


@pytest.mark.parametrize(
    ("name", "better"),
    [("count-runs", "count_runs"), ("a b", "a_b"), ("class", "on_class"), ("3rd", "on_3rd"), ("", "on")],
)
def test_a_sensor_is_named_as_a_function_is(name: str, better: str) -> None:
    with pytest.raises(InvalidError) as error:
        sf.Sensor(name=name, trigger=HOURLY)
    assert message(error) == (f"Sensor {name!r} needs a Python identifier as its name. Write {better!r} instead.")
    assert sf.Sensor(name=better, trigger=HOURLY).name == better


@given(st.text(max_size=12))
def test_the_name_that_is_advised_is_taken(name: str) -> None:
    message = refusal(lambda: sf.Sensor(name=name, trigger=HOURLY))
    if message is not None:
        better = message.rpartition("Write ")[2].removesuffix(" instead.")[1:-1]
        assert sf.Sensor(name=better, trigger=HOURLY).name == better
