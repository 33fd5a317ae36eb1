"""A search as a batch workflow of one step, so that agents can run it in a process of its own."""

from __future__ import annotations

from typing import Any

from scanflow.app.executor import Executor
from scanflow.app.resources import Resources
from scanflow.app.workflow import Workflow
from scanflow.tuning.goals import GoalName

RUN_PREFIX = "tune-"
"""Prefix of the names of workflows whose runs are searches for a service."""

SETUP_S = 300.0
"""Time in seconds that a search may take beyond its budget, to deploy its copy and to delete it."""


def build_tuning_workflow(
    service: str,
    *,
    inputs: Any = None,
    file: str | None = None,
    goal: GoalName = "throughput",
    p99_s: float | None = None,
    trials: int = 20,
    minutes: float = 15.0,
    seconds: float = 3.0,
    connections: int = 16,
) -> Workflow:
    """Return a workflow whose run is ``scanflow tune SERVICE``.

    Its step leaves ``winner`` (None: nothing is better beyond noise), ``default``, ``comparison``, ``trials``,
    ``history`` and the other values of ``tuning.json`` as outputs.

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
    """
    parameters = {
        "service": service,
        "inputs": inputs,
        "file": file,
        "goal": goal,
        "p99_s": p99_s,
        "trials": trials,
        "minutes": minutes,
        "seconds": seconds,
        "connections": connections,
    }
    step = Executor(
        name="tune",
        function="scanflow.tuning.step:tune",
        parameters=parameters,
        resources=Resources(cpu=1),
        timeout=60 * minutes + SETUP_S,
    )
    return Workflow(name=f"{RUN_PREFIX}{service}", nodes=[step])
