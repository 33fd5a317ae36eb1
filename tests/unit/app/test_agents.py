"""Agents as they are described."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scanflow as sf
from scanflow.errors import InvalidError
from tests.unit.app.making import made, message, refusal

HOURLY = sf.every(hours=1)


def test_an_agent_that_would_do_nothing_is_refused() -> None:
    with pytest.raises(InvalidError) as error:
        sf.Agent(name="watch")
    assert message(error) == "Agent 'watch' would do nothing. Give it a 'template', 'sensors' or 'modules'."


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"template": "plan"},
            "Agent 'watch': There is no template 'plan'. Did you mean 'planner'? Installed: checker, executor,",
        ),
        ({"parameters": {"m": {1}}}, "Agent 'watch': the parameter 'm' is a set, which cannot be written down."),
        ({"modules": "rules.py"}, "Agent 'watch': modules cannot be 'rules.py': it should be a list."),
        (
            {"sensors": [sf.Sensor(name="s", trigger=HOURLY)] * 2},
            "Agent 'watch' has two sensors named 's'. Rename one.",
        ),
        ({"sensors": [{"name": "s"}]}, "Sensor 's' needs the field 'trigger'."),
        ({"sensor": []}, "Agent 'watch' has no field 'sensor'. Did you mean 'sensors'?"),
        ({"name": "Watch Dog"}, "The agent name 'Watch Dog' cannot be used"),
        (
            {"memory": "1Gi"},
            "Agent 'watch' has no field 'memory'. It belongs in resources: resources=sf.Resources(memory=...).",
        ),
    ],
)
def test_a_wrong_field_is_refused_with_what_to_write(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidError) as error:
        made(sf.Agent, **{"name": "watch", "template": "checker", **fields})
    assert told in message(error)
    assert len(message(error).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "better"),
    [("count-runs", "count_runs"), ("a b", "a_b"), ("class", "on_class"), ("3rd", "on_3rd"), ("", "on")],
)
def test_a_sensor_is_named_as_a_function_is(name: str, better: str) -> None:
    with pytest.raises(InvalidError) as error:
        sf.Sensor(name=name, trigger=HOURLY)
    assert message(error) == (
        f"Sensor {name!r} is called by its name, so that has to be a Python name. Write {better!r} instead."
    )
    assert sf.Sensor(name=better, trigger=HOURLY).name == better


@given(st.text(max_size=12))
def test_the_name_that_is_advised_is_taken(name: str) -> None:
    told = refusal(lambda: sf.Sensor(name=name, trigger=HOURLY))
    if told is not None:
        better = told.rpartition("Write ")[2].removesuffix(" instead.")[1:-1]
        assert sf.Sensor(name=better, trigger=HOURLY).name == better


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"trigger": "1h"}, "Sensor 's': trigger cannot be '1h': it has no 'kind', which says what it is."),
        (
            {"trigger": {"kind": "hourly"}},
            "Sensor 's': trigger cannot be {'kind': 'hourly'}: its kind should be one of 'interval'",
        ),
        ({"nodes": "train"}, "Sensor 's': nodes cannot be 'train': it should be a list."),
        ({"function": "count"}, "Sensor 's': The function 'count' cannot be read. Write 'file.py:name'"),
        ({"parameters": {"m": {1}}}, "Sensor 's': the parameter 'm' is a set"),
    ],
)
def test_a_wrong_field_of_a_sensor_is_refused_with_what_to_write(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidError) as error:
        made(sf.Sensor, **{"name": "s", "trigger": HOURLY, **fields})
    assert message(error).startswith(told)
