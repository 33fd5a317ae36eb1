"""Heads of answers as bytes. What is the same from one answer to the next is encoded once."""

from __future__ import annotations

from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from scanflow_serving.messages import Response

__all__ = ["CONTINUE", "date_line", "head_of"]

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_REMEMBERED: Final = 512
_BODILESS: Final = frozenset({204, 304})
_beginnings: dict[tuple[int, str, tuple[tuple[str, str], ...]], bytes] = {}


def date_line(seconds: float) -> bytes:
    """Return the header ``Date`` for that time since the epoch."""
    return f"date: {formatdate(seconds, usegmt=True)}\r\n".encode()


def head_of(response: Response, length: int, date: bytes, *, keep_alive: bool, old: bool = False) -> bytes:
    """Return the head of an answer whose body has that many bytes; ``old``: to a caller that speaks HTTP/1.0."""
    key = (response.status, response.content_type, response.headers)
    beginning = _beginnings.get(key)
    if beginning is None:
        beginning = _beginning(response)
        if len(_beginnings) >= _REMEMBERED:  # headers that differ each time would fill it
            _beginnings.clear()
        _beginnings[key] = beginning
    if not keep_alive:
        ending = b"\r\nconnection: close\r\n\r\n"
    elif old:
        ending = b"\r\nconnection: keep-alive\r\n\r\n"
    else:
        ending = b"\r\n\r\n"
    if response.status in _BODILESS:
        return b"%b%bserver: scanflow%b" % (beginning, date, ending)
    return b"%b%bcontent-length: %d%b" % (beginning, date, length, ending)


def _beginning(response: Response) -> bytes:
    try:
        phrase = HTTPStatus(response.status).phrase
    except ValueError:
        phrase = ""
    lines = [f"HTTP/1.1 {response.status} {phrase}"]
    if response.content_type and response.status not in _BODILESS:
        lines.append(f"content-type: {_clean(response.content_type)}")
    lines += [f"{_clean(name)}: {_clean(value)}" for name, value in response.headers]
    return "\r\n".join([*lines, ""]).encode("latin-1", "replace")


def _clean(text: str) -> str:
    """Return the text on one line: a line's end in a value would begin another header, or the body."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)
