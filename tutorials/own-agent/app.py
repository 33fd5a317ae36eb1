"""A room that two agents keep warm: one looks, the other acts, by a primitive of one's own."""

import scanflow as sf


@sf.step
def describe() -> float:
    """Return the mean temperature of the room."""
    import csv
    from pathlib import Path

    rows = list(csv.DictReader((Path(__file__).parent / "room.csv").read_text().splitlines()))
    return sum(float(row["temperature"]) for row in rows) / len(rows)


app = sf.Application(
    name="room",
    team="tutorials",
    workflows=[sf.Workflow(name="room", nodes=[describe.bind()])],
    agents=[sf.Agent(name="thermometer", modules=["thermometer.py"]), sf.Agent(name="heating", modules=["heating.py"])],
)
