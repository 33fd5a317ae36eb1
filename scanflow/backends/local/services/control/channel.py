"""One control connection, without ever waiting for the other side: what does not fit now is sent later."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Self

from scanflow.errors import InvalidError
from scanflow.processes import seqpacket
from scanflow.wire import ControlMessage

_MOST_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was not answered yet."""

    kind: str
    body: dict[str, Any]
    at: float
    """Seconds on the monotonic clock."""


class Channel:
    """A connected control socket. Messages that need an answer are remembered until it comes."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.unanswered: dict[str, Sent] = {}
        self._numbers = count(1)
        self._outbox: deque[tuple[ControlMessage, list[int]]] = deque()

    @classmethod
    def to(cls, path: Path) -> Self | None:
        """Return a channel to who listens there; None: nobody does yet."""
        try:
            return cls(seqpacket.connect(path))
        except OSError:
            return None

    @property
    def behind(self) -> bool:
        """Whether there are messages that did not fit yet."""
        return bool(self._outbox)

    def fileno(self) -> int:
        """Return the socket's descriptor, for a selector."""
        return self.sock.fileno()

    def ask(self, kind: Any, body: dict[str, Any] | None = None, *, fds: Sequence[int] = (), key: str = "") -> str:
        """Send a message that is to be answered; return the key of its answer. The files stay the caller's."""
        key = key or f"#{next(self._numbers)}"
        message = ControlMessage(kind=kind, key=key, body=body or {})
        self.unanswered[key] = Sent(kind, message.body, time.monotonic())
        self._post(message, fds)
        return key

    def awaits(self, kind: str) -> bool:
        """Say whether a message of that kind waits for its answer."""
        return any(sent.kind == kind for sent in self.unanswered.values())

    def flush(self) -> None:
        """Send what fits now of what did not before."""
        while self._outbox:
            message, fds = self._outbox[0]
            try:
                seqpacket.send(self.sock, message, fds)
            except BlockingIOError:
                return
            except OSError:  # the other side is gone: reading tells that
                pass
            self._outbox.popleft()
            _close(fds)

    def read(self) -> tuple[list[tuple[ControlMessage, list[int]]], bool]:
        """Return the messages that came, each with its files, which are the caller's to close; and whether the other
        side is still there."""
        found: list[tuple[ControlMessage, list[int]]] = []
        for _ in range(_MOST_AT_ONCE):
            try:
                came = seqpacket.receive(self.sock)
            except BlockingIOError:
                break
            except InvalidError:
                continue
            except OSError:
                return found, False
            if came is None:
                return found, False
            found.append(came)
        return found, True

    def answered(self, reply: ControlMessage) -> Sent | None:
        """Return what a reply answers, once."""
        return self.unanswered.pop(reply.key, None)

    def close(self) -> None:
        """Close the connection."""
        while self._outbox:
            _close(self._outbox.popleft()[1])
        self.sock.close()

    def _post(self, message: ControlMessage, fds: Sequence[int]) -> None:
        self._outbox.append((message, [os.dup(fd) for fd in fds]))
        self.flush()


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
