from __future__ import annotations

import os

import pytest

from scanflow.processes.identity import parse_start_time, read_start_time


@pytest.mark.parametrize(
    ("state", "threads", "birth"),
    [("S", 1, "2827349"), ("R", 9, "2827349"), ("Z", 1, ""), ("Z", 0, ""), ("X", 1, ""), ("Z", 2, "2827349")],
)
def test_a_process_lives_until_the_last_of_its_threads_is_gone(state: str, threads: int, birth: str) -> None:
    between = " ".join(["0"] * 16)
    assert parse_start_time(f"7 (a) b) {state} {between} {threads} 0 2827349 0 0\n") == birth


def test_a_line_that_was_cut_off_tells_of_nobody() -> None:
    assert (parse_start_time(""), parse_start_time("7 (a) S 1 2")) == ("", "")
    assert read_start_time(os.getpid())
