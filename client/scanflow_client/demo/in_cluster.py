"""The demo on a cluster: a pod runs the server and the traffic and starts the rest; this module relays its output."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from scanflow.app.application import Application
from scanflow.backends.backend_port import Backend
from scanflow.backends.environments import EnvironmentBackend
from scanflow.errors import InvalidError, StepFailedError
from scanflow_client.signals import end_on_signals

REPORT: Final = "scanflow-demo-report: "
"""Prefix of the line that names the finished report, in the pod."""

PROGRAM: Final = ("python", "-u", "-m", "scanflow_client.demo.in_pod")


def run_in_cluster(backend: Backend, app: Application, report: Path, say: Callable[[str], None]) -> None:
    """Run the demo on the cluster of a backend, write its report, and delete everything it created.

    Raises:
        InvalidError: an environment of the demo's application exists already.
        StepFailedError: the demo ended early; its output was printed.
    """
    environments = backend.environments()
    _check_free(environments, app)
    say("The demo and everything that it starts run in pods of your cluster.")
    is_complete = False
    with end_on_signals(say, "Stopping what the demo started ..."):
        try:
            with backend.program(PROGRAM, {}) as program:
                is_complete = _relay(program.lines(), lambda path: _write_report(report, program.read(path)), say)
        finally:
            environments.delete(app)
    if not is_complete:
        raise StepFailedError("The demo did not finish. Its output is above.")
    say(f"Everything was deleted from the cluster. Report: {report}")


def _relay(lines: Iterable[str], keep: Callable[[str], None], say: Callable[[str], None]) -> bool:
    """Print each line, and keep the report that one of them names; return whether one did."""
    for line in lines:
        if line.startswith(REPORT):
            keep(line.removeprefix(REPORT).strip())
            return True
        say(line)
    return False


def _write_report(report: Path, page: str) -> None:
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(page, encoding="utf-8")


def _check_free(environments: EnvironmentBackend, app: Application) -> None:
    existing = [change for change in environments.plan(app) if change.kind == "Namespace" and change.change != "create"]
    if existing:
        raise InvalidError(
            f"The demo needs the environment of {app.name} of team {app.team}, which exists already: the namespace "
            f"{existing[0].name}. Remove it if you no longer need it: kubectl delete namespace {existing[0].name}"
        )
