"""Frame two streams in one log: standard error is marked, since a pod's log does not distinguish its streams.

The text between the marks is standard error; a terminal shows it dim and red, and hides the marks. After the last mark
comes the output of Argo's own program in the container, which is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

BEGIN: Final = b"\x1b[0;2;31;49m"
END: Final = b"\x1b[0;39;49m"
END_OF_LINE: Final = b"\x1b[0;49;39m\n"
"""The end of a line of standard error: lines of a log are whole, also where both streams write."""

FINAL_MARK: Final = b"\x1b[39;49;0m\n"
_MARKS: Final = re.compile(b"|".join(re.escape(mark) for mark in (BEGIN, END_OF_LINE, END, FINAL_MARK)))
_MAX_MARK_LENGTH: Final = max(len(mark) for mark in (BEGIN, END_OF_LINE, END, FINAL_MARK))
_ARGO: Final = re.compile(rb'^time="[^"\n]*" level=\w+ msg=[^\n]* argo=true[^\n]*\n?', re.MULTILINE)


def build_frame(data: bytes, *, error: bool) -> bytes:
    """Return data of a stream with its marks."""
    if not (error and data):
        return data
    return BEGIN + (data[:-1] + END_OF_LINE if data.endswith(b"\n") else data + END)


class StreamSplitter:
    """Splits a log into its streams, in parts of any size."""

    def __init__(self) -> None:
        self._partial_mark, self._error, self._has_ended = b"", False, False

    def feed(self, data: bytes, *, last: bool = False) -> Iterator[tuple[str, bytes]]:
        """Yield the data of each stream; a mark that may be incomplete is held until the rest of it comes."""
        text, self._partial_mark = self._partial_mark + data, b""
        while text and not self._has_ended:
            stream, match = ("stderr" if self._error else "stdout"), _MARKS.search(text)
            if match is None:
                cut = 0 if last else _count_partial_mark(text)
                before, self._partial_mark, text = text[: len(text) - cut], text[len(text) - cut :], b""
            else:
                before, mark, text = text[: match.start()], match[0], text[match.end() :]
                before += b"\n" if mark == END_OF_LINE else b""
                self._error, self._has_ended = mark == BEGIN, mark == FINAL_MARK
            if before:
                yield stream, before


def split_streams(parts: Iterable[bytes]) -> dict[str, bytes]:
    """Return the data of each stream."""
    streams, reader = {"stdout": bytearray(), "stderr": bytearray()}, StreamSplitter()
    log = b"".join(parts)
    if FINAL_MARK not in log:  # killed before its end: what follows is Argo's
        log = _ARGO.sub(b"", log)
    for stream, piece in reader.feed(log, last=True):
        streams[stream] += piece
    return {stream: bytes(data) for stream, data in streams.items()}


def _count_partial_mark(text: bytes) -> int:
    """Return how many bytes at the end of ``text`` may be the beginning of a mark."""
    start = text.rfind(b"\x1b", max(0, len(text) - _MAX_MARK_LENGTH + 1))
    rest = text[start:] if start >= 0 else b""
    return len(rest) if rest and any(mark.startswith(rest) for mark in (BEGIN, END_OF_LINE, END, FINAL_MARK)) else 0
