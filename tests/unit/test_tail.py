from __future__ import annotations

from pathlib import Path

import pytest

from scanflow.backends.log_files import BLOCK, Tail


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def read_all(tail: Tail, path: Path) -> bytes:
    output = b""
    while block := tail.read(path):
        output += block
    return output


def test_what_is_added_is_read_once(log: Path) -> None:
    with Tail() as tail:
        assert read_all(tail, log) == b""
        log.write_bytes(b"a" * (BLOCK + 1))
        assert len(tail.read(log)) == BLOCK
        assert read_all(tail, log) == b"a"
        with log.open("ab") as file:
            file.write(b"b")
        assert read_all(tail, log) == b"b"


@pytest.mark.parametrize("new", [b"new", b"longer than what was there before"])
def test_a_file_that_was_replaced_is_read_to_its_end_and_then_the_new_one(log: Path, new: bytes) -> None:
    with Tail() as tail:
        log.write_bytes(b"first line,")
        assert read_all(tail, log) == b"first line,"
        with log.open("ab") as file:
            log.rename(log.with_suffix(".old"))
            assert read_all(tail, log) == b""
            file.write(b"last line,")
        log.write_bytes(new)
        assert read_all(tail, log) == b"last line," + new


def test_a_file_that_was_cut_short_is_read_from_its_beginning(log: Path) -> None:
    with Tail() as tail:
        log.write_bytes(b"something long")
        assert read_all(tail, log) == b"something long"
        log.write_bytes(b"new")
        assert read_all(tail, log) == b"new"
