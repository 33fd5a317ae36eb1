"""The tutorial from its first step to its picture, room.png: ``python run.py``, after `scanflow up`."""

import csv
import os
from pathlib import Path

import room
from app import app

import scanflow as sf

SERVER = os.environ.get("SCANFLOW_URL", "http://127.0.0.1:46666")  # as `scanflow up` says it


def draw(actions):
    """Draw the room's temperature and the heater's level, with a line for each action."""
    import matplotlib.pyplot as plt

    rows = list(csv.DictReader(Path("room.csv").read_text().splitlines()))
    columns = {name: [float(row[name]) for row in rows] for name in rows[0]}
    figure, (top, below) = plt.subplots(2, figsize=(8, 4.5), height_ratios=(3, 1), sharex=True, layout="constrained")
    top.axhspan(20, 22, color="tab:green", alpha=0.2, label="comfortable")
    top.plot(columns["second"], columns["temperature"], color="tab:red", label="room")
    top.plot(columns["second"], columns["outside"], color="tab:blue", label="outside")
    top.set(ylabel="°C", title=f"{len(actions)} actions of the agent 'heating' kept the room warm")
    top.legend(loc="lower left", ncols=3)
    below.step(columns["second"], columns["level"], where="post", color="black")
    below.set(ylabel="heater", xlabel="seconds", yticks=range(0, 7, 2))
    figure.savefig("room.png", dpi=80)
    return figure


def main():
    client = sf.Client(SERVER)
    client.start_agents(app)
    room.simulate()
    draw([action for action in client.intents(agent="heating") if action.state == "succeeded"])


if __name__ == "__main__":
    main()
