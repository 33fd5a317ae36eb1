"""What the agents do, without a server: the rules are functions, and what follows from them are values."""

import json
from types import SimpleNamespace

import heating
import pytest
import thermometer
from heater import SetHeater

from scanflow.agent import primitives


@pytest.mark.parametrize(
    ("temperature", "told"), [(None, False), (19.9, True), (20.0, False), (22.0, False), (22.1, True)]
)
def test_what_is_comfortable_is_not_told(temperature, told):
    assert thermometer.is_uncomfortable({"temperature": temperature, "level": 1}) is told


def test_the_newest_row_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(thermometer, "FOLDER", tmp_path)
    assert thermometer.read_temperature() == {"temperature": None, "level": 0}
    (tmp_path / "room.csv").write_text("second,outside,temperature,level\n0,8,20,1\n0.5,8,19.5,2\n")
    assert thermometer.read_temperature() == {"temperature": 19.5, "level": 2}


def test_a_cold_room_is_heated_more_until_the_heater_can_do_no_more():
    cold = {"temperature": 18.0, "level": 2}
    assert heating.is_cold(cold)
    assert heating.heat_more(cold) == primitives.set_heater("room", level=3)
    assert not heating.is_cold({"temperature": 18.0, "level": 6})
    assert heating.heat_less({"temperature": 23.0, "level": 1}) == primitives.set_heater("room", level=0)


def test_the_call_carries_the_reading():
    reading = {"temperature": 18.0, "level": 2}
    call = thermometer.tell_heating.call(reading)
    assert (call.agent, call.sensor, call.kwargs) == ("heating", "receive_reading", reading)


def test_the_primitive_writes_the_level_and_says_how_to_take_it_back(tmp_path):
    (tmp_path / "heater.json").write_text('{"level": 1}')
    undone = []
    context = SimpleNamespace(
        get_application=lambda: SimpleNamespace(application=SimpleNamespace(app_dir=tmp_path)),
        undo=lambda name, arguments: undone.append((name, arguments)),
    )
    result = SetHeater("room", level=2).carry_out(context)
    assert result.result == {"before": 1, "level": 2}
    assert undone == [("set_heater", {"workflow": "room", "level": 1})]
    assert json.loads((tmp_path / "heater.json").read_text()) == {"level": 2}
