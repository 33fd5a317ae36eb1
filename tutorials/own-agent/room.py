"""A room, simulated: it loses heat to the outside, where a day takes 100 seconds, and gains some from its heater."""

import csv
import json
import math
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
STEP_S, LOSS, GAIN = 0.5, 0.12, 0.36


def simulate(seconds=100.0, step_s=STEP_S):
    """Write room.csv, a row for each half second; the heater is read from heater.json, as a real one would be."""
    heater, temperature = FOLDER / "heater.json", 21.0
    heater.write_text(json.dumps({"level": 2}))
    with (FOLDER / "room.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("second", "outside", "temperature", "level"))
        for number in range(int(seconds / step_s)):
            second = number * step_s
            outside = 8 + 6 * math.cos(2 * math.pi * second / 100)
            level = json.loads(heater.read_text() or '{"level": 0}')["level"]
            temperature += step_s * (LOSS * (outside - temperature) + GAIN * level)
            rows.writerow((second, round(outside, 2), round(temperature, 2), level))
            file.flush()
            time.sleep(step_s)


if __name__ == "__main__":
    simulate(float(sys.argv[1]) if len(sys.argv) > 1 else 100.0)
