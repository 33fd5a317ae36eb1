"""MLflow's server is killed under agents that read from it and a service that records to it: nothing crashes, and once
it is back all that happened meanwhile is counted, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx2
import pytest

from scanflow.knowledge import open_knowledge
from scanflow.knowledge.mlflow.database import make_database
from scanflow.knowledge.step_environment import locate_tracker
from tests.http_requests import HTTP
from tests.integration.agent_faults.conftest import MakePlant
from tests.integration.agent_faults.plant import PATIENCE_S, Plant
from tests.serving import hold_port
from tests.waiting import patient, wait_until

pytestmark = [
    pytest.mark.endurance,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("default"),  # the warnings are MLflow's
    pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow missing"),
]

ROWS = 1000  # so many predictions are written to a file at once
INTERVAL_S = 0.3
OUTAGE_S = 60.0
APP = """
import os, pathlib
import scanflow as sf

@sf.step
def train(wish: str = "") -> str:
    with open(pathlib.Path(os.environ["TEST_FOLDER"]) / "ledger", "a") as ledger:
        ledger.write(wish + "\\n")
    return wish

echo = sf.Service(name="echo", implementation="echo.py:Echo")
app = sf.Application(
    name="mnist",
    team="tests",
    workflows=[
        sf.Workflow(name="training", nodes=[train.bind("")]),
        sf.Workflow(name="serve", type="online", nodes=[echo], serving=sf.Serving(grpc_port=0, record=1)),
    ],
    agents=[sf.Agent(name="tracker", modules=["tracker.py"])],
    tracker=sf.Tracker(),
)
"""
ECHO = """
class Echo:
    def predict(self, X):
        return X
"""
TRACKER = """
import scanflow as sf
from scanflow.agent import primitives as do, sensor

@sensor(sf.every(seconds=INTERVAL_S), filter_string="metrics.predictions > 0")
def count(runs):
    return {run.run_id: run.metrics["predictions"] for run in runs}

@sensor(sf.every(seconds=INTERVAL_S))
async def well():
    return 1

@sensor(sf.on_call())
def labels(wish):
    return wish

sf.Strategy(name="retrain", when=labels, then=lambda wish: do.run_workflow("training", wish=wish))
""".replace("INTERVAL_S", str(INTERVAL_S))


class Mlflow:
    """An MLflow server of somebody's own, over the home's tracker; killed and started again by its pid."""

    def __init__(self, home: Path) -> None:
        self.home, self._held = home, hold_port()
        self.port: int = self._held.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = home.parent / "mlflow.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        place = locate_tracker(self.home)
        assert place.artifact_root is not None
        make_database(self.home / "tracker" / "mlflow.db", place.artifact_root)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)),
                    *("--workers", "1", "--backend-store-uri", place.tracking_uri),
                    *("--no-serve-artifacts", "--default-artifact-root", place.artifact_root.as_uri()),
                ],
                env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self.answers, f"MLflow answers; see {self.log}", patience_s=PATIENCE_S)

    def answers(self) -> bool:
        try:
            return HTTP.get(f"{self.url}/health", timeout=patient(30)).status_code == 200
        except httpx2.TransportError:
            return False

    def close(self) -> None:
        self.kill()
        self._held.close()

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(patient(60))
            self._process = None


@pytest.fixture
def mlflow(home: Path) -> Iterator[Mlflow]:
    mlflow = Mlflow(home)
    try:
        mlflow.start()
        yield mlflow
    finally:
        mlflow.close()


@pytest.fixture
def plant(make_plant: MakePlant, mlflow: Mlflow) -> Plant:
    return make_plant({"app.py": APP, "echo.py": ECHO, "tracker.py": TRACKER}, SCANFLOW_TRACKER_URI=mlflow.url)


def predict(url: str) -> None:
    inputs = [{"name": "x", "shape": [ROWS, 1], "datatype": "FP64", "data": [[1.0]] * ROWS}]
    answer = HTTP.post(f"{url}/v2/models/serve/infer", json={"inputs": inputs}, timeout=patient(60))
    assert answer.status_code == 200, answer.text


def list_counts(plant: Plant) -> list[tuple[str, float]]:
    """Return each tracked run that the sensor was given, with its number of predictions."""
    return [pair for sample in plant.samples("tracker", "count") for pair in (sample["value"] or {}).items()]


def waiting(plant: Plant) -> int:
    return len(list((plant.home / "services" / "serve").rglob("*.npz")))


def look_again(plant: Plant) -> None:
    """Return when the sensor has looked well some times more, so that it has seen what is a second old."""
    count = len(plant.samples("tracker", "count"))

    def well() -> int:
        return sum(sample["error"] is None for sample in plant.samples("tracker", "count")[count:])

    wait_until(lambda: well() >= 3 + 2 / INTERVAL_S, "the sensor has looked some times more", patience_s=PATIENCE_S)


def test_what_happens_while_mlflow_is_down_for_a_minute_is_kept_and_counted_once_it_is_back(
    plant: Plant, mlflow: Mlflow
) -> None:
    url = plant.deploy("serve")
    plant.start("tracker")
    predict(url)
    knowledge = open_knowledge(plant.home, mlflow.url)
    predictions = "metrics.predictions > 0"
    wait_until(
        lambda: knowledge.search_runs("mnist", "tests", predictions), "the first are kept", patience_s=PATIENCE_S
    )
    look_again(plant)

    mlflow.kill()
    down = time.monotonic()
    count = len(plant.samples("tracker", "count"))
    for _ in range(3):
        predict(url)
    plant.call("tracker", "labels", "w1")
    wait_until(plant.list_done_actions, "what is wanted meanwhile is taken up")
    wait_until(lambda: waiting(plant) == 3, "the service keeps what it would have recorded")
    wait_until(
        lambda: sum(sample["error"] is not None for sample in plant.samples("tracker", "count")) >= 5,
        "the sensor fails",
    )
    wait_until(lambda: time.monotonic() - down >= OUTAGE_S, "it was down for so long", patience_s=patient(2 * OUTAGE_S))
    failed = [sample for sample in plant.samples("tracker", "count")[count:] if sample["error"] is not None]
    assert len(failed) >= 5
    assert all("UnavailableError" in failure["error"] for failure in failed), {failure["error"] for failure in failed}
    assert all("does not answer" in failure["error"] for failure in failed), {failure["error"] for failure in failed}
    assert waiting(plant) == 3, "it keeps them for as long as that takes"
    fired = plant.sensor("tracker", "well")["fired"]
    wait_until(lambda: plant.sensor("tracker", "well")["fired"] > fired + 3, "the other sensors go on")
    assert plant.view("tracker")["restarts"] == 0
    assert plant.service("serve")["state"] == "ready"

    mlflow.start()
    wait_until(lambda: waiting(plant) == 0, "what was kept is taken to the tracker", patience_s=PATIENCE_S)
    plant.ended_runs("training", 1)
    look_again(plant)
    tracked = {
        record.run_id: record.metrics["predictions"] for record in knowledge.search_runs("mnist", "tests", predictions)
    }
    assert sum(tracked.values()) == 4 * ROWS, "each is there once"
    assert plant.notes() == ["w1"], "what was wanted meanwhile is done once"
    runs = [run for run, _ in list_counts(plant)]
    assert len(runs) == len(set(runs)), "nothing is counted twice"
    assert set(runs) == set(tracked), "and nothing is left out"
