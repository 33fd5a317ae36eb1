"""A search on real services, from the command line: which of them win, the machine's other work decides, and is not
asked here; what serves is left alone."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scanflow.testing.accelerators import make_gpu
from tests.conftest import Cli
from tests.nvml import StubbedMachine
from tests.permissions import permit_strategies_at
from tests.server import ServerProcess, load_body
from tests.unit.server.arbiter.intent_builders import intent
from tests.waiting import patient, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a single core is cut in one way only"),
]

APP = """
import scanflow as sf

work = sf.Service(name="work", implementation="work.py:Work", resources=sf.Resources(cpu=2))
app = sf.Application(
    name="shop", workflows=[sf.Workflow(name="serve", type="online", nodes=[work])], tracker=sf.Tracker()
)
"""
WORK = """
import numpy as np

class Work:
    def predict(self, X):
        end = 40_000 + int(X.sum())  # in Python alone, of which an instance does one thing at a time
        return np.asarray([sum(range(end)) % 7.0])
"""
BUDGET = ("--data", "[[1.0, 2.0]]", "--cores", "2", "--seconds", "0.5", "--trials", "1", "--minutes", "10", "-c", "4")


def test_a_search_measures_real_services_leaves_none_and_goes_on_from_its_folder(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "work.py").write_text(WORK)
    result = cli("tune", "app.py:serve", *BUDGET, "--out", "found", timeout_s=600)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Logged as the run tune-serve" in result.stdout
    document = json.loads((tmp_path / "found" / "tuning.json").read_text())
    assert [entry["candidate"]["instances"] for entry in document["trials"]] == [2]
    assert all(
        measurement["rate"] > 0 for trial in document["trials"] for measurement in trial["default"] + trial["measured"]
    )
    assert (tmp_path / "found" / "tuning.svg").read_text().startswith("<svg")
    assert "No service is deployed" in cli("services").stdout

    assert cli("deploy", "app.py:serve", "--instances", "1", "--cores", "1").returncode == 0
    before = json.loads(cli("services", "serve", "--json").stdout)
    again = cli("tune", "app.py:serve", *BUDGET, "--out", "other", "--no-log", "--json", timeout_s=600)
    assert again.returncode == 0, again.stdout + again.stderr
    assert json.loads(again.stdout)["default"] == {**document["default"], "cores": 1.0}
    after = json.loads(cli("services", "serve", "--json").stdout)
    assert [after[name] for name in ("generation", "shape")] == [before[name] for name in ("generation", "shape")]
    assert [instance["pid"] for instance in after["instances"]] == [instance["pid"] for instance in before["instances"]]


GPU_APP = """
import scanflow as sf

resources = sf.Resources(cpu=2, gpu=1, gpu_memory="30Gi")
work = sf.Service(name="work", implementation="work.py:Work", resources=resources)
app = sf.Application(name="shop", workflows=[sf.Workflow(name="serve", type="online", nodes=[work])])
"""
GPU_WORK = """
import os

