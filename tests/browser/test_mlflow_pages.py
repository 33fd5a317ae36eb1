"""MLflow's own pages behind the server's login, as a person sees them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scanflow.knowledge import open_knowledge
from tests.browser.chromium import Browser
from tests.browser.shop_models import serve_mlflow
from tests.server import ServerProcess

pytestmark = [pytest.mark.browser, pytest.mark.processes, pytest.mark.filterwarnings("default")]

ENTER = "\ue007"


@pytest.fixture
def mlflow(home: Path) -> Iterator[None]:
    pytest.importorskip("mlflow")
    with serve_mlflow(home):
        yield


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
