"""Failover to a backup service: its instances accept from this service's socket while no own instance is ready."""

from __future__ import annotations

import dataclasses
import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from selectors import BaseSelector

from scanflow.backends.failover import Failover, update_failover
from scanflow.backends.local.services.control.channel import Channel
from scanflow.backends.local.services.control.supervisor_control import start_supervisor
from scanflow.backends.local.services.service_layout import ServiceFolder, ServicesHome
from scanflow.backends.local.services.state.desired import read_desired
from scanflow.backends.local.services.state.observed import is_supervised
from scanflow.backends.local.services.supervisor.attempts import list_newest_attempts
from scanflow.errors import ScanflowError
from scanflow.instance_messages import ListenerTls

_POLL_S = 0.5
_WAKE_S = 2.0


@dataclass(slots=True)
class _Lender:
    channel: Channel
    ready: bool = False
    listens: bool = False
    polled_at: float = 0.0


class Backup:
    """The connections to the instances of the backup, if there is one, and the failover decision.

    They listen as long as the connection lasts over which they were requested to, so a killed supervisor leaves nothing
    behind.
    """

    def __init__(self, folder: ServiceFolder, selector: BaseSelector) -> None:
        self._service, self._home, self._selector = folder.path.name, ServicesHome(folder.path.parent), selector
        self._name: str | None = None
        self._failover = Failover()
        self._lenders: dict[Path, _Lender] = {}
        self._looked = self._last_wake = 0.0

    @property
    def active(self) -> bool:
        return self._failover.active == "backup"

    @property
    def is_answering(self) -> bool:
        return any(lender.listens and lender.ready for lender in self._lenders.values())

    def poll(
        self,
        name: str | None,
        *,
        ready: int,
        wanted: int,
        hand_back_after: int,
        listener: socket.socket | None,
        tls: ListenerTls,
        now: float,
    ) -> str | None:
        """Decide on failover, and apply it; return a description of a change. Without a ``name`` there is no backup."""
        if name != self._name:
            self.close()
            self._name, self._failover = name, Failover()
        if name is None:
            return None
        self._find(name, now)
        previous = self._failover
        able = any(lender.ready for lender in self._lenders.values())
        self._failover = update_failover(
            previous, ready=ready, wanted=wanted, backup=able, hand_back_after=hand_back_after
        )
        if not able and wanted and not ready:
            self._wake_backup(name, now)
        self.lend(listener, tls)
        if self._failover.active == previous.active:
            return None
        return (
            f"the backup {name!r} takes over: no instance is ready"
            if self.active
            else f"the backup {name!r} fails back"
        )

    def _find(self, name: str, now: float) -> None:
        if now - self._looked >= _POLL_S:
            self._looked = now
            for _, path in list_newest_attempts(self._home.service(name)):
                if path not in self._lenders and (channel := Channel.connect(path / "control")) is not None:
                    self._lenders[path] = _Lender(channel)
                    channel.watch(self._selector, partial(self._receive, path))
        for lender in self._lenders.values():
            lender.channel.flush()
            if now - lender.polled_at >= _POLL_S and not lender.channel.is_awaiting("state"):
                lender.polled_at = now
                lender.channel.ask("state")

    def lend(self, listener: socket.socket | None, tls: ListenerTls) -> None:
        """Have the backup's ready instances accept requests, if failover is active. ``tls``: this service's own."""
        for lender in self._lenders.values():
            if self.active and lender.ready and not lender.listens and listener is not None:
                lender.channel.ask("listen", key=self._service, body=dataclasses.asdict(tls), fds=[listener.fileno()])
                lender.listens = True
            elif lender.listens and not self.active:
                lender.channel.ask("ignore", key=self._service)
                lender.listens = False

    def _receive(self, path: Path) -> None:
        lender = self._lenders[path]
        replies, is_connected = lender.channel.receive_answers()
        for request, body in replies:
            if request.kind == "state":
                lender.ready = bool(body.get("ready"))
            elif request.kind == "listen" and "error" in body:
                lender.listens = False
        if not is_connected:
            self._lenders.pop(path).channel.close()

    def _wake_backup(self, name: str, now: float) -> None:
        """Connect to the port of a backup that is scaled to zero, to wake it; start its supervisor if there is none."""
        if now - self._last_wake < _WAKE_S:
            return
        self._last_wake = now
        folder = self._home.service(name)
        try:
            desired = read_desired(folder)
            if desired is None or desired.deleted:
                return
            if not is_supervised(folder):
                start_supervisor(folder)
                return
        except ScanflowError:
            return
        with socket.socket(socket.AF_INET6 if ":" in desired.host else socket.AF_INET) as caller:
            caller.setblocking(False)
            caller.connect_ex((desired.host, desired.port))

    def close(self) -> None:
        while self._lenders:
            self._lenders.popitem()[1].channel.close()
