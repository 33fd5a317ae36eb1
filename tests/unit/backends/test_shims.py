from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from scanflow.backends.local import shim
from scanflow.backends.local.shims import Exit, Shims, Spec, attempt_folder, read_exit, stop_attempt

PATIENCE_S = 20.0


@pytest.fixture
def shims() -> Iterator[Shims]:
    with Shims() as shims:
        yield shims


def attempt(folder: Path, *argv: str, **fields: object) -> Path:
    return attempt_folder(folder, Spec(argv=argv, cwd=str(folder.parent), **fields))  # type: ignore[arg-type]


def end_of(shims: Shims, folder: Path) -> Exit:
    for _ in range(1000):
        for ended, exit_ in shims.wait(PATIENCE_S):
            if ended == folder:
                return exit_
    raise AssertionError(f"{folder} did not end")


def wait_for(path: Path) -> None:
    """Wait until another process has made a file, as its own shims would tell it."""
    with Shims() as nobody:
        for _ in range(int(PATIENCE_S / 0.01)):
            if path.exists():
                return
            nobody.wait(0.01)
    raise AssertionError(f"{path} did not appear")


def ends(pid: int) -> bool:
    """Say whether a process is gone, or only waits for its parent to take note."""
    with Shims() as nobody:
        for _ in range(int(PATIENCE_S / 0.01)):
            try:
                if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                    return True
            except psutil.NoSuchProcess:
                return True
            nobody.wait(0.01)
    return False


def test_a_command_that_ends_well_is_told_with_what_it_used(shims: Shims, tmp_path: Path) -> None:
    folder = attempt(tmp_path / "1", "sh", "-c", "echo out; echo err >&2; echo $SEEN", env={"SEEN": "yes"})
    shims.start(folder)
    exit_ = end_of(shims, folder)
    assert exit_.succeeded
    assert exit_.exit_code == 0
    assert exit_.seconds is not None
    assert exit_.max_rss_bytes
    assert (folder / "stdout.log").read_text() == "out\nyes\n"
    assert (folder / "stderr.log").read_text() == "err\n"


def test_an_exit_code_is_kept(shims: Shims, tmp_path: Path) -> None:
    folder = attempt(tmp_path / "1", "sh", "-c", "exit 7")
    shims.start(folder)
    assert end_of(shims, folder).exit_code == 7


def test_a_signal_is_kept(shims: Shims, tmp_path: Path) -> None:
    folder = attempt(tmp_path / "1", "sh", "-c", "kill -SEGV $$")
    shims.start(folder)
    exit_ = end_of(shims, folder)
    assert (exit_.exit_code, exit_.signal, exit_.succeeded) == (None, signal.SIGSEGV, False)


def test_a_command_that_does_not_exist_says_so_in_its_own_log(shims: Shims, tmp_path: Path) -> None:
    folder = attempt(tmp_path / "1", "/no/such/program")
    shims.start(folder)
    assert end_of(shims, folder).exit_code == 127
    assert "/no/such/program" in (folder / "stderr.log").read_text()


def test_a_time_limit_ends_the_whole_group_also_what_ignores_being_asked(shims: Shims, tmp_path: Path) -> None:
    script = "trap '' TERM; sleep 60 & echo $! > child; sleep 60"
    folder = attempt(tmp_path / "1", "sh", "-c", script, timeout_s=0.3, grace_s=0.2)
    shims.start(folder)
    exit_ = end_of(shims, folder)
    assert (exit_.reason, exit_.signal) == ("timeout", signal.SIGKILL)
    assert ends(int((tmp_path / "child").read_text()))


def test_what_a_step_leaves_running_ends_with_it(shims: Shims, tmp_path: Path) -> None:
    folder = attempt(tmp_path / "1", "sh", "-c", "sleep 60 & echo $! > child")
    shims.start(folder)
    assert end_of(shims, folder).succeeded
    assert ends(int((tmp_path / "child").read_text()))


def test_an_attempt_can_be_stopped_by_any_process(shims: Shims, tmp_path: Path) -> None:
    folder = attempt(tmp_path / "1", "sleep", "60")
    shims.start(folder)
    wait_for(folder / "started")
    stop_attempt(folder)
    assert end_of(shims, folder).reason == "stopped"


def test_an_attempt_outlives_its_runner_and_is_adopted_by_the_next(tmp_path: Path) -> None:
    folder = attempt(tmp_path / "1", "sh", "-c", "until [ -e go ]; do sleep 0.01; done; echo done")
    with Shims() as first:
        first.start(folder)
        wait_for(folder / "started")
    with Shims() as second:
        assert second.adopt(folder) is None
        (tmp_path / "go").touch()
        assert end_of(second, folder).succeeded
    assert (folder / "stdout.log").read_text() == "done\n"


def test_an_attempt_that_ended_meanwhile_is_told_from_its_record(tmp_path: Path) -> None:
    folder = attempt(tmp_path / "1", "sh", "-c", "exit 3")
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
        assert end_of(late, other).succeeded
    assert not (tmp_path / "ran").exists()


def test_an_attempt_that_is_stopped_before_it_began_is_told_as_void(shims: Shims, tmp_path: Path) -> None:
    folder = attempt(tmp_path / "1", "touch", "ran")
    stop_attempt(folder)
    shims.start(folder)
    assert end_of(shims, folder).reason == "void"
    assert not (tmp_path / "ran").exists()


def test_exactly_one_of_many_claims_an_attempt(tmp_path: Path) -> None:
    assert [shim.claim(str(tmp_path)) for _ in range(5)] == [True, False, False, False, False]


def test_a_killed_shim_is_told_as_lost_and_its_step_does_not_live_on(shims: Shims, tmp_path: Path) -> None:
    folder = attempt(tmp_path / "1", "sleep", "60")
    shims.start(folder)
    wait_for(folder / "started")
    started = json.loads((folder / "started").read_text())
    os.kill(started["shim"], signal.SIGKILL)
    assert end_of(shims, folder).reason == "lost"
    assert ends(started["pid"])


def test_a_killed_spawner_is_replaced_and_nothing_is_lost(shims: Shims, tmp_path: Path) -> None:
    first = attempt(tmp_path / "1", "true")
    shims.start(first)
    assert end_of(shims, first).succeeded
    spawner = shims._spawner
    assert spawner is not None
    spawner.kill()
    spawner.wait()
    second = attempt(tmp_path / "2", "true")
    shims.start(second)
    assert end_of(shims, second).reason == "void"
    third = attempt(tmp_path / "3", "true")
    shims.start(third)
    assert end_of(shims, third).succeeded


def test_a_full_disk_cannot_lose_the_exit_record(shims: Shims, tmp_path: Path) -> None:
    # The record's space is taken before the step starts: nothing but a rename is left to do at its end.
    folder = attempt(tmp_path / "1", "sleep", "0.2")
    shims.start(folder)
    wait_for(folder / "started")
    assert (folder / "exit.part").stat().st_size == shim.RECORD_BYTES
    assert end_of(shims, folder).succeeded
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
    assert end_of(shims, folder).succeeded
    for file in folder.iterdir():
        if file.is_file():
            assert "hunter2" not in file.read_text()


def test_there_is_no_exit_record_before_the_end(tmp_path: Path) -> None:
    assert read_exit(attempt(tmp_path / "1", "true")) is None
