"""Other people's text made safe for a terminal: without escape sequences and control characters.

These may change the terminal's title, move its cursor or answer in the user's place. JSON escapes them itself.
"""

from __future__ import annotations

import codecs
import re
from typing import IO

_STRING_END = r"(?:\x07|\x1b\\|\x9c|(?=\n)|\Z)"
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor, erasing
    rf"|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x1b\x9c\n]*{_STRING_END}"  # OSC, DCS, SOS, PM, APC: titles, links
    r"|\x1b[ -/]*[0-~]?"  # everything else that begins with ESC
)
_UNFINISHED = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*\Z|(?:\x1b[\]PX^_]|[\x90\x98\x9d\x9e\x9f])[^\x07\x9c\n]*\Z|\x1b[ -/]*\Z"
)
_LINE_BREAK = re.compile(r"\r\n?")
# C0 without tab and newline, DEL, C1, and the marks that reorder text (what is seen is then not what is there).
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_MAX_SEQUENCE_LENGTH = 4096


def make_printable(text: str) -> str:
    """Return ``text`` without escape sequences, control characters and bidirectional marks; a CR becomes a newline."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROL.sub("", _LINE_BREAK.sub("\n", _SEQUENCE.sub("", text)))


def make_log_printable(log: bytes) -> str:
    """Return a part of a log printable; of a line that was written over and over, as a bar, its last state."""
    lines = log.decode("utf-8", "replace").split("\n")
    return make_printable("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines))


def make_one_line(text: str, limit: int | None = None) -> str:
    """Return ``text`` printable, on one line, cut to ``limit`` characters with an ellipsis."""
    line = " ".join(make_printable(text).split())
    return line if limit is None or len(line) <= limit else line[: limit - 1] + "…"


def can_print(text: str, stream: IO[str]) -> bool:
    """Return whether the encoding of a stream has all characters of a text."""
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


class PrintableStream:
    """Makes bytes printable as they arrive; a sequence or a character may be split between two blocks."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""

    def feed(self, block: bytes, *, last: bool = False) -> str:
        text = self._held + self._decoder.decode(block, last)
        self._held = ""
        if not last and (cut := _UNFINISHED.search(text)) and len(text) - cut.start() <= _MAX_SEQUENCE_LENGTH:
            text, self._held = text[: cut.start()], text[cut.start() :]
        elif not last and text.endswith("\r"):
            text, self._held = text[:-1], "\r"
        return make_printable(text)
