"""Services as a person meets them: the real thing, from the command line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from scanflow.errors import NotFoundError
from scanflow_client.client import Client
from tests.conftest import COMMAND, COMMAND_TIMEOUT_S, Cli

APP = """
import scanflow as sf

scale = sf.Service(name="scale", role="TRANSFORMER", implementation="models.py:Scale", parameters={"by": 2.0})
mean = sf.Service(name="mean", implementation="models.py:Mean")
app = sf.Application(
    name="shop",
    workflows=[sf.Workflow(name="means", type="online", nodes=[scale, mean], edges=scale >> mean)],
)
"""

MODELS = """
import numpy as np


class Scale:
    def __init__(self, by):
        self.by = by
        print("scaling by", by, flush=True)

    def transform_input(self, X):
        return np.asarray(X) * self.by


class Mean:
    def predict(self, X):
        if X.ndim != 2:
            raise ValueError("rows are needed")
        return X.mean(axis=1)
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "models.py").write_text(MODELS)
    return tmp_path / "app.py"


def test_a_service_is_deployed_called_scaled_followed_and_deleted(
    cli: Cli, quick_cli: Cli, app: Path, home: Path, tmp_path: Path
) -> None:
    deployed = cli("deploy", "app.py", "--instances", "1")
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    lines = deployed.stdout.splitlines()
    assert any(line.startswith("✓ means  ready at http://127.0.0.1:") for line in lines), lines
    assert "1 instance, any" in deployed.stdout
    pasted = next(line for line in lines if line.startswith("curl "))
    answered = subprocess.run(
        ["bash", "-c", pasted], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=True
    )
    assert json.loads(answered.stdout)["outputs"][0]["data"], answered.stdout

    np.save(tmp_path / "rows.npy", np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=np.float32))
    (tmp_path / "rows.json").write_text("[[1, 2, 3]]")
    expected_by_input = {"--data [[1,2,3]]": [4.0], "rows.npy": [4.0, 10.0], "rows.json": [4.0]}
    for words, wanted in expected_by_input.items():
        asked = json.loads(quick_cli("predict", "means", *words.split(), "--json").stdout)
        assert list(asked["outputs"].values()) == [wanted], words
    assert json.loads(quick_cli("predict", "means", "--node", "scale", "--data", "[[1]]", "--json").stdout)["outputs"]
    shown = quick_cli("predict", "means", "--data", "[[1, 2, 3]]").stdout.splitlines()
    assert (shown[0].endswith("float64 (1,)"), shown[1]) == (True, "[4.0]")
    seldon = json.loads(quick_cli("predict", "means", "--data", "[[1, 2, 3]]", "--seldon").stdout)
    assert seldon["data"]["ndarray"] == [4.0]
    command = [*COMMAND, "predict", "means", "-", "--json"]
    piped = subprocess.run(command, input="[[3, 3, 3]]", capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
    assert list(json.loads(piped.stdout)["outputs"].values()) == [[6.0]]

    failed = cli("predict", "means", "--data", "[1, 2, 3]")
    assert (failed.returncode, "rows are needed" in failed.stderr, "Traceback" in failed.stderr) == (1, True, False)
    wrong = cli("predict", "means", "--data", "[[NaN]]")
    assert wrong.returncode == 2, wrong.stderr
    assert "scaling by 2.0" in quick_cli("logs", "means").stdout

    steady = ["--data", "[[1, 2, 3]]", "--rate", "100", "--seconds", "1", "--out", str(tmp_path / "load")]
    loaded = cli("load", "means", *steady, "--json")
    document = json.loads(loaded.stdout)
    assert (loaded.returncode, document["requests"], document["failed"], document["loop"]) == (0, 100, 0, "open"), (
        loaded.stderr
    )
    rows = (tmp_path / "load" / "requests.csv").read_text().splitlines()
    assert (rows[0], len(rows)) == ("due_s,waited_s,took_s,status", 101)
    assert json.loads((tmp_path / "load" / "summary.json").read_text()) == document
    refused = cli("load", "means", "--data", "[1, 2, 3]", "--seconds", "1", "-c", "1").stdout
    assert ": 500: " in refused or "× 500: " in refused, "each fails, and is counted with its reason"

    scaled = cli("scale", "means", "2")
    assert (scaled.returncode, "(2 instances, any)" in scaled.stdout) == (0, True), scaled.stderr
    record = json.loads(quick_cli("services", "means", "--json").stdout)
    assert [instance["state"] for instance in record["instances"]] == ["ready", "ready"]
    assert "2/2" in quick_cli("services").stdout
    document = quick_cli("services", "means").stdout
    assert "revision" in document
    assert document.splitlines()[-1].startswith("Request a prediction: scanflow predict means")
    client = Client(home=home, progress=False)
    assert client.load("means", [[1, 2, 3]], rate=50, seconds=0.2).result.requests == 10
    assert client.predict("means", [[1, 2, 3]]).tolist() == [4.0], "Python sees what the terminal started"
    assert [(service.name, service.state) for service in client.services()] == [("means", "ready")]
    for _ in range(20):
        before = client.service("means").revisions[0].requests
        client.predict("means", [[1, 2, 3]])
        assert client.service("means").revisions[0].requests == before + 1, "counts are those of now"

    command = [*COMMAND, "logs", "means", "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as following:
        try:
            assert following.stdout is not None
            assert any("scaling by" in following.stdout.readline() for _ in range(20))
            gone = cli("delete", "means")
            assert following.wait(COMMAND_TIMEOUT_S) == 0
        finally:
            following.kill()
    assert gone.stdout.splitlines()[-1] == f"Deleted means. Deploy it again: scanflow deploy {app}:means"
    assert "No service is deployed" in quick_cli("services").stdout
    after = quick_cli("predict", "means", "--data", "[[1]]")
    assert (after.returncode, after.stdout) == (2, "")
    assert "There is no service yet. Start one: scanflow deploy" in after.stderr
    with pytest.raises(NotFoundError):
        client.service("means")


def test_what_cannot_be_deployed_is_reported_before_anything_starts(quick_cli: Cli, app: Path) -> None:
    models = app.with_name("models.py")
    models.unlink()
    missing = quick_cli("deploy")
    assert (missing.returncode, "models.py" in missing.stderr) == (2, True)
    assert "No service is deployed" in quick_cli("services").stdout
    models.write_text(MODELS)
    many = quick_cli("deploy", "--instances", "3", "--cores", "999", "--affinity", "cpu")
    assert (many.returncode, "cores" in many.stderr) == (2, True)


def test_a_class_that_cannot_be_loaded_fails_the_deploy_with_its_own_message(cli: Cli, app: Path) -> None:
    app.with_name("models.py").write_text(MODELS.replace("self.by = by", "self.by = by.upper()"))
    failed = cli("deploy")
    assert failed.returncode in {1, 2}, failed.stdout + failed.stderr
    assert "'float' object has no attribute 'upper'" in failed.stderr
    assert len(failed.stderr.splitlines()) <= 12


def test_check_and_plan_say_where_instances_would_sit(quick_cli: Cli, app: Path) -> None:
    assert "2 nodes in each of 1 instance" in quick_cli("check", str(app)).stdout
    plan = json.loads(quick_cli("plan", str(app), "--json").stdout)
    assert [step["name"] for step in plan["steps"]] == ["scale", "mean"]
    assert len(plan["instances"]) == 1
    ran = quick_cli("run", str(app))
    assert (ran.returncode, "Deploy it: scanflow deploy" in ran.stderr) == (2, True)
