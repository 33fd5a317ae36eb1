"""The agent that looks: it reads the temperature, and tells the agent `heating` where it is not comfortable."""

import csv
from pathlib import Path

import scanflow as sf
from scanflow.agent import actuator, sensor

FOLDER = Path(__file__).parent
COMFORT = (20.0, 22.0)


@sensor(sf.every(seconds=1))
def read_temperature():
    """Return the room's newest temperature in °C, and the level of its heater."""
    file = FOLDER / "room.csv"
    rows = list(csv.DictReader(file.read_text().splitlines())) if file.exists() else []
    if not rows:
        return {"temperature": None, "level": 0}
    return {"temperature": float(rows[-1]["temperature"]), "level": int(rows[-1]["level"])}


def is_uncomfortable(reading):
    low, high = COMFORT
    return reading["temperature"] is not None and not low <= reading["temperature"] <= high


@actuator(path="/sensors/receive_reading", depender="heating")
def tell_heating(reading):
    return {"temperature": reading["temperature"], "level": reading["level"]}


sf.Strategy(name="tell", when=read_temperature, if_=is_uncomfortable, then=tell_heating)
