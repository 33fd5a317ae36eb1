"""MLflow's own pages behind the server's login, as a person sees them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scanflow.knowledge import open_knowledge
from scanflow.knowledge.mlflow.mlflow_socket import find_server_socket, is_listening
from scanflow.knowledge.step_environment import locate_tracker
from tests.browser.chromium import Browser
from tests.server import ServerProcess
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.processes, pytest.mark.filterwarnings("default")]

ENTER = "\ue007"


@pytest.fixture
def mlflow(home: Path) -> Iterator[None]:
    """MLflow's server over the home's tracker, as ``scanflow up`` starts it."""
    pytest.importorskip("mlflow")

    def listens() -> bool:
        path = find_server_socket(locate_tracker(home))
        return path is not None and is_listening(path)

    with subprocess.Popen([sys.executable, "-m", "scanflow_server.mlflow_server"]) as process:
        try:
            wait_until(listens, "MLflow's server listens")
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


@pytest.mark.usefixtures("mlflow")
def test_a_person_reads_runs_and_their_files_after_the_login(
    browser: Browser, server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("kept beside the run")
    run = open_knowledge(server.home, served=True).log_run(
        "shop", "data", name="quick-fox", metrics={"accuracy": 0.875}, artifacts=tmp_path / "notes.txt"
    )
    browser.resize(1200)
    browser.open(f"{server.url}/mlflow/", "Log in")
    browser.press(server.api.post("/tokens", json={"name": "ada", "role": "viewer"}).json()["token"], ENTER)
    browser.wait_for("scanflow-shop-data")
    experiment = open_knowledge(server.home, served=True).prepare("shop", "data")["MLFLOW_EXPERIMENT_ID"]
    page = f"{server.url}/mlflow/#/experiments/{experiment}/runs/{run.run_id}"
    browser.open(page, "quick-fox")
    browser.wait_for("0.875")
    browser.open(f"{page}/artifacts", "notes.txt")
    assert browser.list_hosts() == {server.url}, "nothing is fetched from elsewhere"
