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


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "app.py").write_text(APP)
    (folder / "models.py").write_text(MODELS)
    return folder / "app.py"


@pytest.fixture
def deployed(cli: Cli, app: Path) -> subprocess.CompletedProcess[str]:
    done = cli("deploy", str(app), "--instances", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_a_service_is_deployed_asked_recut_and_deleted(
    cli: Cli, app: Path, deployed: subprocess.CompletedProcess[str]
) -> None:
    lines = deployed.stdout.splitlines()
    assert any(line.startswith("✓ means  ready at http://127.0.0.1:") for line in lines), lines
    assert "1 instance, any" in deployed.stdout

    pasted = next(line for line in lines if line.startswith("curl "))
    answered = subprocess.run(["bash", "-c", pasted], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(answered.stdout)["outputs"][0]["data"], answered.stdout

    asked = json.loads(cli("predict", "means", "--data", "[[1, 2, 3]]", "--json").stdout)
    assert list(asked["outputs"].values()) == [[4.0]]
    shown = cli("predict", "means", "--data", "[[1, 2, 3]]").stdout.splitlines()
    assert shown[0].endswith("float64 (1,)")
    assert shown[1] == "[4.0]"
    assert json.loads(cli("predict", "means", "--node", "scale", "--data", "[[1]]", "--json").stdout)["outputs"]

    scaled = cli("scale", "means", "2")
    assert scaled.returncode == 0, scaled.stderr
    assert "(2 instances, any)" in scaled.stdout
    record = json.loads(cli("services", "means", "--json").stdout)
    assert [one["state"] for one in record["instances"]] == ["ready", "ready"]
    assert "2/2" in cli("services").stdout
    told = cli("services", "means").stdout
    assert "revision" in told
    assert told.splitlines()[-1].startswith("Request a prediction: scanflow predict means")

    gone = cli("delete", "means")
    assert gone.stdout.splitlines()[-1] == f"Deleted means. Deploy it again: scanflow deploy {app}:means"
    assert "Nothing is deployed" in cli("services").stdout
    after = cli("predict", "means", "--data", "[[1]]")
    assert (after.returncode, after.stdout) == (2, "")
    assert "There is no service yet. Start one: scanflow deploy" in after.stderr


def test_seldons_protocol_files_and_standard_input_are_understood(
    cli: Cli, tmp_path: Path, deployed: subprocess.CompletedProcess[str]
) -> None:
    rows = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=np.float32)
    np.save(tmp_path / "rows.npy", rows)
    (tmp_path / "rows.json").write_text("[[1, 2, 3]]")
    assert list(json.loads(cli("predict", "means", "rows.npy", "--json").stdout)["outputs"].values()) == [[4.0, 10.0]]
    assert list(json.loads(cli("predict", "means", "rows.json", "--json").stdout)["outputs"].values()) == [[4.0]]
    told = json.loads(cli("predict", "means", "--data", "[[1, 2, 3]]", "--seldon").stdout)
    assert told["data"]["ndarray"] == [4.0]
    piped = subprocess.run(
        [*COMMAND, "predict", "means", "-", "--json"],
        input="[[3, 3, 3]]",
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=True,
    )
    assert list(json.loads(piped.stdout)["outputs"].values()) == [[6.0]]


def test_a_component_that_fails_exits_with_1_and_says_where_to_look(
    cli: Cli, deployed: subprocess.CompletedProcess[str]
) -> None:
    failed = cli("predict", "means", "--data", "[1, 2, 3]")
    assert failed.returncode == 1
    assert "rows are needed" in failed.stderr
    assert "Traceback" not in failed.stderr
    wrong = cli("predict", "means", "--data", "[[NaN]]")
    assert wrong.returncode == 2, wrong.stderr
    written = cli("logs", "means")
    assert "scaling by 2.0" in written.stdout


def test_what_the_terminal_started_outlives_it_and_python_sees_it_too(
    home: Path, deployed: subprocess.CompletedProcess[str]
) -> None:
    client = Client(home=home, progress=False)
    assert client.predict("means", [[1, 2, 3]]).tolist() == [4.0]
    assert [one.name for one in client.services()] == ["means"]
    assert client.service("means").state == "ready"
    client.delete("means")
    with pytest.raises(NotFoundError):
        client.service("means")


def test_logs_can_be_followed_until_the_service_ends(cli: Cli, deployed: subprocess.CompletedProcess[str]) -> None:
    following = subprocess.Popen(
        [*COMMAND, "logs", "means", "--follow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert following.stdout is not None
        assert any("scaling by" in following.stdout.readline() for _ in range(20))
        cli("delete", "means")
        assert following.wait(COMMAND_TIMEOUT_S) == 0
    finally:
        following.kill()
        following.communicate()


def test_what_cannot_be_deployed_is_told_before_anything_starts(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    missing = cli("deploy")
    assert missing.returncode == 2
    assert "models.py" in missing.stderr
    assert "Nothing is deployed" in cli("services").stdout
    (tmp_path / "models.py").write_text(MODELS)
    many = cli("deploy", "--instances", "3", "--cores", "999", "--affinity", "cpu")
    assert many.returncode == 2
    assert "cores" in many.stderr


def test_a_class_that_cannot_be_loaded_fails_the_deploy_with_its_own_words(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "models.py").write_text(MODELS.replace("self.by = by", "self.by = by.upper()"))
    failed = cli("deploy")
    assert failed.returncode in {1, 2}, failed.stdout + failed.stderr
    assert "'float' object has no attribute 'upper'" in failed.stderr
    assert len(failed.stderr.splitlines()) <= 12


def test_check_and_plan_say_where_instances_would_sit(cli: Cli, app: Path) -> None:
    assert "2 nodes in each of 1 instance" in cli("check", str(app)).stdout
    plan = json.loads(cli("plan", str(app), "--json").stdout)
    assert [one["name"] for one in plan["steps"]] == ["scale", "mean"]
    assert len(plan["instances"]) == 1
    ran = cli("run", str(app))
    assert ran.returncode == 2
    assert "Deploy it: scanflow deploy" in ran.stderr
