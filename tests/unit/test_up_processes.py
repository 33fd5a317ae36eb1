"""What ``scanflow up`` and ``down`` find of a process whose shim was killed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from scanflow.deployer.remote_home import UpProcess
from scanflow.processes.daemon import Daemon
from scanflow.processes.shims import read_started
from scanflow_client.control_plane import end_process, keep_if_alive
from tests.waiting import wait_until

pytestmark = pytest.mark.processes


@pytest.fixture
def server(tmp_path: Path) -> UpProcess:
    daemon = Daemon(tmp_path)
    daemon.start([sys.executable, "-c", "import time; time.sleep(3600)"], log=tmp_path / "log", restart=True)
    return UpProcess(folder=tmp_path, pid=daemon.pid or 0, port=1, url="http://127.0.0.1:1", log=str(tmp_path / "log"))


def kill_shim(server: UpProcess) -> None:
    started = read_started(server.folder / "attempts" / "1")
    assert started is not None
    os.kill(started["shim"], signal.SIGKILL)
    wait_until(lambda: not server.is_alive(), "its shim has gone")


@pytest.mark.parametrize("look", [keep_if_alive, lambda server: end_process("server", server) or None])
def test_a_process_with_a_killed_shim_is_ended_so_that_its_port_is_free(server: UpProcess, look: object) -> None:
    kill_shim(server)
    assert psutil.Process(server.pid).is_running()
    assert callable(look)
    assert look(server) is None
    wait_until(lambda: not psutil.pid_exists(server.pid), "it has ended")


def test_a_process_under_its_shim_runs_on(server: UpProcess) -> None:
    assert keep_if_alive(server) is server
    assert server.is_alive()
    assert end_process("server", server) == [f"the server at {server.url} (process {server.pid})"]
    assert keep_if_alive(None) is None
