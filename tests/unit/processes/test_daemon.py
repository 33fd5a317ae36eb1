"""Processes that outlive whoever starts them: one at a time, asked by any process, whoever is killed when."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scanflow.processes.daemon import Daemon
from scanflow.processes.identity import read_start_time
from scanflow.processes.shims import Spec, create_attempt_folder, read_exit, read_started
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.processes

WAITS = [sys.executable, "-c", "import os, time; print(os.environ['WHO'], flush=True); time.sleep(3600)"]
STUBBORN = (
    "import signal, subprocess, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "child = subprocess.Popen(['sleep', '3600']); print(child.pid, flush=True); time.sleep(3600)"
)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path)
    yield daemon
    daemon.stop()
    assert daemon.wait(PATIENCE_S)


def start(daemon: Daemon, tmp_path: Path, command: list[str] = WAITS, grace_s: float = 0.2) -> int:
    environment = {**os.environ, "WHO": "me"}
    assert daemon.start(command, log=tmp_path / "log", environment=environment, grace_s=grace_s)
    assert daemon.pid is not None
    return daemon.pid


def read_log(tmp_path: Path) -> str:
    log = tmp_path / "log"
    wait_until(lambda: log.exists() and log.read_text().endswith("\n"), "it has written")
    return log.read_text()


def test_one_at_a_time_runs_and_any_process_may_ask_and_stop_it(daemon: Daemon, tmp_path: Path) -> None:
    assert (daemon.alive, daemon.pid, daemon.cancel_start()) == (False, None, True)
    pid = start(daemon, tmp_path)
    assert read_log(tmp_path) == "me\n"
    other = Daemon(tmp_path)
    assert (other.alive, other.pid, other.cancel_start()) == (True, pid, False)
    assert not other.start(WAITS, log=tmp_path / "log")
    assert not other.wait(0.0)
    other.stop()
    assert daemon.wait(PATIENCE_S)
    assert (daemon.alive, daemon.pid) == (False, None)
    ended = read_exit(tmp_path / "attempts" / "1")
    assert ended is not None
    assert ended.reason == "stopped"
    assert start(daemon, tmp_path) != pid
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_what_does_not_end_when_requested_is_killed_with_all_that_it_started(daemon: Daemon, tmp_path: Path) -> None:
    start(daemon, tmp_path, [sys.executable, "-c", STUBBORN])
    child = int(read_log(tmp_path))
    daemon.stop()
    assert daemon.wait(PATIENCE_S)
    wait_until(lambda: not read_start_time(child), "its child is gone")


def test_a_start_that_was_requested_and_never_happened_never_will(daemon: Daemon, tmp_path: Path) -> None:
    late = create_attempt_folder(tmp_path / "attempts" / "1", Spec(argv=WAITS, cwd="/"))
    assert daemon.cancel_start()
    assert (late / "claim").exists()
    start(daemon, tmp_path)
    assert [path.name for path in (tmp_path / "attempts").iterdir()] == ["2"]


@pytest.mark.parametrize("how", ["stop", "start"])
def test_what_a_killed_shim_left_is_ended(daemon: Daemon, tmp_path: Path, how: str) -> None:
    pid = start(daemon, tmp_path)
    started = read_started(tmp_path / "attempts" / "1")
    assert started is not None
    os.kill(started["shim"], signal.SIGKILL)
    assert daemon.wait(PATIENCE_S)
    assert read_start_time(pid)
    if how == "stop":
        daemon.stop()
    else:
        start(daemon, tmp_path)
    assert not read_start_time(pid)


def test_a_program_that_is_not_there_says_so_in_the_log(daemon: Daemon, tmp_path: Path) -> None:
    assert daemon.start(["/no/such/program"], log=tmp_path / "log")
    assert daemon.wait(PATIENCE_S)
    assert "FileNotFoundError" in read_log(tmp_path)


def start_again(daemon: Daemon, tmp_path: Path, code: str) -> None:
    environment = {**os.environ, "WHO": "me"}
    daemon.start([sys.executable, "-c", code], log=tmp_path / "log", environment=environment, grace_s=0.2, restart=True)


COUNTS = "import time; print('begun', flush=True); time.sleep(3600)"


def test_one_that_is_to_be_there_is_started_again_whenever_it_is_killed_until_it_is_stopped(
    daemon: Daemon, tmp_path: Path
) -> None:
    start_again(daemon, tmp_path, COUNTS)
    for count in range(1, 4):
        wait_until(lambda count=count: read_log(tmp_path).count("begun") == count, "it runs")  # type: ignore[misc]
        pid = daemon.pid
        assert pid is not None
        assert daemon.alive
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: daemon.pid not in {pid, None}, "another one runs")  # type: ignore[misc]
    daemon.stop()
    assert daemon.wait(PATIENCE_S)
    assert (daemon.alive, daemon.pid) == (False, None)
    ended = read_exit(tmp_path / "attempts" / "1")
    assert ended is not None
    assert ended.reason == "stopped"


def test_its_children_are_gone_before_it_is_started_again(daemon: Daemon, tmp_path: Path) -> None:
    start_again(daemon, tmp_path, STUBBORN)
    child, pid = int(read_log(tmp_path)), daemon.pid
    birth = read_start_time(child)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(read_log(tmp_path).split()) == 2, "another one runs")
    wait_until(lambda: read_start_time(child) != birth, "its child is gone")


def test_one_that_is_stopped_while_it_waits_for_its_restart_is_not_started(daemon: Daemon, tmp_path: Path) -> None:
    start_again(daemon, tmp_path, "import os, signal; print('begun', flush=True); os.kill(os.getpid(), signal.SIGKILL)")
    wait_until(lambda: read_log(tmp_path).count("begun") >= 6, "its pauses are long")
    daemon.stop()
    assert daemon.wait(PATIENCE_S)
    assert not daemon.alive


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_one_that_cannot_start_or_has_ended_is_not_started_again(daemon: Daemon, tmp_path: Path, code: int) -> None:
    start_again(daemon, tmp_path, f"raise SystemExit({code})")
    assert daemon.wait(PATIENCE_S)
    ended = read_exit(tmp_path / "attempts" / "1")
    assert ended is not None
    assert ended.exit_code == code


def test_one_with_a_missing_folder_is_not_started_again(daemon: Daemon, tmp_path: Path) -> None:
    start_again(daemon, tmp_path, COUNTS)
    read_log(tmp_path)
    pid = daemon.pid
    assert pid is not None
    shim = read_started(tmp_path / "attempts" / "1")
    assert shim is not None
    (tmp_path / "attempts").rename(tmp_path / "elsewhere")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not read_start_time(int(shim["shim"])), "its shim has ended")
    assert (tmp_path / "log").read_text().count("begun") == 1
