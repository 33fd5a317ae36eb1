"""A non-blocking control connection: messages that do not fit into the socket now are sent later."""

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
from scanflow.instance_messages import ControlMessage
from scanflow.processes import seqpacket

_MAX_BATCH = 64


class Channel:
    """A connected control socket. Requests are stored until they are answered."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._selector: selectors.BaseSelector | None = None
        self._unanswered: dict[str, ControlMessage] = {}
        self._numbers = count(1)
        self._outbox: deque[tuple[ControlMessage, list[int]]] = deque()

    @classmethod
    def connect(cls, path: Path) -> Self | None:
        """Return a channel to the listener at the path; None: there is none yet."""
        try:
            return cls(seqpacket.connect(path))
        except OSError:
            return None

    @property
    def has_unsent(self) -> bool:
        """Whether there are unsent messages."""
        return bool(self._outbox)

    def fileno(self) -> int:
        return self._sock.fileno()

    def watch(self, selector: selectors.BaseSelector, read: Callable[[], object]) -> None:
        """Have ``read`` called whenever data arrives, until the channel is closed."""
        selector.register(self, selectors.EVENT_READ, read)
        self._selector = selector

    def ask(self, kind: Any, body: dict[str, Any] | None = None, *, fds: Sequence[int] = (), key: str = "") -> None:
        """Send a request. The caller still owns its files."""
        message = ControlMessage(kind=kind, key=key or f"#{next(self._numbers)}", body=body or {})
        self._unanswered[message.key] = message
        self._outbox.append((message, [os.dup(fd) for fd in fds]))
        self.flush()

    def is_awaiting(self, kind: str) -> bool:
        """Return whether a request of that kind is unanswered."""
        return any(request.kind == kind for request in self._unanswered.values())

    def flush(self) -> None:
        """Send as many unsent messages as fit now."""
        while self._outbox:
            message, fds = self._outbox[0]
            try:
                seqpacket.send(self._sock, message, fds)
            except BlockingIOError:
                return
            except OSError:  # the peer is gone: reading reports that
                pass
            self._outbox.popleft()
            seqpacket.close_all(fds)

    def receive_answers(self) -> tuple[list[tuple[ControlMessage, dict[str, Any]]], bool]:
        """Return the answered requests, each with the body of its reply, and whether the peer is still connected."""
        answers: list[tuple[ControlMessage, dict[str, Any]]] = []
        for _ in range(_MAX_BATCH):
            try:
                packet = seqpacket.receive(self._sock)
            except BlockingIOError:
                break
            except InvalidError:
                continue
            except OSError:
                return answers, False
            if packet is None:
                return answers, False
            reply, fds = packet
            seqpacket.close_all(fds)
            if reply.kind == "reply" and (request := self._unanswered.pop(reply.key, None)) is not None:
                answers.append((request, reply.body))
        return answers, True

    def close(self) -> None:
        if self._selector is not None:
            self._selector.unregister(self)
            self._selector = None
        while self._outbox:
            seqpacket.close_all(self._outbox.popleft()[1])
        self._sock.close()
