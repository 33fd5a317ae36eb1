"""The backup of a service, over time: who answers now, and what is lent to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from socket import socket

from scanflow.backends.local.services.channel import Channel
from scanflow.backends.local.services.failover import Failover, look
from scanflow.backends.local.services.layout import ServiceFolder, ServicesHome
from scanflow.backends.local.services.link import Link
from scanflow.wire import Exchange

__all__ = ["Standby"]

Watch = Callable[[Channel, Callable[[], None]], None]
Heard = Callable[[Link, Exchange, list[int]], None]


class Standby:
    """The connection to the backup, if there is one, and the decision when it answers."""

    def __init__(
        self, folder: ServiceFolder, *, watch: Watch, unwatch: Callable[[Channel], None], heard: Heard
    ) -> None:
        """``heard`` is told of each message of the backup's supervisor."""
        self._folder, self._watch, self._unwatch, self._heard = folder, watch, unwatch, heard
        self._failover = Failover()
        self._link: Link | None = None

    @property
    def active(self) -> bool:
        """Whether the backup answers now."""
        return self._failover.active == "backup" and self._link is not None

    @property
    def ready(self) -> bool:
        """Whether it could."""
        return self._link is not None and self._link.ready

    @property
    def lent(self) -> bool:
        """Whether it accepts on sockets of this service."""
        return self._link is not None and bool(self._link.lent)

    def look(self, backup: str | None, *, ready: int, wanted: int, hand_back_after: int, now: float) -> str | None:
        """Decide again who answers; return what changed, in words. ``backup`` None: there is none any more."""
        self._connect(backup, now)
        before = self._failover
        self._failover = look(before, ready=ready, wanted=wanted, backup=self.ready, hand_back_after=hand_back_after)
        if self._failover.active == before.active:
            return None
        if self._failover.active == "backup":
            return f"the backup {backup!r} takes over: no instance is ready"
        return f"the backup {backup!r} hands back"

    def _connect(self, backup: str | None, now: float) -> None:
        if self._link is not None and backup != self._link.backup.path.name:
            self._link.take_back()
            self.close()
        if backup is None:
            return
        if self._link is None:
            self._link = Link(self._folder.path.name, ServicesHome(self._folder.path.parent).service(backup))
        if self._link.look(now) and self._link.channel is not None:
            self._watch(self._link.channel, self._hear)

    def _hear(self) -> None:
        link = self._link
        if link is None or link.channel is None:
            return
        messages, there = link.channel.read()
        for message, fds in messages:
            self._heard(link, message, fds)
        if not there:
            self._unwatch(link.channel)
            link.close()

    def lend(self, sockets: Mapping[str, socket]) -> None:
        """Let the backup accept on these."""
        if self._link is not None:
            self._link.lend(sockets)

    def take_back(self) -> None:
        """Let it accept no more."""
        if self._link is not None:
            self._link.take_back()

    def take(self, body: dict[str, object], fds: list[int]) -> bool:
        """Hand it a connection; say whether that was possible."""
        return self._link is not None and self._link.take(body, fds)

    def close(self) -> None:
        """Let go of it; what is lent stays lent."""
        if self._link is not None:
            if self._link.channel is not None:
                self._unwatch(self._link.channel)
            self._link.close()
        self._link = None
