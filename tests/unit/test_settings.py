"""What can be set from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanflow.errors import InvalidError
from scanflow.settings import Settings


def test_without_variables_everything_has_its_default() -> None:
    settings = Settings.from_environment({})
    assert settings.home == Path.home() / ".scanflow"
    assert (settings.tracker_uri, settings.slots, settings.max_fan_out) == (None, None, 10_000)
    strange = {"SCANFLOW_HOME": "", "SCANFLOW_SLOTS": "", "SCANFLOW_OUTPUT_DIR": "/x", "scanflow_slots": "3"}
    assert Settings.from_environment(strange) == settings


def test_each_field_is_read_from_the_variable_of_its_name() -> None:
    values = {"HOME": "/srv/s", "TRACKER_URI": "sqlite:///x", "SLOTS": "3", "MAX_FAN_OUT": "5"}
    variables = {f"SCANFLOW_{name}": value for name, value in values.items()}
    settings = Settings.from_environment(variables)
    assert settings == Settings(home=Path("/srv/s"), tracker_uri="sqlite:///x", slots=3, max_fan_out=5)


@pytest.mark.parametrize(
    ("name", "values"),
    [("SCANFLOW_SLOTS", ["0", "-1", "many", "1.5", "nan"]), ("SCANFLOW_MAX_FAN_OUT", ["0", "9" * 5000])],
)
def test_a_value_that_cannot_be_used_is_reported_by_its_variable(name: str, values: list[str]) -> None:
    for value in values:
        with pytest.raises(InvalidError, match=rf"The environment variable {name}=.* is invalid: ") as error:
            Settings.from_environment({name: value})
        assert len(str(error.value)) < 300
