"""What can be set from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from scanflow.errors import InvalidError
from scanflow.settings import Settings


def test_without_variables_everything_has_its_default() -> None:
    settings = Settings.from_environment({})
    assert settings.home == Path.home() / ".scanflow"
    assert (settings.tracker_uri, settings.slots, settings.max_fan_out) == (None, None, 10_000)


def test_each_field_is_read_from_the_variable_of_its_name() -> None:
    variables = {
        "SCANFLOW_HOME": "/srv/s",
        "SCANFLOW_TRACKER_URI": "sqlite:///x",
        "SCANFLOW_SLOTS": "3",
        "SCANFLOW_MAX_FAN_OUT": "5",
    }
    settings = Settings.from_environment(variables)
    assert settings == Settings(home=Path("/srv/s"), tracker_uri="sqlite:///x", slots=3, max_fan_out=5)


def test_an_empty_variable_counts_as_unset() -> None:
    assert Settings.from_environment({"SCANFLOW_HOME": "", "SCANFLOW_SLOTS": ""}) == Settings()


def test_variables_of_others_and_of_steps_are_left_alone() -> None:
    assert Settings.from_environment({"SCANFLOW_OUTPUT_DIR": "/x", "HOME_": "/y", "scanflow_slots": "3"}) == Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SCANFLOW_SLOTS", "0"),
        ("SCANFLOW_SLOTS", "-1"),
        ("SCANFLOW_SLOTS", "many"),
        ("SCANFLOW_SLOTS", "1.5"),
        ("SCANFLOW_SLOTS", "nan"),
        ("SCANFLOW_MAX_FAN_OUT", "0"),
        ("SCANFLOW_MAX_FAN_OUT", "9" * 5000),
    ],
)
def test_a_value_that_cannot_be_used_is_told_by_its_variable(name: str, value: str) -> None:
    with pytest.raises(InvalidError, match=rf"The environment variable {name}=.* is not usable: ") as error:
        Settings.from_environment({name: value})
    assert len(str(error.value)) < 300


def test_this_process_own_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANFLOW_SLOTS", "7")
    assert Settings.from_environment().slots == 7


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Settings().slots = 3  # type: ignore[misc]
