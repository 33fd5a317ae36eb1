"""The step of a search: runs ``scanflow tune``, and writes its result as the step's outputs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scanflow.errors import StepFailedError
from scanflow.outputs import output, output_dir

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
    """Search for the configuration that best reaches a goal: a step of
    :func:`scanflow.tuning.tuning_workflow.build_tuning_workflow`.

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
