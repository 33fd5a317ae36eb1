"""The agent that acts: it sets the heater a level higher or lower, and then waits to see what comes of it."""

import scanflow as sf
from scanflow.agent import primitives, sensor


@sensor(sf.on_call())
def receive_reading(temperature, level):
    return {"temperature": temperature, "level": level}


def is_cold(reading):
    return reading["temperature"] < 20 and reading["level"] < 6


def is_warm(reading):
    return reading["temperature"] > 22 and reading["level"] > 0


def heat_more(reading):
    return primitives.set_heater("room", level=reading["level"] + 1)


def heat_less(reading):
    return primitives.set_heater("room", level=reading["level"] - 1)


# Both change the heater. With the same priority above 0, the one leaves it to the other; else the first would own it.
sf.Strategy(name="heat_more", when=receive_reading, if_=is_cold, then=heat_more, cool_down=4, priority=1)
sf.Strategy(name="heat_less", when=receive_reading, if_=is_warm, then=heat_less, cool_down=4, priority=1)
