from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from scanflow.errors import UnavailableError
from scanflow.processes import restarter, shim
from scanflow.processes.shims import MAX_LOST, Exit, Shims, Spec, create_attempt_folder, read_exit, stop_attempt
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.processes


@pytest.fixture
def shims() -> Iterator[Shims]:
    with Shims() as shims:
        yield shims


def attempt(folder: Path, *argv: str, **fields: object) -> Path:
    return create_attempt_folder(folder, Spec(argv=argv, cwd=str(folder.parent), **fields))  # type: ignore[arg-type]


def wait_for_exit(shims: Shims, folder: Path) -> Exit:
    for _ in range(1000):
        for ended, exit_ in shims.wait(PATIENCE_S):
            if ended == folder:
                return exit_
    raise AssertionError(f"{folder} did not end")


def wait_for(path: Path) -> None:
    wait_until(path.exists, f"{path} appears")


def ends(pid: int) -> bool:
    """Wait until a process is gone, or only waits for its parent to take note."""

    def is_gone() -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    wait_until(is_gone, f"the process {pid} ends")
    return True


def test_a_shim_that_never_starts_anything_is_not_started_for_ever(tmp_path: Path) -> None:
    def try_once(shims: Shims, number: int) -> Exit:
        folder = attempt(tmp_path / str(number), "true")
        shims.start(folder)
        return wait_for_exit(shims, folder)

    with Shims(warm="no_such_module_of_ours") as shims:
        assert {try_once(shims, number).reason for number in range(MAX_LOST)} == {"void"}
        with pytest.raises(UnavailableError, match="times before it started one"):
            try_once(shims, MAX_LOST)


def test_a_command_runs_on_the_cpus_it_is_given(shims: Shims, tmp_path: Path) -> None:
    cpu = max(os.sched_getaffinity(0))
    folder = attempt(tmp_path / "1", sys.executable, "-c", "import os; print(os.sched_getaffinity(0))", cpus=[cpu])
    shims.start(folder)
    assert wait_for_exit(shims, folder).succeeded
    assert (folder / "stdout.log").read_text() == f"{{{cpu}}}\n"


def test_a_command_that_ends_well_is_reported_with_what_it_used(shims: Shims, tmp_path: Path) -> None:
    folder = attempt(tmp_path / "1", "sh", "-c", "echo out; echo err >&2; echo $SEEN", env={"SEEN": "yes"})
    shims.start(folder)
    exit_ = wait_for_exit(shims, folder)
    assert exit_.succeeded
    assert exit_.exit_code == 0
    assert exit_.seconds is not None
    assert exit_.max_rss_bytes
    assert (folder / "stdout.log").read_text() == "out\nyes\n"
    assert (folder / "stderr.log").read_text() == "err\n"


@pytest.mark.parametrize(
    ("argv", "exit_code", "ended_by", "message"),
    [
        (("sh", "-c", "exit 7"), 7, None, ""),
        (("sh", "-c", "kill -SEGV $$"), None, signal.SIGSEGV, ""),
        (("/no/such/program",), 127, None, "/no/such/program"),
    ],
)
def test_how_a_command_failed_is_kept(
    shims: Shims, tmp_path: Path, argv: tuple[str, ...], exit_code: int | None, ended_by: int | None, message: str
) -> None:
    folder = attempt(tmp_path / "1", *argv)
    shims.start(folder)
    exit_ = wait_for_exit(shims, folder)
    assert (exit_.exit_code, exit_.signal, exit_.succeeded) == (exit_code, ended_by, False)
    assert message in (folder / "stderr.log").read_text()


def test_a_time_limit_ends_the_whole_group_also_what_ignores_being_stopped(shims: Shims, tmp_path: Path) -> None:
    script, child = "trap '' TERM; sleep 3600 & echo $! > child; sleep 3600", tmp_path / "child"
    signals, timeout_s = list[int | None](), 0.3
    while not (child.exists() and child.read_text()):  # longer where the script did not come that far
        folder = attempt(tmp_path / f"{timeout_s:g}", "sh", "-c", script, timeout_s=timeout_s, grace_s=0.2)
        shims.start(folder)
        exit_ = wait_for_exit(shims, folder)
        assert exit_.reason == "timeout"
        signals.append(exit_.signal)
        timeout_s *= 4
    assert signals[-1] == signal.SIGKILL
    assert ends(int(child.read_text()))


def test_what_a_step_leaves_running_ends_with_it(shims: Shims, tmp_path: Path) -> None:
    folder = attempt(tmp_path / "1", "sh", "-c", "sleep 3600 & echo $! > child")
    shims.start(folder)
    assert wait_for_exit(shims, folder).succeeded
    assert ends(int((tmp_path / "child").read_text()))


