"""Jobs: done by one process at a time, whoever is killed when; and their words, read while they are written."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from scanflow.processes.background_jobs import HEALTHY_S, MAX_STARTS, Job, Lines, Processes
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.processes

WAITS = [sys.executable, "-c", "import time\nwhile True: time.sleep(1)"]
ENDS = [sys.executable, "-c", ""]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path / "job")
    job.prepare({"what": "test"})
    yield job
    end(job)


def start(job: Job, command: list[str] = WAITS) -> bool:
    return job.start(os.environ, command=command)


def end(job: Job) -> None:
    job.daemon.kill()
    assert job.daemon.wait(PATIENCE_S)


def test_a_job_has_one_process_and_another_once_that_is_gone(job: Job) -> None:
    assert start(job)
    assert not start(job)
    assert not job.end_without_process({"done": True})
    assert job.alive
    end(job)
    assert (job.alive, job.pid) == (False, None)
    assert start(job)
    assert job.starts == 2


def test_a_job_that_has_ended_is_not_started_again(job: Job) -> None:
    job.prepare({"what": "something else"})
    assert job.order == {"what": "test"}, "what was first asked for"
    assert [job.begin(), job.begin()] == [False, True], "the next process finds that one began"
    assert job.end_without_process({"done": True})
    assert not job.end_without_process({"done": False})
    assert not start(job)
    assert (job.result, job.starts) == ({"done": True}, 0)


def test_what_dies_without_a_word_is_started_again_after_growing_pauses(job: Job) -> None:
    now, over = [0.0], [0]

    def count_end() -> None:
        over[0] += 1

    def ended_so_often(number: int) -> bool:
        return over[0] == number and not job.alive

    processes = Processes(count_end, clock=lambda: now[0])
    pauses = []
    for number in range(1, MAX_STARTS + 1):
        began = now[0]
        while not processes.start(job, os.environ, command=ENDS):
            now[0] += 0.1
        pauses.append(now[0] - began)
        wait_until(partial(ended_so_often, number), "it has ended")
    assert pauses == pytest.approx([0, 0.2, 1, 2, 4, 8], abs=0.11)
    assert job.starts == MAX_STARTS


def count_end(job: Job) -> None:
    wait_until(lambda: not job.alive, "its process has ended")


@pytest.mark.parametrize("before", [6, 1025, 100_000])
def test_what_died_ever_so_often_is_still_started_and_then_paused_for_longest(job: Job, before: int) -> None:
    now = [0.0]
    (job.path / "starts").write_bytes(b"." * before)
    processes = Processes(lambda: None, clock=lambda: now[0])
    assert processes.start(job, os.environ, command=ENDS)
    count_end(job)
    now[0] = 29.9
    assert not processes.start(job, os.environ, command=ENDS)
    now[0] = 30.0
    assert processes.start(job, os.environ, command=ENDS)
    count_end(job)


def test_a_start_that_fails_is_followed_by_a_pause_too(job: Job) -> None:
    now = [0.0]
    processes = Processes(lambda: None, clock=lambda: now[0])
    with pytest.raises(ValueError, match="null"):
        processes.start(job, {"A": "\0"}, command=ENDS)
    assert not processes.start(job, os.environ, command=ENDS)
    now[0] = 0.2
    assert processes.start(job, os.environ, command=ENDS)
    count_end(job)


def test_the_starts_of_a_process_that_lives_for_long_are_counted_from_zero(job: Job) -> None:
    now = [0.0]
    (job.path / "starts").write_bytes(b"." * 40)
    processes = Processes(lambda: None, clock=lambda: now[0])
    processes.note_alive(job)
    now[0] = HEALTHY_S - 1
    processes.note_alive(job)
    assert job.starts == 40
    assert processes.start(job, os.environ, command=ENDS)  # it died after all, before it counted as well
    count_end(job)
    now[0] = HEALTHY_S + 1
    processes.note_alive(job)
    assert job.starts == 41
    now[0] = 2 * HEALTHY_S + 1
    processes.note_alive(job)
    assert job.starts == 0


def test_a_process_that_still_lives_is_not_started_beside_itself(job: Job) -> None:
    processes = Processes(lambda: None)
    assert processes.start(job, os.environ, command=WAITS)
    assert not Processes(lambda: None).start(job, os.environ, command=WAITS)
    processes.forget(job)
    assert not processes.start(job, os.environ, command=WAITS)
    end(job)
    assert processes.start(job, os.environ, command=ENDS), "as soon as that is over"
    count_end(job)


def test_lines_are_read_whole_and_once_while_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    writer, reader = Lines(path), Lines(path)
    assert list(reader.read_new()) == []
    writer.append('{"n": 1}')
    assert list(reader.read_new()) == ['{"n": 1}']
    with path.open("a") as file:
        file.write('{"n": ')
    assert list(reader.read_new()) == []
    Lines(path).append('{"n": 3}')  # by another process, since the one before was killed in the middle
    assert list(reader.read_new()) == ['{"n": 3}']
    assert list(Lines(path).read_new()) == ['{"n": 1}', '{"n": 3}']


@given(some.lists(some.dictionaries(some.text(), some.integers() | some.text()), max_size=8), some.data())
def test_however_a_file_of_lines_is_cut_off_all_whole_ones_are_read(
    tmp_path_factory: pytest.TempPathFactory, documents: list[dict[str, object]], data: some.DataObject
) -> None:
    path = tmp_path_factory.mktemp("lines") / "lines"
    lines = Lines(path)
    ends = [0]
    for document in documents:
        lines.append(json.dumps(document))
        ends.append(path.stat().st_size)
    cut = data.draw(some.integers(0, ends[-1]))
    if path.exists():
        os.truncate(path, cut)
    lines.append('"after"')
    whole = sum(end <= cut for end in ends[1:])
    read = [json.loads(line) for line in Lines(path).read_new()]
    # A line that lacks nothing but its end was not lost either.
    assert read in ([*documents[:whole], "after"], [*documents[: whole + 1], "after"])
