"""A log of two streams, merged by whole lines."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as some

from scanflow.backends.log_reader import LogPage, LogPart, WholeLinesReader

Blocks = list[tuple[str, bytes]]


class Pages:
    """A reader of given pages; the last ones have no parts."""

    def __init__(self, pages: Iterable[Blocks]) -> None:
        self._pages = [tuple(LogPart(*block) for block in page) for page in pages]

    def read(self) -> LogPage:
        return LogPage(self._pages.pop(0), ended=False) if self._pages else LogPage((), ended=True)

    def close(self) -> None:
        pass


def read_all(*pages: Blocks) -> list[LogPart]:
    reader, parts = WholeLinesReader(Pages(pages)), list[LogPart]()
    while True:
        page = reader.read()
        parts += page.parts
        if page.ended:
            return parts


def join(*pages: Blocks) -> bytes:
    return b"".join(part.data for part in read_all(*pages))


def test_an_error_without_an_end_does_not_go_on_in_a_line_of_output() -> None:
    assert join([("stdout", b"a\nb"), ("stderr", b"careful")], [("stdout", b"c\n")]) == b"a\nbc\ncareful"
    assert join([("stderr", b"careful"), ("stdout", b"a\nb\n")]) == b"a\nb\ncareful"


def test_a_prompt_is_shown_at_once_and_what_interrupts_it_is_a_line_of_its_own() -> None:
    reader = WholeLinesReader(Pages([[("stdout", b"loading ...")], [], [("stderr", b"careful\n")], []]))
    assert [[part.data for part in reader.read().parts] for _ in range(3)] == [
        [b""],
        [b"loading ..."],
        [b"\ncareful\n"],
    ]


def test_one_stream_alone_stays_as_it_is() -> None:
    assert join([("stdout", b"a\r")], [], [("stdout", b"b")], [("stdout", b"\n\nc")]) == b"a\rb\n\nc"


@given(some.lists(some.lists(some.tuples(some.sampled_from(["stdout", "stderr"]), some.binary(max_size=4)))))
def test_each_line_is_of_one_stream_and_nothing_is_lost(pages: list[Blocks]) -> None:
    written, shown = {"stdout": b"", "stderr": b""}, {"stdout": b"", "stderr": b""}
    for page in pages:
        for source, data in page:
            written[source] += data
    open_line = ""
    for source, data in read_all(*pages):
        if open_line not in {"", source} and data:
            assert data.startswith(b"\n")
            data = data[1:]
        if data:
            open_line = "" if data.endswith(b"\n") else source
        shown[source] += data
    assert shown == written