def test_an_attempt_outlives_its_runner_and_is_adopted_by_the_next(tmp_path: Path) -> None:
    folder = attempt(tmp_path / "1", "sh", "-c", "until [ -e go ]; do sleep 0.01; done; echo done")
    with Shims() as first:
        first.start(folder)
        wait_for(folder / "started")
    with Shims() as second:
        assert second.adopt(folder) is None
        (tmp_path / "go").touch()
        assert wait_for_exit(second, folder).succeeded
    assert (folder / "stdout.log").read_text() == "done\n"


def test_an_attempt_that_ended_meanwhile_is_reported_from_its_record(tmp_path: Path) -> None:
    folder = attempt(tmp_path / "1", "sh", "-c", "exit 3")
    assert read_exit(folder) is None
    with Shims() as first:
        first.start(folder)
        wait_for(folder / "exit")
    with Shims() as second:
        ended = second.adopt(folder)
    assert ended is not None
    assert ended.exit_code == 3


def test_an_attempt_that_never_began_is_void_and_can_never_begin(tmp_path: Path) -> None:
    folder = attempt(tmp_path / "1", "touch", "ran")
    with Shims() as late:
        ended = late.adopt(folder)
        assert ended is not None
        assert ended.reason == "void"
        late.start(folder)  # the request of a runner that is long dead, arriving now
        other = attempt(tmp_path / "2", "true")
        late.start(other)
        assert wait_for_exit(late, other).succeeded
    assert not (tmp_path / "ran").exists()


def test_an_attempt_that_is_stopped_before_it_began_is_reported_as_void(shims: Shims, tmp_path: Path) -> None:
    folder = attempt(tmp_path / "1", "touch", "ran")
    stop_attempt(folder)
    shims.start(folder)
    assert wait_for_exit(shims, folder).reason == "void"
    assert not (tmp_path / "ran").exists()


def test_a_killed_shim_is_reported_as_lost_and_its_step_does_not_live_on(shims: Shims, tmp_path: Path) -> None:
    folder = attempt(tmp_path / "1", "sleep", "3600")
    shims.start(folder)
    wait_for(folder / "started")
    started = json.loads((folder / "started").read_text())
    os.kill(started["shim"], signal.SIGKILL)
    assert wait_for_exit(shims, folder).reason == "lost"
    assert ends(started["pid"])


def test_a_killed_shim_is_replaced_and_what_it_had_not_begun_is_void(shims: Shims, tmp_path: Path) -> None:
    first = attempt(tmp_path / "1", "sleep", "3600")
    shims.start(first)
    wait_for(first / "started")
    os.kill(json.loads((first / "started").read_text())["shim"], signal.SIGKILL)
    assert wait_for_exit(shims, first).reason == "lost"
    third = attempt(tmp_path / "3", "true")
    while (outcome := _outcome(shims, third)) is None:  # it may be asked for before the death of the shim is seen
        third = attempt(tmp_path / f"{third.name}3", "true")
    assert outcome.succeeded


def _outcome(shims: Shims, folder: Path) -> Exit | None:
    shims.start(folder)
    exit_ = wait_for_exit(shims, folder)
    return None if exit_.reason == "void" else exit_


def test_one_shim_runs_many_attempts_and_reports_each(shims: Shims, tmp_path: Path) -> None:
    folders = [attempt(tmp_path / str(number), "sh", "-c", f"exit {number}") for number in range(20)]
    for folder in folders:
        shims.start(folder)
    ended: dict[Path, Exit] = {}
    while len(ended) < len(folders):
        ended |= dict(shims.wait(PATIENCE_S))
    assert [ended[folder].exit_code for folder in folders] == list(range(20))
    assert len({json.loads((folder / "started").read_text())["shim"] for folder in folders}) == 1


def test_stopping_one_attempt_leaves_the_others_running(shims: Shims, tmp_path: Path) -> None:
    first, other = (
        attempt(tmp_path / name, "sh", "-c", "until [ -e go ]; do sleep 0.01; done") for name in ("one", "other")
    )
    shims.start(first)
    shims.start(other)
    wait_for(first / "started")
    wait_for(other / "started")
    stop_attempt(first)
    assert wait_for_exit(shims, first).reason == "stopped"
    (tmp_path / "go").touch()
    assert wait_for_exit(shims, other).succeeded


def test_the_shim_ends_with_its_last_attempt_once_its_runner_has_let_go(tmp_path: Path) -> None:
    folder = attempt(tmp_path / "1", "sh", "-c", "until [ -e go ]; do sleep 0.01; done")
    with Shims() as shims:
        shims.start(folder)
        wait_for(folder / "started")
    shim_pid = json.loads((folder / "started").read_text())["shim"]
    assert psutil.pid_exists(shim_pid)
    (tmp_path / "go").touch()
    assert ends(shim_pid)
    assert read_exit(folder) is not None


