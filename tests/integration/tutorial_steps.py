"""The MNIST tutorial's steps, started by hand as a backend starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
TUTORIAL = REPOSITORY / "tutorials" / "mnist"
DATA = Path(os.environ.get("SCANFLOW_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
LONGEST_STEP_S = 300


class Steps:
    """Steps of one run: a folder with their outputs, and an MLflow database in it."""

    def __init__(self, folder: Path, *, tracked: bool = False) -> None:
        self.folder = folder
        self.tracking_uri = f"sqlite:///{folder}/mlflow.db"
        if tracked:
            self.client.create_experiment("mnist", artifact_location=(folder / "artifacts").as_uri())

    @property
    def client(self) -> Any:
        import mlflow

        return mlflow.MlflowClient(self.tracking_uri)

    def tracked(self, filter_string: str = "") -> list[Any]:
        return list(self.client.search_runs(["1"], filter_string))

    def start(self, script: str, name: str, **parameters: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(TUTORIAL / script)]
        command += [part for key, value in parameters.items() for part in (f"--{key}", str(value))]
        output = self.folder / name
        output.mkdir(exist_ok=True)
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "client")]),
            "SCANFLOW_RUN": "calm-otter-417",
            "SCANFLOW_STEP": name,
            "SCANFLOW_OUTPUT_DIR": str(output),
            "MLFLOW_TRACKING_URI": self.tracking_uri,
            "MLFLOW_EXPERIMENT_NAME": "mnist",
            "TF_NUM_INTRAOP_THREADS": "1",
            "TF_NUM_INTEROP_THREADS": "1",
        }
        return subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def finish(self, *steps: subprocess.Popen[str], fails: bool = False) -> str:
        try:
            log = "\n".join(step.communicate(timeout=LONGEST_STEP_S)[0] for step in steps)
        finally:
            for step in steps:
                step.kill()
        assert all(bool(step.returncode) is fails for step in steps), log
        assert not fails or "Traceback" not in log
        return log

    def output(self, step: str, name: str) -> Any:
        return json.loads((self.folder / step / ".outputs" / name).read_text())
