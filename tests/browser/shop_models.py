"""What MLflow has of a shop: a model of three versions, and a search for the best configuration of its service."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from scanflow.application_loading import load_application
from scanflow.errors import UnavailableError
from scanflow.knowledge import KnowledgeBase, open_knowledge
from scanflow.knowledge.mlflow.mlflow_socket import find_server_socket, is_listening
from scanflow.knowledge.step_environment import locate_tracker
from scanflow.knowledge.version_tags import ACTION, BEFORE, CHAMPION, PROMOTED, PROMOTION, format_rejection
from scanflow.tuning.candidates import Candidate
from scanflow.tuning.goals import Goal, Measurement
from scanflow.tuning.result import Trial, TuningResult
from scanflow_client.tuning import log_tuning
from scanflow_client.tuning_report import TuningReport, draw_tuning
from scanflow_client.tuning_target import TuningTarget
from tests.browser.shop_records import APP, MODEL, SERVICE, TEAM
from tests.waiting import PATIENCE_S, wait_until

MLMODEL = """
flavors:
  sklearn: {pickled_model: model.pkl, serialization_format: pickle}
signature:
  inputs: '[{"type": "tensor", "tensor-spec": {"dtype": "float64", "shape": [-1, 4]}}]'
  outputs: '[{"type": "tensor", "tensor-spec": {"dtype": "float64", "shape": [-1]}}]'
"""


@contextmanager
def serve_mlflow(home: Path) -> Iterator[None]:
    """Run MLflow's server over the home's tracker, as ``scanflow up`` does. ``SCANFLOW_HOME`` names the home."""

    def answers() -> bool:
        path = find_server_socket(locate_tracker(home))
        if path is None or not is_listening(path):
            return False
        try:
            open_knowledge(home, served=True).list_models()
        except UnavailableError:  # it makes its database and loads itself, for minutes on a busy machine
            return False
        return True

    with subprocess.Popen([sys.executable, "-m", "scanflow_server.mlflow_server"]) as process:
        try:
            wait_until(answers, "MLflow's server answers")
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def register_versions(home: Path, run: str) -> None:
    """Register three versions, that run's: the second is in use, the third was rejected."""
    from sklearn.linear_model import LinearRegression

    knowledge = open_knowledge(home, served=True)
    rows = np.random.default_rng(1).normal(size=(20, 4))
    with TemporaryDirectory() as folder:
        Path(folder, "MLmodel").write_text(MLMODEL)
        for number in range(1, 4):
            model = LinearRegression().fit(rows, rows.sum(axis=1) * number)
            Path(folder, "model.pkl").write_bytes(pickle.dumps(model))
            knowledge.register_model(MODEL, Path(folder), app=APP, team=TEAM, tags={"scanflow.run": run})
    knowledge.set_model_alias(MODEL, CHAMPION, 2)
    knowledge.set_model_tags(MODEL, 1, {PROMOTION: PROMOTED})
    knowledge.set_model_tags(MODEL, 2, {PROMOTION: PROMOTED, ACTION: "i-promoted", BEFORE: "1"})
    knowledge.set_model_tags(MODEL, 3, {PROMOTION: format_rejection("it is worse on clean data")})


def log_search(home: Path, source: Path) -> str:
    """Log what a search measured, as ``scanflow tune`` does; return its id."""
    app, path, _ = load_application(str(source))
    default = Candidate(instances=1, cores=4.0)
    candidates = {
        Candidate(instances=2, cores=2.0): (130.0, 0.026),
        Candidate(instances=4, cores=1.0): (148.0, 0.021),
        Candidate(instances=4, cores=1.0, affinity="cpu"): (163.0, 0.024),
    }
    trials = [_measure_candidate(candidate, *figures, count=2) for candidate, figures in candidates.items()]
    failed = _measure(0, 0.5, failed=50, reason="The copy was not ready within 60 s.")
    lost = Trial(candidate=Candidate(instances=1, cores=1.0), default=(_measure(100, 0.03),), measured=(failed,))
    best = trials[-1].candidate
    result = TuningResult(
        goal=Goal(),
        default=default,
        trials=(*trials, lost),
        best=best,
        fresh=_measure_candidate(best, 163.0, 0.024, count=6),
        alternatives=11,
    )
    report = TuningReport(
        target=TuningTarget(app=app, workflow=app.workflow(SERVICE), source=path), result=result, cores=4
    )
    knowledge: KnowledgeBase = open_knowledge(home, served=True)
    return log_tuning(knowledge, home, report, str(draw_tuning(report))).run_id


def _measure_candidate(candidate: Candidate, rate: float, p99_s: float, *, count: int) -> Trial:
    default, measured = ([_measure(*of) for _ in range(count)] for of in ((100.0, 0.03), (rate, p99_s)))
    return Trial(candidate=candidate, default=tuple(default), measured=tuple(measured))


def _measure(rate: float, p99_s: float, **more: Any) -> Measurement:
    return Measurement(rate=rate, p50_s=p99_s / 3, p90_s=p99_s / 2, p99_s=p99_s, requests=50, **more)