def test_an_attempt_that_cannot_be_started_ends_no_other(shims: Shims, tmp_path: Path) -> None:
    broken = attempt(tmp_path / "1", "true")
    (broken / "spec.json").unlink()
    shims.start(broken)
    assert wait_for_exit(shims, broken).reason == "lost"
    assert "FileNotFoundError" in (broken / "shim.error").read_text()
    fine = attempt(tmp_path / "2", "true")
    shims.start(fine)
    assert wait_for_exit(shims, fine).succeeded


def keep(folder: Path, program: str) -> Path:
    """Start a shim that keeps a program running; return its log."""
    (folder / "program.py").write_text(program)
    log = folder / "kept.log"
    command = [sys.executable, "-IS", restarter.__file__, str(folder / "lock"), str(log)]
    subprocess.run([*command, sys.executable, str(folder / "program.py")], check=True, cwd=folder)
    return log


def test_a_program_is_kept_running_until_it_says_that_it_is_done(tmp_path: Path) -> None:
    log = keep(
        tmp_path,
        f"""
import os, pathlib
tries = pathlib.Path({str(tmp_path / "tries")!r})
tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
if len(tries.read_text()) < 3:
    os.kill(os.getpid(), {int(signal.SIGKILL)})
pathlib.Path({str(tmp_path / "done")!r}).touch()
""",
    )
    wait_for(tmp_path / "done")
    assert (tmp_path / "tries").read_text() == "xxx"
    assert log.read_text() == ""


def test_a_kept_program_and_what_it_starts_inherit_the_socket_it_handed_over(tmp_path: Path) -> None:
    """The first life listens and dies; the second finds the socket, and the attempt that it starts accepts from it."""
    (tmp_path / "child.py").write_text(
        "import socket\nconnection, _ = socket.socket(fileno=50).accept()\nconnection.sendall(b'hello')\n"
    )
    child = attempt(tmp_path / "child", sys.executable, str(tmp_path / "child.py"))
    keep(
        tmp_path,
        f"""
import os, pathlib, socket, sys
sys.path[:0] = {sys.path!r}
from scanflow.processes.shims import Shims
port = pathlib.Path({str(tmp_path / "port")!r})
shims = Shims(channel=socket.socket(fileno=0))
if not port.exists():
    listening = socket.create_server(("127.0.0.1", 0))
    shims.hold(50, listening)
    port.with_suffix(".part").write_text(str(listening.getsockname()[1]))
    port.with_suffix(".part").rename(port)
    os.kill(os.getpid(), {int(signal.SIGTERM)})
assert socket.socket(fileno=50).getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
shims.start(pathlib.Path({str(child)!r}))
while not shims.wait(None):
    pass
""",
    )
    wait_for(tmp_path / "port")
    with socket.create_connection(("127.0.0.1", int((tmp_path / "port").read_text())), timeout=PATIENCE_S) as caller:
        assert caller.recv(5) == b"hello"
    wait_for(child / "exit")


def test_a_full_disk_cannot_lose_the_exit_record(shims: Shims, tmp_path: Path) -> None:
    # The record's space is taken before the step starts: nothing but a rename is left to do at its end.
    folder = attempt(tmp_path / "1", "sh", "-c", "until [ -e go ]; do sleep 0.01; done")
    shims.start(folder)
    wait_for(folder / "started")
    assert (folder / "exit.part").stat().st_size == shim.RECORD_BYTES
    (tmp_path / "go").touch()
    assert wait_for_exit(shims, folder).succeeded
    assert (folder / "exit").stat().st_size == shim.RECORD_BYTES


def test_a_record_of_another_process_with_the_same_id_is_not_believed(tmp_path: Path) -> None:
    # The shim died long ago, and its step's process id was given to somebody else: us.
    folder = attempt(tmp_path / "1", "true")
    shim.claim(str(folder))
    (folder / "started").write_text(json.dumps({"pid": os.getpid(), "shim": 1, "began": 0.0, "birth": "12345"}))
    with Shims() as shims:
        ended = shims.adopt(folder)
    assert ended is not None
    assert ended.reason == "lost"  # and we are still here to see it


def test_the_runners_environment_is_not_written_to_disk(
    shims: Shims, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2")
    folder = attempt(tmp_path / "1", sys.executable, "-c", "import os; assert len(os.environ['MY_SECRET']) == 7")
    shims.start(folder)
    assert wait_for_exit(shims, folder).succeeded
    for file in folder.iterdir():
        if file.is_file():
            assert "hunter2" not in file.read_text()
