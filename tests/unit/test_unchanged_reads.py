"""What is kept of a SQLite tracker until somebody writes to it."""

from __future__ import annotations

import sqlite3
import weakref
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from scanflow.files.unchanged_reads import MAX_ENTRIES, UnchangedReads


def write(path: Path, text: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS lines (line TEXT)")
        connection.execute("INSERT INTO lines VALUES (?)", (text,))


class Reader:
    def __init__(self, path: Path) -> None:
        self.path, self.count = path, 0

    def __call__(self) -> list[str]:
        self.count += 1
        with closing(sqlite3.connect(self.path)) as connection:
            return [line for (line,) in connection.execute("SELECT line FROM lines")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "hömé #1" / "tracker.db"
    path.parent.mkdir()
    write(path, "a")
    return path


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_it_is_read_again_after_each_write_and_not_before(path: Path, mode: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode={mode}")
    reader, unchanged = Reader(path), UnchangedReads(path)
    assert [unchanged.get("lines", reader) for _ in range(3)] == [["a"]] * 3
    assert reader.count == 1
    write(path, "b")
    assert [unchanged.get("lines", reader) for _ in range(3)] == [["a", "b"]] * 3
    assert reader.count == 2


def test_each_key_is_read_for_itself(path: Path) -> None:
    unchanged = UnchangedReads(path)
    assert [unchanged.get(key, partial(int, key)) for key in (1, 2, 1)] == [1, 2, 1]


def test_what_was_written_while_it_was_read_is_read_again(path: Path) -> None:
    reader, unchanged = Reader(path), UnchangedReads(path)

    def overtaken() -> list[str]:
        value = reader()
        write(path, "b")
        return value

    assert unchanged.get("lines", overtaken) == ["a"]
    assert unchanged.get("lines", reader) == ["a", "b"]


def test_another_file_in_its_place_is_read(path: Path) -> None:
    reader, unchanged = Reader(path), UnchangedReads(path)
    assert unchanged.get("lines", reader) == ["a"]
    write(path.with_name("new.db"), "c")
    path.with_name("new.db").replace(path)
    assert unchanged.get("lines", reader) == ["c"]


def test_nothing_is_kept_of_a_file_that_is_not_there_or_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "tracker.db"
    unchanged, words = UnchangedReads(path), iter("abcd")
    assert [unchanged.get("word", lambda: next(words)) for _ in range(2)] == ["a", "b"]
    path.write_bytes(b"no database, but long enough to have a header of one" * 40)
    assert [unchanged.get("word", lambda: next(words)) for _ in range(2)] == ["c", "d"]


def test_what_cannot_be_read_is_tried_again(path: Path) -> None:
    reader, unchanged = Reader(path), UnchangedReads(path)

    def fails() -> list[str]:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        unchanged.get("lines", fails)
    assert unchanged.get("lines", reader) == ["a"]


def test_only_so_much_is_kept(path: Path) -> None:
    reader, unchanged = Reader(path), UnchangedReads(path)
    answers = [weakref.ref(unchanged.get(number, lambda: Reader(path))) for number in range(3 * MAX_ENTRIES)]
    assert 0 < sum(answer() is not None for answer in answers) <= MAX_ENTRIES
    assert unchanged.get("lines", reader) == ["a"]
