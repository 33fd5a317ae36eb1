"""A run whose driver is killed at any moment is resumed to its end, and every step has run exactly once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from scanflow_client.client import Client
from tests.conftest import COMMAND
from tests.waiting import patient, wait_until

KILLS = 50
SHARES = 5  # so that test runners may spread them

_APP = """
import os, time
import scanflow as sf

LEDGER = os.environ["TEST_LEDGER"]

def note(what):
    # One write of a short line to a file opened for appending is whole or not there.
    with open(LEDGER, "a") as ledger:
        ledger.write(what + "\\n")

@sf.step
def load(count: int = 3) -> list[int]:
    note("load begins")
    time.sleep(0.02)
    note("load ends")
    return list(range(count))

@sf.step
def work(item: int) -> int:
    note(f"work.{item} begins")
    time.sleep(0.03)
    note(f"work.{item} ends")
    return item

@sf.step
def total(values: list[int]) -> int:
    note("total begins")
    note("total ends")
    return sum(values)

first = load.bind()
middle = work.map(first)
last = total.bind(middle)
script = sf.Executor(name="script", mainfile="script.py")
beside = sf.Executor(name="beside", mainfile="script.py")
app = sf.Application(
    name="killed",
    workflows=[sf.Workflow(name="w", nodes=[first, middle, last, script, beside], edges=[script >> last])],
)
"""
_SCRIPT = """
import os, time
name = os.environ["SCANFLOW_TASK"]
with open(os.environ["TEST_LEDGER"], "a") as ledger:
    ledger.write(name + " begins\\n")
    ledger.flush()
    time.sleep(0.05)
    ledger.write(name + " ends\\n")
"""
TASKS = ("load", "work.0", "work.1", "work.2", "total", "script", "beside")
LINES = 2 * len(TASKS)
LIMIT_S = patient(120)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environ = {**os.environ, "TEST_LEDGER": str(folder / "ledger"), "SCANFLOW_SLOTS": "2"}
    return subprocess.Popen(
        [*COMMAND, *arguments], cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def kill_once(process: subprocess.Popen[str], reached: Callable[[], bool], pause_s: float) -> bool:
    """Kill a process so long after something is reached, and return whether it still ran then."""
    wait_until(lambda: reached() or process.poll() is not None, "it is under way")
    threading.Event().wait(pause_s)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=LIMIT_S)
    return process.returncode == -signal.SIGKILL


@pytest.mark.endurance
@pytest.mark.timeout(900)
@pytest.mark.parametrize("share", range(SHARES))
def test_a_run_killed_at_random_moments_loses_nothing_and_repeats_nothing(
    share: int, home: Path, tmp_path: Path
) -> None:
    rng = random.Random(share)
    (tmp_path / "app.py").write_text(_APP)
    (tmp_path / "script.py").write_text(_SCRIPT)
    ledger = tmp_path / "ledger"
    client = Client()
    kills = runs = 0

    def count_output() -> int:
        return len(ledger.read_text().splitlines()) if ledger.exists() else 0

    def is_driven(*, lines: int) -> bool:
        """Say whether somebody drives the newest run, and its ledger has so many lines: who still imports is spared."""
        records = client.runs(limit=1000)
        return len(records) == runs and records[0].state == "running" and count_output() >= lines

    while kills < KILLS // SHARES:
        ledger.unlink(missing_ok=True)
        runs += 1
        reached = partial(is_driven, lines=rng.randrange(LINES))
        kills += kill_once(start(tmp_path, "run"), reached, rng.uniform(0, 0.05))
        if rng.random() < 0.5:  # and the one who resumes is killed too
            reached = partial(is_driven, lines=rng.randrange(count_output(), LINES + 1))
            kills += kill_once(start(tmp_path, "resume", "@latest"), reached, rng.uniform(0, 0.05))
        _finish(tmp_path)
        lines = ledger.read_text().splitlines()
        assert Counter(lines) == Counter(f"{task} {what}" for task in TASKS for what in ("begins", "ends"))
        record = client.show()
        assert record.state == "succeeded"
        assert {task.task: task.state for task in record.tasks} == dict.fromkeys(TASKS, "succeeded")


def _finish(folder: Path) -> None:
    process = start(folder, "resume", "@latest")
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output


def write_waiting_app(folder: Path) -> None:
    (folder / "wait.py").write_text(
        "import os, pathlib, time\nprint(os.getpid(), flush=True)\n"
        "while not pathlib.Path('go').exists():\n    time.sleep(0.01)\n"
    )
    (folder / "app.py").write_text(
        "import scanflow as sf\nx = sf.Executor(name='x', mainfile='wait.py')\n"
        "app = sf.Application(name='a', workflows=[sf.Workflow(name='w', nodes=[x])])"
    )


def test_a_step_that_runs_on_after_its_driver_was_killed_is_adopted_not_repeated(home: Path, tmp_path: Path) -> None:
    write_waiting_app(tmp_path)
    driver = start(tmp_path, "run")
    log = _wait_for_log(home)
    pid = log.read_text()
    driver.kill()
    driver.communicate(timeout=LIMIT_S)
    shown = start(tmp_path, "show").communicate(timeout=LIMIT_S)[0]
    assert "interrupted" in shown
    assert "scanflow resume" in shown
    resumed = start(tmp_path, "resume")
    assert resumed.stdout is not None
    for line in resumed.stdout:
        if "adopted" in line:
            break
    (tmp_path / "go").touch()
    resumed.communicate(timeout=LIMIT_S)
    assert resumed.returncode == 0
    assert log.read_text() == pid


def _wait_for_log(home: Path) -> Path:
    def count_output() -> list[Path]:
        return [path for path in home.rglob("stdout.log") if path.stat().st_size]

    wait_until(count_output, "the only step of the only run has said something")
    return count_output()[0]


@pytest.mark.slow
@pytest.mark.parametrize("driven", [True, False])
def test_a_run_can_be_stopped_but_not_driven_by_another_process_and_resumed(
    home: Path, tmp_path: Path, driven: bool
) -> None:
    write_waiting_app(tmp_path)
    driver = start(tmp_path, "run")
    _wait_for_log(home)
    if driven:
        second = start(tmp_path, "resume")
        assert "is running. Watch it: scanflow show" in second.communicate(timeout=LIMIT_S)[0]
        assert second.returncode == 3
    else:
        driver.kill()
        driver.communicate(timeout=LIMIT_S)
    stopped = start(tmp_path, "stop")
    assert "top" in stopped.communicate(timeout=LIMIT_S)[0]
    assert stopped.returncode == 0
    if driven:
        output, _ = driver.communicate(timeout=LIMIT_S)
        assert driver.returncode == 130
        assert "stopped" in output
    assert "■ stopped" in start(tmp_path, "runs").communicate(timeout=LIMIT_S)[0]
    (tmp_path / "go").touch()
    _finish(tmp_path)