class Work:
    def predict(self, X):
        return [os.environ["CUDA_VISIBLE_DEVICES"], os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")]
"""


def test_the_cuts_of_a_gpu_are_searched_and_the_service_is_resized_to_one(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = StubbedMachine(tmp_path, make_gpu(0, busy_share=0.5, power_w=100.0, energy_j=5.0))
    machine.start_mps()
    for name, value in machine.variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "app.py").write_text(GPU_APP)
    (tmp_path / "work.py").write_text(GPU_WORK)
    result = cli("tune", "app.py:serve", *BUDGET, "--out", "gpus", "--no-log", timeout_s=600)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "serve on 2 cores and 1 GPU for requests/s" in result.stdout
    assert "Left out: 4 × gpu=0.25: 2 cores cannot be divided by 4. Give more: --cores 4" in result.stdout
    document = json.loads((tmp_path / "gpus" / "tuning.json").read_text())
    (trial,) = document["trials"]
    assert (trial["candidate"]["instances"], trial["candidate"]["gpu"]) == (2, 0.5)
    measured = [*trial["default"], *trial["measured"]]
    assert [(measurement["failed"], measurement["energy_j_per_1000"]) for measurement in measured] == [(0, 0)] * 4

    assert cli("deploy", "app.py:serve").returncode == 0
    refused = cli("tune", "serve", *BUDGET, "--no-log")
    assert refused.returncode != 0
    assert "GPU 0 is granted to serve/1" in refused.stderr
    resized = cli("scale", "serve", "2", "--cores", "1", "--gpu", "0.5")
    assert resized.returncode == 0, resized.stdout + resized.stderr
    assert "(2 instances × 1 core, gpu=0.5, any)" in resized.stdout
    assert f"{make_gpu(0).uuid}" in cli("predict", "serve", "--data", "[[1.0]]").stdout
    (service,) = json.loads(cli("services", "--json").stdout)
    assert [instance["devices"][0]["share"] for instance in service["instances"]] == [0.5, 0.5]
    assert cli("delete", "serve").returncode == 0


COMPARE = """
from pathlib import Path
from tests.device import tuned_cuts
from scanflow.tuning import study

tuned_cuts.CORES, tuned_cuts.BATCHES, study.SEARCH_PAIRS, study.FRESH_PAIRS = 2, (4,), 1, 1
compared = tuned_cuts.measure_searches(0.5, model=Path("work.py"))
print(*compared.build_rows(), sep="\\n")
"""


def test_the_tuner_s_pick_is_compared_with_all_cuts_of_a_gpu(tmp_path: Path) -> None:
    machine = StubbedMachine(tmp_path, make_gpu(0, busy_share=0.5, power_w=100.0, energy_j=5.0))
    machine.start_mps()
    (tmp_path / "work.py").write_text(GPU_WORK.replace("Work", "Network"))
    checkout = Path(__file__).resolve().parents[2]
    environ = {**os.environ, **machine.variables, "PYTHONPATH": f"{checkout}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-c", COMPARE], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=patient(600)
    )
    assert done.returncode == 0, done.stderr
    rows = [ast.literal_eval(line) for line in done.stdout.splitlines()]
    assert [row[0].partition(":")[0] for row in rows] == ["as it is", "tuner", "all"]
    assert rows[0][0] == "as it is: 1 × 2 cores, gpu=1, any"
    assert (rows[2][2], rows[2][4]) == ("100%", "6")


def test_an_agent_has_a_search_made_in_a_process_of_its_own_and_nothing_is_left_of_it(
    home: Path, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "work.py").write_text(WORK)
    server = ServerProcess(home)

    def begin_search(id: str, **arguments: Any) -> str:
        more = {"workflow": "serve", "inputs": [[1.0, 2.0]], "seconds": 0.5, "connections": 4, **arguments}
        wanted = {"primitive": "tune_workflow", "target": "service/serve", "fields": ["tuning"], "arguments": more}
        body = intent(id, app="shop", team="default", **wanted).model_dump(mode="json")
        assert server.api.post("/intents", json=body).json()["verdict"] == "act"
        wait_until(lambda: server.api.get(f"/intents/{id}").json()["ended"] is not None, "the search has begun")
        run: str = server.api.get(f"/intents/{id}").json()["result"]["run"]
        return run

    def state(run: str) -> str:
        return str(server.api.get(f"/runs/{run}").json()["state"])

    def services() -> list[str]:
        return [service["name"] for service in server.api.get("/services").json()]

    try:
        server.start()
        permit_strategies_at(home, "scale", app="shop", team="default")
        deployed = server.api.post("/services", json=load_body(tmp_path / "app.py", workflow="serve"))
        assert server.operation(deployed)["state"] == "succeeded"
        run = begin_search("i1", trials=1)
        wait_until(lambda: state(run) != "running", "the search is over", patience_s=patient(300))
        assert state(run) == "succeeded", server.api.get(f"/runs/{run}").json()
        outputs = server.api.get(f"/runs/{run}/steps/tune/outputs").json()
        assert (outputs["service"], outputs["trials"], outputs["interrupted"]) == ("serve", 1, False)
        assert services() == ["serve"]

        other = begin_search("i2", minutes=60.0)
        wait_until(lambda: "serve-tune" in services(), "the copy is there")
        assert server.api.post("/intents/i2/revert", json={"reason": "enough"}).status_code == 200
        wait_until(lambda: state(other) == "stopped", "the search is stopped")
        wait_until(lambda: services() == ["serve"], "the copy is deleted")
        assert server.operation(server.api.delete("/services/serve"))["state"] == "succeeded"
    finally:
        server.close()
