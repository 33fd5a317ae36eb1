"""A search as a batch workflow of one step, so that agents can run it in a process of its own: the step runs
``scanflow tune``, and writes its result as outputs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scanflow.app.executor import Executor
from scanflow.app.resources import Resources
from scanflow.app.workflow import Workflow
from scanflow.errors import StepFailedError
from scanflow.outputs import output, output_dir

RUN_PREFIX = "tune-"
"""Prefix of the names of workflows whose runs are searches for a service."""

SETUP_S = 300.0
"""Time in seconds that a search may take beyond its budget, to deploy its copy and to delete it."""

OUTPUTS = (
    "service",
    "goal",
    "p99_s",
    "cores",
    "default",
    "best",
    "winner",
    "comparison",
    "candidates",
    "history",
    "interrupted",
)
"""The outputs of ``scanflow tune --json``."""


def build_tuning_workflow(service: str, *, minutes: float = 15.0, **parameters: Any) -> Workflow:
    """Return a workflow whose run is ``scanflow tune SERVICE``.

    Its step leaves ``winner`` (None: nothing is better beyond noise), ``default``, ``comparison``, ``trials``,
    ``history`` and the other values of ``tuning.json`` as outputs. ``parameters``: those of :func:`tune`.
    """
    step = Executor(
        name="tune",
        function="scanflow.tuning.step:tune",
        parameters={"service": service, "minutes": minutes, **parameters},
        resources=Resources(cpu=1),
        timeout=60 * minutes + SETUP_S,
    )
    return Workflow(name=f"{RUN_PREFIX}{service}", nodes=[step])


def tune(
    service: str,
    inputs: Any = None,
    file: str | None = None,
    goal: str = "throughput",
    p99_s: float | None = None,
    trials: int = 20,
    minutes: float = 15.0,
    seconds: float = 3.0,
    connections: int = 16,
) -> None:
    """Search for the configuration that best reaches a goal: a step of :func:`build_tuning_workflow`.

    Args:
        service: The name of a deployed service.
        inputs: What is sent: rows, or a mapping of input names to rows.
        file: The file with what is sent, in place of ``inputs``; relative to the application's file.
        goal: ``throughput``, ``latency`` or ``cost``.
        p99_s: A bound of the 99th percentile that has to be kept, in seconds.
        trials: Candidates to measure at most.
        minutes: How long at most.
        seconds: Of one measurement.
        connections: How many callers.

    Raises:
        StepFailedError: the search ended without a result; its own message is in the step's log.
    """
    folder = output_dir()
    if file is None:
        file = str(folder / "inputs.json")
        Path(file).write_text(json.dumps(inputs), encoding="utf-8")
    options = {"goal": goal, "trials": trials, "minutes": minutes, "seconds": seconds, "connections": connections}
    if p99_s is not None:
        options["p99"] = f"{p99_s}s"
    command = tune_command(service, file, folder / "tuning", options)
    with _leave_stop_to_program():
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise StepFailedError(
            f"The search for {service!r} exited with code {done.returncode}. The reason is in the step's log, on "
            "standard error."
        )
    result = json.loads(done.stdout)
    for name in OUTPUTS:
        output(name, result[name])
    output("trials", len(result["trials"]))


def tune_command(service: str, file: str, folder: Path, options: Mapping[str, object]) -> list[str]:
    """Return the command line of a search that writes its files into ``folder``."""
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "scanflow_client", "tune", service, file, *words, "--out", str(folder), "--json"]


@contextmanager
def _leave_stop_to_program() -> Iterator[None]:
    """Ignore SIGTERM: the program gets it too, and deletes its copy of the service. What a step leaves running
    is killed once the step has ended, so this step must not end first."""
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: None)  # unlike SIG_IGN, not inherited
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
