"""Completion as a person gets it: `scanflow --install-completion` in each shell, then the tab key in a new one."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import COMMAND, Cli
from tests.waiting import patient

pytestmark = pytest.mark.slow

SHELLS = ("bash", "fish", "zsh")
EDITS = "\x1b[?2004h"
"""What each of them sends when its line editor waits for keys (bracketed paste). zsh drops what is typed before."""

COMPLETIONS = {"scanflow chara": "characterize", "scanflow mpi gan": "gantt", "scanflow runs --lim": "--limit"}
"""What is typed before the tab key, and what the word becomes."""

APP = """
import scanflow as sf

@sf.step(in_process=True)
def add(count: int = 2) -> int:
    return count + 1

app = sf.Application(name="demo", workflows=[sf.Workflow(name="w", nodes=[add.bind()])])
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's empty home, and a folder on PATH with the command."""
    folder = tmp_path / "person"
    program = folder / "bin" / "scanflow"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    (folder / ".zshrc").touch()  # without one, zsh asks a new user what to write into it
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TERM", "xterm")
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.mark.parametrize("shell", SHELLS)
def test_the_tab_key_completes_commands_options_and_runs(shell: str, home: Path, tmp_path: Path, cli: Cli) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: .ci/packages nightly")
    (tmp_path / "app.py").write_text(APP)
    assert cli("run").returncode == 0
    run = cli("runs", "-n", "1", "--json").stdout.partition('"name": "')[2].partition('"')[0]
    words = {**COMPLETIONS, f"scanflow show {run[:4]}": run}
    before = {typed: press_tab(shell, typed, word, wait_s=3) for typed, word in list(words.items())[:1]}
    assert not any(before.values()), "completed before completion was installed"
    install = subprocess.run(  # a second command, so that the shell stays the parent of the first
        [shell, "-c", "scanflow --install-completion; true"], capture_output=True, text=True, timeout=patient(120)
    )
    assert f"{shell} completion installed" in install.stdout
    assert {typed: press_tab(shell, typed, word, wait_s=patient(40)) for typed, word in words.items()} == dict.fromkeys(
        words, True
    )


def press_tab(shell: str, typed: str, word: str, *, wait_s: float) -> bool:
    """Type the beginning of a line into a new shell and press the tab key; return whether the word stands there."""
    process, terminal = pty.fork()
    if process == 0:
        os.execvp(shell, [shell, "-i"])
    try:
        read_until(terminal, EDITS, patient(60))
        os.write(terminal, typed.encode())
        read_until(terminal, typed.rsplit(maxsplit=1)[-1], patient(60))
        rest = word.removeprefix(typed.rsplit(maxsplit=1)[-1])
        for _ in range(2):  # in zsh, the first tab key of a shell reads the completion, and the second uses it
            os.write(terminal, b"\t")
            if read_until(terminal, rest, wait_s / 2):
                return True
        return False
    finally:
        os.close(terminal)
        os.kill(process, signal.SIGKILL)  # zsh may outlive its terminal
        os.waitpid(process, 0)


def read_until(terminal: int, text: str, wait_s: float) -> bool:
    """Read what a terminal shows until the text is there; return whether it is."""
    shown, until = "", time.monotonic() + wait_s
    while text not in shown and (remaining_s := until - time.monotonic()) > 0:
        if select.select([terminal], [], [], remaining_s)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
    return text in shown
