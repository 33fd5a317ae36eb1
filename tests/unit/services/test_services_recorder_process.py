"""The supervisor's side of recording: files wait for a tracker that is down, and are tried again with pauses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scanflow.backends.local.services.service_layout import ServiceFolder
from scanflow.backends.local.services.supervisor import attempts
from scanflow.backends.local.services.supervisor.recorder_process import RecorderProcess
from scanflow.processes.shims import Exit

DESIRED: Any = SimpleNamespace(recorder=("record",))
TRIES = 30


class StandInShims:
    """Starts nothing, and remembers what it was to start."""

    def __init__(self) -> None:
        self.started: list[Path] = []

    def start(self, path: Path) -> None:
        self.started.append(path)


@pytest.fixture
def folder(tmp_path: Path) -> ServiceFolder:
    folder = ServiceFolder(tmp_path / "serve")
    folder.recorded.mkdir(parents=True)
    folder.recorder.mkdir(parents=True)
    return folder


def made_process(folder: ServiceFolder) -> tuple[RecorderProcess, list[Path]]:
    shims: Any = StandInShims()
    return RecorderProcess(folder, shims), shims.started


def test_nothing_is_started_where_nothing_was_recorded(folder: ServiceFolder) -> None:
    process, started = made_process(folder)
    process.start_if_due(DESIRED, now=0.0)
    assert (process.has_files, process.running, started) == (False, False, [])


def test_while_the_tracker_is_down_files_wait_and_are_tried_again_with_pauses_that_do_not_grow_for_ever(
    folder: ServiceFolder,
) -> None:
    process, started = made_process(folder)
    file = folder.recorded / "1000-1-0.npz"
    file.write_bytes(b"predictions")
    now, pauses = 0.0, list[float]()
    for attempt in range(1, TRIES + 1):
        ended = now
        while len(started) < attempt:
            process.start_if_due(DESIRED, now)
            now += 0.5
        pauses.append(now - 0.5 - ended)
        process.record_exit(started[-1], Exit(exit_code=1, seconds=0.1), now)
    assert file.exists()
    assert len(set(started)) == TRIES, "each attempt has a folder of its own"
    assert len(attempts.list_attempt_numbers(folder.recorder)) <= attempts.KEPT_ATTEMPTS, "and old ones are removed"
    assert pauses == sorted(pauses)
    assert min(pauses[1:]) >= 1.0
    assert max(pauses) <= attempts.MAX_PAUSE_S

    while len(started) == TRIES:
        process.start_if_due(DESIRED, now)
        now += 0.5
    file.unlink()
    process.record_exit(started[-1], Exit(exit_code=0, seconds=0.1), now)
    process.start_if_due(DESIRED, now)
    assert len(started) == TRIES + 1, "what was taken is not looked for"
    file.write_bytes(b"more")
    process.start_if_due(DESIRED, now)
    assert len(started) == TRIES + 2, "after a success there is no pause"
