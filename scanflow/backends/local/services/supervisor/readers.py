"""Processes that wait for a report of this moment: each holds a connection, which is closed once it is written."""

from __future__ import annotations

import time
from contextlib import suppress
from math import inf
from socket import socket

PATIENCE_S = 0.5  # an instance that is busy or stuck keeps no reader longer than this


class Readers:
    def __init__(self) -> None:
        self._waiting: list[tuple[float, socket]] = []

    def add(self, peer: socket) -> None:
        self._waiting.append((time.monotonic(), peer))

    @property
    def since(self) -> float | None:
        """The time from which the newest reader wants the counts; None: nobody waits."""
        return self._waiting[-1][0] if self._waiting else None

    def has_due(self, counted: float, now: float) -> bool:
        """Return whether a reader has waited enough. ``counted``: when the oldest count of an instance was taken."""
        return any(at <= counted or now - at > PATIENCE_S for at, _ in self._waiting)

    def answer(self, counted: float, now: float) -> None:
        """Tell those that are due that the report is written."""
        kept = []
        for at, peer in self._waiting:
            if at <= counted or now - at > PATIENCE_S:
                with suppress(OSError):
                    peer.close()
            else:
                kept.append((at, peer))
        self._waiting = kept

    def close(self) -> None:
        self.answer(inf, 0.0)
