"""The tutorials' steps, started by hand as a backend starts them."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from scanflow.application_loading import load_application
from scanflow.knowledge import KnowledgeBase, open_knowledge
from tests.waiting import patient

REPOSITORY = Path(__file__).resolve().parents[2]
TUTORIALS = REPOSITORY / "tutorials"
TUTORIAL = TUTORIALS / "mnist"
DATA = Path(os.environ.get("SCANFLOW_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
LONGEST_STEP_S = patient(300)


class Steps:
    """Steps of one run: a folder with their outputs, and an MLflow database in it."""

    def __init__(self, folder: Path, *, tracked: bool = False, environment: dict[str, str] | None = None) -> None:
        self.folder, self._environment = folder, environment or {}
        self.tracking_uri = f"sqlite:///{folder}/mlflow.db"
        if tracked:
            self.client.create_experiment("mnist", artifact_location=(folder / "artifacts").as_uri())

    @property
    def client(self) -> Any:
        import mlflow

        return mlflow.MlflowClient(self.tracking_uri)

    def list_tracked_runs(self, filter_string: str = "") -> list[Any]:
        return list(self.client.search_runs(["1"], filter_string))

    def start(self, script: str, name: str, **parameters: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(TUTORIAL / script)]
        command += [part for key, value in parameters.items() for part in (f"--{key}", str(value))]
        output = self.folder / name
        output.mkdir(exist_ok=True)
        environment = (
            os.environ
            | {
                "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "client")]),
                "SCANFLOW_RUN": "calm-otter-417",
                "SCANFLOW_STEP": name,
                "SCANFLOW_OUTPUT_DIR": str(output),
                "MLFLOW_TRACKING_URI": self.tracking_uri,
                "MLFLOW_EXPERIMENT_NAME": "mnist",
                "TF_NUM_INTRAOP_THREADS": "1",
                "TF_NUM_INTEROP_THREADS": "1",
            }
            | self._environment
        )
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


class Project:
    """A home folder, and what a backend and the agents do with the workflows of an application."""

    def __init__(self, folder: Path, file: Path) -> None:
        self.folder, self.tutorial = folder, file.parent
        self.application, _, _ = load_application(str(file))
        self.app = self.application.name, self.application.team
        self.tracker: KnowledgeBase = open_knowledge(folder)
        self.environment = self.tracker.prepare(*self.app)

    def run(self, workflow: str, run: str, **parameters: Any) -> dict[str, Any]:
        """Run a workflow's only step, and return its outputs."""
        (node,) = self.application.workflow(workflow).steps
        module, _, name = str(node.function).partition(":")
        output = self.folder / run
        output.mkdir(exist_ok=True)
        own = {"APP": self.app[0], "TEAM": self.app[1], "RUN": run, "STEP": node.name, "OUTPUT_DIR": str(output)}
        variables = self.environment | {f"SCANFLOW_{name}": value for name, value in own.items()}
        with mock.patch.dict(os.environ, variables), contextlib.chdir(self.tutorial):
            getattr(importlib.import_module(module), name)(**{**node.parameters, **parameters})
        return {file.name: json.loads(file.read_text()) for file in (output / ".outputs").iterdir()}

    def log_predictions(self, arrays: Mapping[str, Any], name: str) -> str:
        """Keep predictions as the agents do, and return their tracked run."""
        file = self.folder / f"{name}.npz"
        np.savez(file, **arrays)
        return self.tracker.log_run(*self.app, tags={"scanflow.kind": "predictions"}, artifacts=file).run_id

    def label_points(self, run: str, truth: Any, before: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
        """Label what a detection picked by ``truth(index)``, and return the tracked run with all labels, and these."""
        (tracked,) = self.tracker.search_runs(*self.app, f"tags.`scanflow.run` = '{run}'")
        points = json.loads((self.folder / run / "picked.json").read_text())
        fields = ("id", "purpose")
        some = [
            {name: point[name] for name in fields}
            | {"run": run, "data": {"tracked": tracked.run_id, "at": at}, "label": truth(point["index"])}
            for at, point in enumerate(points)
        ]
        file = self.folder / "labels.json"
        file.write_text(json.dumps(before + some))
        tags = {"scanflow.kind": "labels"}
        return self.tracker.log_run(*self.app, tags=tags, artifacts=file).run_id, before + some
