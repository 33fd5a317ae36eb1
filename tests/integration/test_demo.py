"""The demo, whole: digits drift, and the agents, not the script, see it, have points labelled, retrain, and promote."""

from __future__ import annotations

import json
import os
import sqlite3
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.loop_events import STORY, in_order
from tests.waiting import patient

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("SCANFLOW_TEST_DATA", REPOSITORY.parent / "shared" / "data"))

pytestmark = [
    pytest.mark.endurance,
    pytest.mark.timeout(1300),  # two minutes and a half alone; beside other suites the loop's steps share the cores
    pytest.mark.skipif(
        find_spec("tensorflow") is None or find_spec("mlflow") is None, reason="tensorflow or mlflow is not installed"
    ),
]


def arguments(real: bool) -> list[str]:
    if not real:
        return []
    clean, drifted = DATA / "mnist_10k.npz", DATA / "mnist_c_2k.npz"
    if not clean.is_file() or not drifted.is_file():
        pytest.skip("MNIST and MNIST-C are not at hand")
    return ["--data", str(clean), "--drifted", str(drifted)]


@pytest.mark.parametrize("real", [False, True], ids=["made", "mnist-c"])
def test_the_agents_promote_a_model_that_reads_drifted_digits_better(cli: Cli, home: Path, real: bool) -> None:
    done = cli("demo", "--json", *arguments(real), timeout_s=patient(1100))
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    loop = document["loop"]

    assert loop["failed"] == 0
    story = [(event["agent"], event["kind"]) for event in loop["events"]]
    assert in_order(STORY, story), story
    position = story.index(("checker", "detection"))
    assert story[:position].count(("tracker", "predictions")) >= 2
    assert ("labels", "label") in story[position : story.index(("planner", "gate"))]
    champion = next(version for version in loop["versions"] if version["champion"])
    before, after = (loop["accuracy"][f"models:/mnist_cnn/{number}"] for number in (1, champion["version"]))
    assert after["drifted"] > before["drifted"] + 0.02
    assert champion["version"] > 1
    assert champion["accuracy"] > loop["versions"][0]["accuracy"]

    report = Path(document["report"]).read_text(encoding="utf-8")
    assert report.count("<figure") >= 8  # accuracy, requests, errors, p95, versions and agents, thrice for a phone too
    assert "V1: " in report
    assert "No drift was found" not in report
    assert aliases(home) == {"champion": champion["version"]}
    assert "No service is deployed" in cli("services").stdout
    assert "control plane is not" in cli("status").stdout


def aliases(home: Path) -> dict[str, int]:
    with sqlite3.connect(home / "tracker" / "mlflow.db") as database:
        rows = database.execute("select alias, version from registered_model_aliases where name = 'mnist_cnn'")
        return {alias: int(version) for alias, version in rows}
