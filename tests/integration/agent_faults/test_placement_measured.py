"""A batch workflow on a service's core: the planner's strategy sees it in the service's own figures, keeps it off,
looks whether that helped, and lets it stand. What is checked is that each decision follows from the figures that it was
made from, and not how quick anything was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from scanflow.placement.sysfs import read_topology
from tests.http_requests import http_client
from tests.integration.agent_faults.conftest import MakePlant
from tests.integration.agent_faults.plant import Plant
from tests.waiting import patient, wait_until

pytestmark = [
    pytest.mark.endurance,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(read_topology().effective_count < 2, reason="with one core there is none to move to"),
]

APP = """
import scanflow as sf

work = sf.Service(name="slow", implementation="work.py:Work", resources=sf.Resources(cpu=1))
app = sf.Application(
    name="mnist",
    team="tests",
    workflows=[
        sf.Workflow(name="serve", type="online", nodes=[work], serving=sf.Serving(grpc_port=0)),
        sf.Workflow(name="burn", nodes=[sf.Executor(name="burn", mainfile="burn.py", parameters={"cpu": -1})]),
    ],
    agents=[sf.Agent(name="placement", modules=["watch.py"])],
)
"""
WORK = """
import asyncio, os, pathlib

BURNS = pathlib.Path(__file__).parent / "burns"

class Work:
    async def predict(self, X):
        try:
            shared = os.sched_getaffinity(int(BURNS.read_text())) & os.sched_getaffinity(0)
        except (OSError, ValueError):  # nothing burns
            shared = set()
        if shared:
            await asyncio.sleep(0.8)
        return X
"""
"""How much a kernel slows it down depends on all else that the machine does: it does so itself, while the masks that
the kernel has of both processes overlap."""

BURN = """
import argparse, os, pathlib, time

parser = argparse.ArgumentParser()
parser.add_argument("--cpu", type=int)
cpu = parser.parse_args().cpu
if cpu in os.sched_getaffinity(0):  # where it may, it takes the service's core
    os.sched_setaffinity(0, {cpu})
(pathlib.Path(__file__).parent / "burns").write_text(str(os.getpid()))
until = time.monotonic() + 20
while time.monotonic() < until:
    pass
"""
WATCH = """
from scanflow_agents.templates.infrastructure import PlacementOptions
from scanflow_agents.templates.spreading import declare_spreading

declare_spreading("serve", "cpu", PlacementOptions(watch_interval_s=4.0, watch_cool_down_s=0.0))
"""


@contextmanager
def load(url: str) -> Iterator[None]:
    """Send some 10 requests a second, whatever they take."""
    over = threading.Event()
    body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP64", "data": [1.0]}]}

    def ask(first_s: float) -> None:
        over.wait(first_s)  # not all at once
        with http_client(timeout=patient(60)) as http:
            while not over.wait(1.5):
                http.post(f"{url}/v2/models/slow/infer", json=body).raise_for_status()

    threads = [threading.Thread(target=ask, args=[0.1 * number]) for number in range(16)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(patient(120))


def burn_now_and_then(plant: Plant, cpu: int, done: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Run the batch workflow as the server keeps it, again and again with pauses, until something is so."""

    def looks() -> int:
        return len(plant.samples("placement", "service_placement"))

    for _ in range(25):
        stored_app = plant.get(f"/applications/{plant.app}")["application"]
        body = {**plant.body, "application": stored_app, "workflow": "burn", "parameters": {"cpu": cpu}}
        plant.server.api.post("/runs", json=body).raise_for_status()
        plant.ended_runs("burn", len(plant.runs("burn")))
        seen = looks()
        wait_until(lambda seen=seen: looks() >= seen + 6, "it looks while nothing runs")  # type: ignore[misc]
        if result := done():
            return result
    raise AssertionError(plant.samples("placement", "service_placement")[-20:])


def test_a_batch_step_that_burns_the_core_of_a_service_is_kept_off_and_what_came_of_it_is_reported(
    make_plant: MakePlant,
) -> None:
    plant = make_plant({"app.py": APP, "work.py": WORK, "burn.py": BURN, "watch.py": WATCH})
    url = plant.deploy("serve")
    [cpu] = plant.service("serve")["instances"][0]["cpus"]
    plant.keep()
    plant.start("placement")
    with load(url):
        [action, *_] = burn_now_and_then(plant, cpu, plant.list_done_actions)
        plant.wait_for_end(strategy="spread_instances")
        intent = action["intent"]
        assert (intent["primitive"], intent["target"]) == ("update_workflow_affinity", "workflow/burn")
        evidence = intent["sample"]["value"]["evidence"]
        assert (evidence["neighbour"], evidence["ratio"] >= 1.2, evidence["p"] < 0.005, evidence["n"] >= 8) == (
            "workflow/burn", True, True, True,
        )  # fmt: skip
        why = plant.explain(action["id"])
        assert evidence["reason"] in why
        [step] = next(
            entry
            for entry in plant.get(f"/applications/{plant.app}")["application"]["workflows"]
            if entry["name"] == "burn"
        )["nodes"]
        assert step["affinity"]["avoid_services"] == ["serve"]

        def list_verifications() -> list[dict[str, Any]]:
            return [event for event in plant.get("/events", limit=1000) if event["type"] == "placement.verified"]

        [event] = burn_now_and_then(plant, cpu, list_verifications)
    data = event["data"]
    assert (data["better"], data["ratio"] >= 1.15, data["p"] < 0.05) == (True, True, True), data
    assert [done_action["state"] for done_action in plant.list_done_actions()] == ["succeeded"], "the move stands"
