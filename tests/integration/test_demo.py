"""The demo, whole: two networks trained, the better one registered, served, asked, and the service ended."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from scanflow.placement.granted import this_machine
from tests.conftest import Cli

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("SCANFLOW_TEST_DATA", REPOSITORY.parent / "shared" / "data")) / "mnist_10k.npz"


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("tensorflow") is None or find_spec("mlflow") is None, reason="tensorflow or mlflow is not installed"
)
def test_the_demo_trains_serves_and_reads_a_thousand_digits(cli: Cli) -> None:
    real = DATA.is_file()
    done = cli("demo", "--json", "-p", "epochs=1", *(["--data", str(DATA)] if real else []), timeout_s=400)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    served = told["served"]
    assert told["run"]["state"] == "succeeded"
    assert (served["sent"], served["different"]) == (1000, 1000 if real else 360)
    assert served["accuracy"] >= 0.8
    cores = [one["cpus"] for one in served["service"]["instances"]]
    assert len(cores) == min(2, this_machine().cores)
    assert all(len(own) == 1 for own in cores)
    assert len({own[0] for own in cores}) == len(cores)
    assert sum(served["by_instance"].values()) == 1000
    assert "Nothing is deployed" in cli("services").stdout
