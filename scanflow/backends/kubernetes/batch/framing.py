"""Two streams in one log: a pod's log does not say which of them wrote what, so standard error is marked.

What stands between the marks was written to standard error; a terminal shows it dim and red, and nothing else of the
marks. After the last one stands what Argo's own program in the container writes, which is nobody's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

BEGIN: Final = b"\x1b[0;2;31;49m"
END: Final = b"\x1b[0;39;49m"
END_OF_LINE: Final = b"\x1b[0;49;39m\n"
"""Its line's end is standard error's, too: lines of a log are whole, also where both streams write."""

LAST: Final = b"\x1b[39;49;0m\n"
_MARKS: Final = re.compile(b"|".join(re.escape(mark) for mark in (BEGIN, END_OF_LINE, END, LAST)))
_LONGEST: Final = max(len(mark) for mark in (BEGIN, END_OF_LINE, END, LAST))
_ARGO: Final = re.compile(rb'^time="[^"\n]*" level=\w+ msg=[^\n]* argo=true[^\n]*\n?', re.MULTILINE)


def framed(data: bytes, *, error: bool) -> bytes:
    """Return what a stream wrote as the log has it."""
    if not (error and data):
        return data
    return BEGIN + (data[:-1] + END_OF_LINE if data.endswith(b"\n") else data + END)


class Unframed:
    """Takes a log apart as it comes, in parts of any size."""

    def __init__(self) -> None:
        self._kept, self._error, self._over = b"", False, False

    def feed(self, data: bytes, *, last: bool = False) -> Iterator[tuple[str, bytes]]:
        """Yield what each stream wrote; a mark that may be cut in two is kept until the rest of it comes."""
        text, self._kept = self._kept + data, b""
        while text and not self._over:
            stream, found = ("stderr" if self._error else "stdout"), _MARKS.search(text)
            if found is None:
                cut = 0 if last else _cut(text)
                before, self._kept, text = text[: len(text) - cut], text[len(text) - cut :], b""
            else:
                before, mark, text = text[: found.start()], found[0], text[found.end() :]
                before += b"\n" if mark == END_OF_LINE else b""
                self._error, self._over = mark == BEGIN, mark == LAST
            if before:
                yield stream, before


def split_streams(parts: Iterable[bytes]) -> dict[str, bytes]:
    """Return all that each stream wrote."""
    found, reader = {"stdout": bytearray(), "stderr": bytearray()}, Unframed()
    whole = b"".join(parts)
    if LAST not in whole:  # killed before its end: what follows is Argo's
        whole = _ARGO.sub(b"", whole)
    for stream, piece in reader.feed(whole, last=True):
        found[stream] += piece
    return {stream: bytes(data) for stream, data in found.items()}


def _cut(text: bytes) -> int:
    """Return how many bytes at the end of ``text`` may be the beginning of a mark."""
    at = text.rfind(b"\x1b", max(0, len(text) - _LONGEST + 1))
    rest = text[at:] if at >= 0 else b""
    return len(rest) if rest and any(mark.startswith(rest) for mark in (BEGIN, END_OF_LINE, END, LAST)) else 0
