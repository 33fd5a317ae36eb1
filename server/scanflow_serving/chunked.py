"""The chunked transfer coding of HTTP/1.1 (RFC 9112, section 7.1), decoded as it comes.

It is decoded here rather than by the parser of heads because that one does not tell where a body ended, and what
follows is the next request. As strict as that parser: a lenient reading is how requests are smuggled past a proxy.
"""

from __future__ import annotations

from typing import Final

from scanflow_serving.problems import Problem

__all__ = ["Chunked"]

_MAX_LINE: Final = 4096
_MAX_TRAILERS: Final = 16 * 1024
_HEX: Final = frozenset(b"0123456789abcdefABCDEF")
_SIZE, _DATA, _DATA_END, _TRAILER = range(4)


class Chunked:
    """A body that comes in chunks. Extensions and trailers are read over."""

    def __init__(self, most: int) -> None:
        """``most``: bytes of the decoded body."""
        self.body = bytearray()
        self._most = most
        self._state = _SIZE
        self._left = 0
        self._line = bytearray()
        self._trailers = 0

    def feed(self, data: memoryview) -> tuple[int, bool]:
        """Take what came; return how much of it belonged to the body, and whether that is complete.

        Raises:
            Problem: it is no chunked body (400), or larger than allowed (413).
        """
        at, end = 0, len(data)
        while at < end:
            if self._state == _DATA:
                taken = min(self._left, end - at)
                self.body += data[at : at + taken]
                self._left -= taken
                at += taken
                if not self._left:
                    self._state = _DATA_END
                continue
            taken, whole = self._read_line(data[at : at + _MAX_LINE])
            at += taken
            if whole and self._line_ended():
                return at, True
        return at, False

    def _read_line(self, data: memoryview) -> tuple[int, bool]:
        """Add to the line up to and with its LF; return how much was taken and whether the line is whole."""
        piece = bytes(data)
        place = piece.find(b"\n")
        taken = len(piece) if place < 0 else place + 1
        self._line += piece[:taken]
        if len(self._line) > _MAX_LINE:
            raise Problem(400, "A line of the chunked body is too long.")
        return taken, place >= 0

    def _line_ended(self) -> bool:
        """Act on the whole line; return whether it was the body's last."""
        line, self._line = bytes(self._line), bytearray()
        if not line.endswith(b"\r\n") or b"\r" in line[:-2]:
            raise Problem(400, "A line of the chunked body does not end in CR LF.")
        line = line[:-2]
        if self._state == _SIZE:
            self._begin_chunk(line)
        elif self._state == _DATA_END:
            if line:
                raise Problem(400, "A chunk of the body is longer than it said.")
            self._state = _SIZE
        else:
            self._trailers += len(line) + 2
            if self._trailers > _MAX_TRAILERS:
                raise Problem(431, "The trailers of the chunked body are too long.")
            return not line
        return False

    def _begin_chunk(self, line: bytes) -> None:
        digits = line.partition(b";")[0]
        if b";" in line:
            digits = digits.rstrip(b" \t")
        if not 0 < len(digits) <= 16 or not _HEX.issuperset(digits):
            raise Problem(400, f"A chunk's size cannot be {line[:40]!r}: it is a number in hexadecimal digits.")
        self._left = int(digits, 16)
        if len(self.body) + self._left > self._most:
            raise Problem(413, f"The body is larger than the {self._most} bytes that are allowed.")
        self._state = _DATA if self._left else _TRAILER
