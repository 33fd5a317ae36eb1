"""A service's connection to the supervisor of its backup, over which its listening sockets and connections are lent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from socket import socket
from typing import Any

from scanflow.backends.local.services.channel import Channel
from scanflow.backends.local.services.layout import ServiceFolder
from scanflow.backends.local.services.start import start_supervisor
from scanflow.wire import Exchange

__all__ = ["Link"]

_LOOK_S = 1.0
_START_S = 5.0


class Link:
    """Level-triggered: whenever it is made anew, it says again what is lent."""

    def __init__(self, service: str, backup: ServiceFolder) -> None:
        self.service, self.backup = service, backup
        self.channel: Channel | None = None
        self.lent: set[str] = set()
        self._ready = False
        self._looked = self._started = 0.0

    @property
    def ready(self) -> bool:
        """Whether the backup could answer now."""
        return self.channel is not None and self._ready

    def look(self, now: float) -> bool:
        """Ask the backup how it is, and connect where there is no connection; say whether there is a new one."""
        if self.channel is None:
            if not self.backup.stored.exists():
                return False
            self.channel = Channel.to(self.backup.socket)
            if self.channel is None:
                if now - self._started > _START_S:
                    self._started = now
                    start_supervisor(self.backup)
                return False
            self.lent = set()
            self.channel.ask("state", {"service": self.service})
            self._looked = now
            return True
        if now - self._looked >= _LOOK_S and not self.channel.asked("state"):
            self._looked = now
            self.channel.ask("state", {"service": self.service})
        return False

    def replied(self, message: Exchange) -> dict[str, Any] | None:
        """Take note of an answer; return what it says of sockets that are lent from an earlier time."""
        sent = None if self.channel is None else self.channel.answered(message)
        if sent is None:
            return None
        if sent.kind == "state" and "ready" in message.body:
            self._ready = bool(message.body["ready"])
            return message.body
        return message.body if "listener" in sent.body else None

    def lend(self, sockets: Mapping[str, socket]) -> None:
        """Let the backup accept on these too."""
        for key, one in sockets.items():
            if key not in self.lent and self.channel is not None:
                self.channel.ask("listen", {}, key=f"{self.service}/{key}", fds=[one.fileno()])
                self.lent.add(key)

    def take_back(self) -> None:
        """Let the backup accept on none any more."""
        if self.channel is not None:
            self.channel.ask("ignore", {}, key=f"{self.service}/")
        self.lent = set()

    def take(self, body: dict[str, Any], fds: Sequence[int]) -> bool:
        """Hand a connection to the backup; say whether that was possible."""
        if not self.ready or self.channel is None:
            return False
        self.channel.ask("take", body, fds=fds)
        return True

    def close(self) -> None:
        """End the connection; what is lent stays lent."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        self._ready = False
        self.lent = set()
