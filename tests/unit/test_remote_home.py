"""The note of what is up: what it says is believed only of the very processes that it names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scanflow.backends.local.births import birth_of, living_since
from scanflow.deployer.remote_home import Up, UpProcess, forget_up, read_up, up_file, write_up
from tests.waiting import until

STUBBORN = (
    "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); time.sleep(60)"
)


def note(pid: int, birth: str | None = None) -> UpProcess:
    found = birth_of(pid) if birth is None else birth
    return UpProcess(pid=pid, birth=found, port=1, url="http://127.0.0.1:1", log="/l")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    """A process that does not end when it is asked to, with a child."""
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as found:
        yield found
        found.kill()


def child_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_a_note_comes_back_as_it_was_written(tmp_path: Path) -> None:
    up = Up(server=note(os.getpid()), started=1.5)
    assert read_up(tmp_path) is None
    write_up(tmp_path, up)
    assert read_up(tmp_path) == up
    assert [path.name for path in up_file(tmp_path).parent.iterdir()] == ["up.json"]
    forget_up(tmp_path)
    forget_up(tmp_path)
    assert read_up(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"server": {"pid": "many"}}', "\x00"])
def test_a_note_that_cannot_be_read_counts_as_none(tmp_path: Path, text: str) -> None:
    up_file(tmp_path).parent.mkdir(parents=True)
    up_file(tmp_path).write_text(text)
    assert read_up(tmp_path) is None


def test_only_the_very_process_that_was_noted_is_alive(process: subprocess.Popen[str]) -> None:
    assert note(process.pid).is_alive()
    assert not note(process.pid, birth="7").is_alive()
    assert not note(process.pid, birth="").is_alive()
    process.kill()
    until(lambda: birth_of(process.pid) == "", "it is gone, though nobody has waited for it yet")


@pytest.mark.parametrize(
    ("state", "threads", "birth"),
    [("S", 1, "2827349"), ("R", 9, "2827349"), ("Z", 1, ""), ("Z", 0, ""), ("X", 1, ""), ("Z", 2, "2827349")],
)
def test_a_process_lives_until_the_last_of_its_threads_is_gone(state: str, threads: int, birth: str) -> None:
    between = " ".join(["0"] * 16)
    assert living_since(f"7 (a) b) {state} {between} {threads} 0 2827349 0 0\n") == birth


def test_a_line_that_was_cut_off_tells_of_nobody() -> None:
    assert (living_since(""), living_since("7 (a) S 1 2")) == ("", "")


def test_another_process_under_the_same_id_is_left_alone(process: subprocess.Popen[str]) -> None:
    assert note(process.pid, birth="7").end(grace_s=5.0, group=True) is False
    assert process.poll() is None


def test_what_does_not_end_when_asked_is_made_to(process: subprocess.Popen[str]) -> None:
    child = child_of(process)
    assert note(process.pid).end(grace_s=0.2) is True
    assert process.wait(timeout=20) == -signal.SIGKILL
    assert birth_of(child)  # only what was named
    os.killpg(process.pid, signal.SIGKILL)


def test_a_group_ends_with_all_that_it_started(process: subprocess.Popen[str]) -> None:
    child = child_of(process)
    assert note(process.pid).end(grace_s=0.2, group=True) is True
    until(lambda: not birth_of(child), "what it started is gone")
