"""Trackers as processes of tests: started, waited for, and ended with all that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tests.waiting import PATIENCE_S, patient, wait_until


def answering(command: list[str], folder: Path, port: int, **variables: str) -> Iterator[str]:
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=patient(30)):
            return True
        return False

    yield from (url for _ in running(command, folder, answers, **variables))


def running(command: list[str], folder: Path, answers: Callable[[], bool], **variables: str) -> Iterator[None]:
    log = folder / "log"
    with log.open("wb") as out:
        environment = {**os.environ, **variables}
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out, start_new_session=True)

    def lives_and_answers() -> bool:
        assert server.poll() is None, log.read_text()[-2000:]
        return answers()

    try:
        wait_until(lives_and_answers, "the tracking server answers")
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(timeout=PATIENCE_S)
