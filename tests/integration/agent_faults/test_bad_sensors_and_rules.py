"""Sensors that raise or hang and rules that return nonsense, in a real agent before a real server: each is kept as an
error, nothing is done for it, and the other sensors go on."""

from __future__ import annotations

import pytest

from tests.integration.agent_faults.conftest import MakePlant
from tests.integration.agent_faults.plant import Plant
from tests.waiting import wait_until

pytestmark = pytest.mark.endurance

LIMIT_S = 5.0  # no sensor that is well takes so long, whatever else the machine does
APP = """
import scanflow as sf

@sf.step
def train(wish: str = "") -> str:
    return wish

app = sf.Application(
    name="mnist",
    team="tests",
    workflows=[sf.Workflow(name="training", nodes=[train.bind("")])],
    agents=[sf.Agent(name="tracker", modules=["tracker.py"])],
)
"""
TRACKER = """
import asyncio, os, pathlib, time
import scanflow as sf
from scanflow.agent import primitives as do, sensor

HOLD = pathlib.Path(os.environ["TEST_FOLDER"]) / "hold"
often = sf.every(seconds=0.1)

@sensor(often)
async def well():
    return 1

@sensor(often)
def raising():
    raise ValueError("no such column")

@sensor(often)
def hanging():
    while HOLD.exists():  # as a read without a timeout does: nobody can make it return
        time.sleep(0.01)
    return 1

@sensor(often)
async def hanging_async():
    if HOLD.exists():
        await asyncio.Event().wait()
    return 1

@sensor(often)
async def unspeakable():
    return object()

@sensor(sf.on_call())
def asked(n):
    return n

want = do.run_workflow("training")

def raises(n):
    return [][n]

for name, when, rule in (
    ("on_raising", raising, lambda n: True),
    ("on_unspeakable", unspeakable, lambda n: True),
    ("says_a_number", asked, lambda n: n + 1),
    ("says_nothing", asked, lambda n: None),
    ("says_nan", asked, lambda n: float("nan")),
    ("says_yes_in_words", asked, lambda n: "yes"),
    ("raises", asked, raises),
    ("wants_nonsense", asked, None),
):
    then = (lambda n: "retrain, please") if name == "wants_nonsense" else want
    sf.Strategy(name=name, when=when, then=then, **({} if rule is None else {"if_": rule}))

sf.Strategy(name="sane", when=asked, if_=lambda n: n == 0, then=want)
"""
BAD = {
    "says_a_number": "1",
    "says_nothing": "None",
    "says_nan": "nan",
    "says_yes_in_words": "'yes'",
    "raises": "IndexError",
    "wants_nonsense": "retrain, please",
}


def go_on(plant: Plant) -> None:
    fired = plant.sensor("tracker", "well")["fired"]
    wait_until(lambda: plant.sensor("tracker", "well")["fired"] > fired + 5, "the others go on")


def test_what_is_bad_is_kept_as_an_error_nothing_is_done_for_it_and_the_others_go_on(make_plant: MakePlant) -> None:
    plant = make_plant({"app.py": APP, "tracker.py": TRACKER})
    plant.hold()
    with plant.host_agent("tracker", sensor_limit_s=LIMIT_S):
        check_what_raises(plant)
        check_what_hangs(plant)
        assert plant.actions() == []
        check_rules(plant)


def check_what_raises(plant: Plant) -> None:
    wait_until(lambda: plant.sensor("tracker", "raising")["errors"] >= 5, "it has raised some times")
    go_on(plant)
    view = plant.sensor("tracker", "raising")
    samples = plant.samples("tracker", "raising")
    assert {(sample["error"], sample["value"]) for sample in samples} == {("ValueError: no such column", None)}
    assert len({sample["cause"] for sample in samples}) == len(samples) >= 5
    assert view["fired"] - view["errors"] in {0, 1}, "each firing that has ended is an error"
    reports = [event["data"] for event in plant.get("/events", type="sample") if event["data"]["sensor"] == "raising"]
    assert {report["error"] for report in reports} == {"ValueError: no such column"}
    assert "object" in plant.samples("tracker", "unspeakable")[0]["error"], "no JSON can hold it"


def check_what_hangs(plant: Plant) -> None:
    limit = f"The sensor exceeded its limit of {LIMIT_S:g} s, and was abandoned."
    wait_until(lambda: plant.sensor("tracker", "hanging")["missed"] >= 10, "its next firings are missed")
    wait_until(lambda: plant.samples("tracker", "hanging"), "it is given up")
    wait_until(lambda: plant.sensor("tracker", "hanging_async")["errors"] >= 3, "it is given up, again and again")
    go_on(plant)
    view = plant.sensor("tracker", "hanging")
    assert (view["fired"], view["errors"]) == (1, 1), "as long as it has not returned it is not begun again"
    view = plant.sensor("tracker", "hanging_async")
    assert view["missed"] >= view["errors"], "what fell due while it hung is counted"
    for name in ("hanging", "hanging_async"):
        assert {sample["error"] for sample in plant.samples("tracker", name)} == {limit}
    plant.release()
    wait_until(lambda: plant.sensor("tracker", "hanging")["fired"] > 3, "once it has returned it fires again")
    assert plant.samples("tracker", "hanging")[-1]["value"] == 1
    wait_until(lambda: plant.samples("tracker", "hanging_async")[-1]["value"] == 1, "it finds something again")
    # Some firings came too late because the machine was busy.
    assert {entry["reason"] for entry in plant.journal("tracker", "missed", "hanging")} - {"late"} == {"running"}


def check_rules(plant: Plant) -> None:
    sample = plant.call("tracker", "asked", 0)
    wait_until(lambda: plant.list_done_actions(strategy="sane"), "the strategy that is sane acts on the same sample")
    (sane,) = plant.actions()
    assert (sane["intent"]["strategy"], sane["intent"]["sample"]["id"]) == ("sane", sample)
    errors = {
        entry["strategy"]: entry["error"] for entry in plant.journal("tracker", "error") if entry["sample"] == sample
    }
    assert set(errors) == set(BAD)
    for name, words in BAD.items():
        assert words in errors[name], errors[name]
    plant.call("tracker", "asked", 2)
    wait_until(lambda: len(plant.journal("tracker", "error")) >= 2 * len(BAD), "the next sample is decided on too")
    assert len(plant.actions()) == 1
