"""The loop of agents: drift, retraining, promotion (thesis 5.5.2). It is the product's own demo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scanflow.errors import StepFailedError
from scanflow.installation import explain_install
from scanflow_research.experiment import Experiment, MeasureRound, Observe
from scanflow_research.figure import Round

TIMEOUT_S = 1200.0


def find_problem() -> str | None:
    missing = [name for name in ("tensorflow", "sklearn", "mlflow", "apscheduler") if find_spec(name) is None]
    if missing:
        how = explain_install("local", "tensorflow", "server", "agents")
        return f"the demo needs {', '.join(missing)}. {how}"
    return None


@contextmanager
def open_rounds(observe: Observe) -> Iterator[MeasureRound]:
    def measure_round(number: int) -> Round:
        del number
        observe("scanflow demo")
        with TemporaryDirectory(prefix="scanflow-reproduce-") as folder:
            return read_demo(run_demo(Path(folder)))

    yield measure_round


def run_demo(folder: Path) -> Mapping[str, Any]:
    """Run the demo in a temporary home, and return its JSON output.

    Raises:
        StepFailedError: the demo failed.
    """
    environ = {name: value for name, value in os.environ.items() if name not in {"SCANFLOW_URL", "SCANFLOW_BACKEND"}}
    done = subprocess.run(
        [sys.executable, "-m", "scanflow_client", "demo", "--json"],
        cwd=folder,
        env={**environ, "SCANFLOW_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise StepFailedError(f"The demo ended with {done.returncode}: {done.stderr[-400:]}")
    printed: Mapping[str, Any] = json.loads(done.stdout)
    return printed


def read_demo(printed: Mapping[str, Any]) -> Round:
    """Return the metrics of the loop: predictions, outliers, selected samples, whether a version was promoted
    automatically, and the accuracy of the versions on drifted digits, in percent."""
    loop = printed["loop"]
    events = loop["events"]

    def sum_events(kind: str, key: str) -> float:
        return float(sum(event[key] or 0 for event in events if event["kind"] == kind))

    accuracy = [100 * (kinds["drifted"] or 0.0) for kinds in loop["accuracy"].values()]
    chain = {
        "predictions": sum_events("predictions", "count"),
        "outliers": sum_events("detection", "count"),
        "selected": sum_events("detection", "picked"),
        "promoted": float(len(accuracy) > 1),
        "failed": float(loop["failed"]),
        "seconds": loop["seconds"],
    }
    return Round(arms={"loop": chain, "V1": {"drifted": accuracy[0]}, "champion": {"drifted": accuracy[-1]}})


EXPERIMENT = Experiment(
    name="loop",
    method=(
        "`scanflow demo`: handwritten digits, a convolutional network, four agents; clean digits are sent, then "
        "drifted ones, until agents have promoted a retrained version. Intervals are seconds, not hours."
    ),
    rounds=2,
    round_s=170.0,
    find_problem=find_problem,
    open=open_rounds,
)
