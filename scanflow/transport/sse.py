"""Server-sent events in the HTML standard's format: bytes in, messages out. Pure.

https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from __future__ import annotations

from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One event of a stream."""

    data: str
    """Its text."""

    event: str = "message"
    """Its type; ``message`` if the server names none."""

    id: str | None = None
    """The position of the stream after it; None if the server did not number it."""


class Parser:
    """Assembles messages from blocks of any size.

    Lines end with CR, LF or both. A comment (a line that begins with a colon) keeps a connection alive and says
    nothing. A message that is not finished when the stream ends was cut off, and is not told.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._begun = False
        self._data: list[str] = []
        self._event = ""
        self._id: str | None = None

    def feed(self, block: bytes) -> list[Message]:
        text = self._rest + block
        if not self._begun:
            if len(text) < len(_BOM) and _BOM.startswith(text):
                self._rest = text
                return []
            text, self._begun = text.removeprefix(_BOM), True
        lines, self._rest = _split_lines(text)
        return [message for line in lines if (message := self._take(line)) is not None]

    def _take(self, line: bytes) -> Message | None:
        if not line:
            return self._finish()
        field, colon, value = line.decode(errors="replace").partition(":")
        if not field and colon:
            return None
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._event = value
        elif field == "id" and "\0" not in value:
            self._id = value
        return None

    def _finish(self) -> Message | None:
        data, event, id = self._data, self._event, self._id
        self._data, self._event, self._id = [], "", None
        return Message(data="\n".join(data), event=event or "message", id=id) if data else None


def _split_lines(text: bytes) -> tuple[list[bytes], bytes]:
    """Split off the complete lines; return them and the rest. A CR at the very end waits for the LF that may follow."""
    pending = b"\r" if text.endswith(b"\r") else b""
    *lines, rest = text.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return lines, rest + pending
