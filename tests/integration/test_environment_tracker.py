"""The tracker of an environment on a cluster: its steps, which begin at the same moment, log to one experiment."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from scanflow.http.home_token import make_step_token
from scanflow.knowledge.step_environment import build_step_environment
from scanflow_server.mlflow_server import TOKEN
from tests.serving import reserve_port
from tests.tracker_process import answering
from tests.waiting import PATIENCE_S

KEY = "scanflow_key"
STEP = """
import mlflow

print("ready", flush=True)
input()
with mlflow.start_run() as run:
    print(run.info.experiment_id, flush=True)
"""


@pytest.mark.slow
def test_steps_that_log_first_at_the_same_moment_log_to_one_experiment(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    own = {"MLFLOW_BACKEND_STORE_URI": f"sqlite:///{tmp_path / 'db'}", TOKEN: KEY}
    own["MLFLOW_ARTIFACTS_DESTINATION"] = str(tmp_path / "files")
    steps = list[subprocess.Popen[str]]()
    with reserve_port() as port:
        command = [sys.executable, "-m", "scanflow_server.mlflow_server", "--port", str(port)]
        command += ["--environment", "shop/data"]
        with contextmanager(answering)(command, tmp_path, port, **own) as url:
            variables = build_step_environment(url, app="shop", team="data")
            variables["MLFLOW_TRACKING_TOKEN"] = make_step_token(KEY, "shop", "data")
            try:
                for _ in range(4):
                    steps.append(_start_step({**os.environ, **variables}, tmp_path))
                for step in steps:
                    assert step.stdout is not None
                    assert step.stdout.readline() == "ready\n"
                with ThreadPoolExecutor(len(steps)) as pool:
                    printed = set(pool.map(_go_on, steps))
            finally:
                for step in steps:
                    step.kill()
    assert len(printed) == 1


def _start_step(variables: dict[str, str], folder: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", STEP], cwd=folder, env=variables, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


def _go_on(step: subprocess.Popen[str]) -> str:
    out, errors = step.communicate("\n", timeout=PATIENCE_S)
    assert step.returncode == 0, errors
    return out.splitlines()[0]
