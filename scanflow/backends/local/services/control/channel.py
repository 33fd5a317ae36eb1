"""One control connection, without ever waiting for the other side: what does not fit now is sent later."""

from __future__ import annotations

import os
import selectors
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Self

from scanflow.errors import InvalidError
from scanflow.processes import seqpacket
from scanflow.wire import ControlMessage

_MOST_AT_ONCE = 64


class Channel:
    """A connected control socket. What was asked is remembered until it is answered."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._selector: selectors.BaseSelector | None = None
        self._unanswered: dict[str, ControlMessage] = {}
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
        return self._sock.fileno()

    def watch(self, selector: selectors.BaseSelector, read: Callable[[], object]) -> None:
        """Have ``read`` called whenever something comes, until this is closed."""
        selector.register(self, selectors.EVENT_READ, read)
        self._selector = selector

    def ask(self, kind: Any, body: dict[str, Any] | None = None, *, fds: Sequence[int] = (), key: str = "") -> None:
        """Send a message that is to be answered. The files stay the caller's."""
        message = ControlMessage(kind=kind, key=key or f"#{next(self._numbers)}", body=body or {})
        self._unanswered[message.key] = message
        self._outbox.append((message, [os.dup(fd) for fd in fds]))
        self.flush()

    def awaits(self, kind: str) -> bool:
        """Say whether a message of that kind waits for its answer."""
        return any(asked.kind == kind for asked in self._unanswered.values())

    def flush(self) -> None:
        """Send what fits now of what did not before."""
        while self._outbox:
            message, fds = self._outbox[0]
            try:
                seqpacket.send(self._sock, message, fds)
            except BlockingIOError:
                return
            except OSError:  # the other side is gone: reading tells that
                pass
            self._outbox.popleft()
            seqpacket.close_all(fds)

    def answers(self) -> tuple[list[tuple[ControlMessage, dict[str, Any]]], bool]:
        """Return what was answered, each with the body of its reply; and whether the other side is still there."""
        found: list[tuple[ControlMessage, dict[str, Any]]] = []
        for _ in range(_MOST_AT_ONCE):
            try:
                came = seqpacket.receive(self._sock)
            except BlockingIOError:
                break
            except InvalidError:
                continue
            except OSError:
                return found, False
            if came is None:
                return found, False
            reply, fds = came
            seqpacket.close_all(fds)
            if reply.kind == "reply" and (asked := self._unanswered.pop(reply.key, None)) is not None:
                found.append((asked, reply.body))
        return found, True

    def close(self) -> None:
        if self._selector is not None:
            self._selector.unregister(self)
            self._selector = None
        while self._outbox:
            seqpacket.close_all(self._outbox.popleft()[1])
        self._sock.close()
