"""The demo, interrupted at any moment or failing on the way: it leaves no process behind. With real processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.conftest import COMMAND
from tests.waiting import patient, wait_until

pytestmark = [
    pytest.mark.endurance,
    pytest.mark.timeout(900),  # it trains first, on a machine that may be busy
    pytest.mark.skipif(
        find_spec("tensorflow") is None or find_spec("mlflow") is None, reason="tensorflow or mlflow is not installed"
    ),
]

LIMIT_S = patient(800)


def list_remaining_commands(home: Path) -> list[list[str]]:
    """Return the command lines of what runs in this home."""
    command_lines = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("SCANFLOW_HOME") == str(home) or str(home) in " ".join(process.cmdline())
            if mine and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                command_lines.append(process.cmdline())
        except psutil.Error:  # it has gone, or is another user's
            continue
    return command_lines


def assert_nothing_is_left(home: Path) -> None:
    # What was killed a moment ago may still be there.
    wait_until(
        lambda: not list_remaining_commands(home),
        f"nothing of it is left: {list_remaining_commands(home)}",
        patience_s=patient(30),
    )


@contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen(
        [*COMMAND, "demo", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield running
    finally:
        if running.poll() is None:  # the test has failed
            running.terminate()
            running.communicate(timeout=LIMIT_S)


@pytest.mark.parametrize(
    ("after", "number"),
    [
        pytest.param("The control plane is up", signal.SIGINT, id="while it trains"),
        pytest.param("the agents act by themselves", signal.SIGTERM, id="while the agents are started"),
        pytest.param("runs detector", signal.SIGINT, id="while an agent's run goes on"),
    ],
)
def test_it_is_interrupted(home: Path, tmp_path: Path, after: str, number: signal.Signals) -> None:
    lines = []
    with demo(tmp_path) as running:
        assert running.stdout is not None
        for line in running.stdout:
            lines.append(line)
            if after in line:
                running.send_signal(number)
                break
        rest, _ = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 130, "".join(lines) + rest
    assert "Stopping what the demo started" in rest
    assert_nothing_is_left(home)


def test_it_fails_on_the_way(home: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", y=np.zeros(3), x=np.zeros((2, 2)))
    with demo(tmp_path, "--drifted", "bad.npz") as running:
        out, _ = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 1, out
    assert "The traffic program exited" in out
    assert "needs labels y (n,)" in out
    assert_nothing_is_left(home)
