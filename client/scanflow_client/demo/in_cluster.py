"""The demo on a cluster: a pod there holds server and traffic, and starts all else; here is only told what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from scanflow.app.application import Application
from scanflow.backends.environments import EnvironmentBackend
from scanflow.backends.port import Backend
from scanflow.errors import InvalidError, StepFailedError
from scanflow_client.signals import end_on_signals

REPORT: Final = "scanflow-demo-report: "
"""What a line begins with that names the finished report, in the pod."""

PROGRAM: Final = ("python", "-u", "-m", "scanflow_client.demo.in_pod")


def demo_in_cluster(backend: Backend, app: Application, report: Path, say: Callable[[str], None]) -> None:
    """Play the demo on the cluster of a backend, write its report, and leave nothing there.

    Raises:
        InvalidError: there is an environment of the demo's application already.
        StepFailedError: it did not come to its end; what it wrote was told.
    """
    environments = backend.environments()
    _check_free(environments, app)
    say("The demo runs in a pod of your cluster, and so does all that it starts.")
    found = False
    with end_on_signals(say, "Ending what the demo started ..."):
        try:
            with backend.program(PROGRAM, {}) as program:
                found = _relay(program.lines(), lambda path: _keep(report, program.read(path)), say)
        finally:
            environments.delete(app)
    if not found:
        raise StepFailedError("The demo did not come to its end. What it wrote is above.")
    say(f"Nothing of it is left on the cluster. Its report: {report}")


def _relay(lines: Iterable[str], keep: Callable[[str], None], say: Callable[[str], None]) -> bool:
    """Tell each line, and keep the report that one of them names; return whether one did."""
    for line in lines:
        if line.startswith(REPORT):
            keep(line.removeprefix(REPORT).strip())
            return True
        say(line)
    return False


def _keep(report: Path, page: str) -> None:
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(page, encoding="utf-8")


def _check_free(environments: EnvironmentBackend, app: Application) -> None:
    there = [one for one in environments.plan(app) if one.kind == "Namespace" and one.change != "create"]
    if there:
        raise InvalidError(
            f"The demo needs the environment of {app.name} of team {app.team}, and there is one: the namespace "
            f"{there[0].name}. Remove it if you no longer need it: kubectl delete namespace {there[0].name}"
        )
