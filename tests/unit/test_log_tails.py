"""The end of a log: as masked as the whole log is, and read without what precedes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanflow.backends import log_reader
from scanflow.backends.log_files import FileLogs
from scanflow.backends.log_reader import LogPage, LogPart, read_tail
from scanflow.deployer.masked_deployer import read_masked_tail
from scanflow.text.masking import MaskedStream, Masker

SECRET = "zq-hidden-" + "k" * 3000
MASKER = Masker({"password": SECRET})


def open_log(path: Path) -> FileLogs:
    return FileLogs(lambda: ([("stdout", path)], True))


@pytest.mark.parametrize("separator", ["\n", "-"], ids=["lines", "one long line"])
@pytest.mark.parametrize("cut", [1, 500, 3009])
def test_no_part_of_a_secret_is_shown_in_which_the_end_of_a_log_begins(
    tmp_path: Path, cut: int, separator: str
) -> None:
    after = "after it" + separator
    n_bytes = cut + len(after)
    path = tmp_path / "stdout.log"
    path.write_text(f"{'before' + separator:s}" * 20_000 + SECRET + after)
    shown = read_masked_tail(open_log(path), MASKER, n_bytes).decode()
    assert shown.endswith(f"***{after}")
    assert "k" not in shown


def test_the_end_of_a_log_is_the_end_of_the_whole_masked_log(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_text("".join(f"{number} {SECRET if number % 7 else ''}\n" for number in range(300)))
    whole = MaskedStream(MASKER).feed(path.read_bytes(), last=True)
    assert read_masked_tail(open_log(path), MASKER, 10**9) == whole
    shown = read_masked_tail(open_log(path), MASKER, 1000)
    assert whole.endswith(shown)
    assert 0 < len(shown) < 1000


def test_a_long_log_is_read_from_near_its_end(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    with path.open("wb") as file:
        file.truncate(10**12)  # a hole: reading it all would take minutes
        file.seek(10**12)
        file.write(b"the end\n")
    assert read_tail(open_log(path), 8) == (LogPart("stdout", b"the end\n"),)
    assert read_tail(open_log(tmp_path / "none.log"), 8) == ()


class SlowLogs:
    """A log that can be read from its beginning only, a page at a time."""

    def __init__(self, *pages: LogPage) -> None:
        self._pages = list(pages)

    def read(self) -> LogPage:
        return self._pages.pop(0) if self._pages else LogPage((), ended=False)

    def close(self) -> None:
        """Nothing is open."""


def test_other_logs_are_read_to_where_they_are_and_waited_for_a_second_at_most() -> None:
    nothing = LogPage((), ended=False)
    slow = SlowLogs(nothing, LogPage((LogPart("stdout", b"abc"), LogPart("stderr", b"x")), ended=False), nothing)
    pauses: list[float] = []
    assert read_tail(slow, 2, sleep=pauses.append) == (LogPart("stdout", b"bc"), LogPart("stderr", b"x"))
    assert sum(pauses) == pytest.approx(log_reader.MAX_WAIT_S, abs=0.1)
    ended = SlowLogs(LogPage((LogPart("stdout", b"abc"),), ended=False), LogPage((), ended=True))
    assert read_tail(ended, 2, sleep=pauses.append) == (LogPart("stdout", b"bc"),)
