"""The backup of a service: its instances accept from this service's listening socket while no own instance is ready."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from selectors import BaseSelector

from scanflow.backends.local.services.control.channel import Channel
from scanflow.backends.local.services.control.rollout import start_supervisor
from scanflow.backends.local.services.layout import ServiceFolder, ServicesHome
from scanflow.backends.local.services.state.desired import read_desired
from scanflow.backends.local.services.state.observed import is_supervised
from scanflow.backends.local.services.supervisor.attempts import newest
from scanflow.backends.service_decisions import Failover, look
from scanflow.errors import ScanflowError

_LOOK_S = 0.5
_ROUSE_S = 2.0


@dataclass(slots=True)
class _Lender:
    channel: Channel
    ready: bool = False
    listens: bool = False
    looked: float = 0.0


class Backup:
    """The connections to the backup's instances, if there is a backup, and the decision when they answer.

    They listen for as long as the connection over which they were asked lasts, so a supervisor that is killed leaves
    nothing behind.
    """

    def __init__(self, folder: ServiceFolder, selector: BaseSelector) -> None:
        self._service, self._home, self._selector = folder.path.name, ServicesHome(folder.path.parent), selector
        self._name: str | None = None
        self._failover = Failover()
        self._lenders: dict[Path, _Lender] = {}
        self._looked = self._roused = 0.0

    @property
    def active(self) -> bool:
        return self._failover.active == "backup"

    @property
    def answers(self) -> bool:
        return any(one.listens and one.ready for one in self._lenders.values())

    def look(
        self,
        name: str | None,
        *,
        ready: int,
        wanted: int,
        hand_back_after: int,
        listener: socket.socket | None,
        now: float,
    ) -> str | None:
        """Decide again who answers, and have that done; return what changed, in words. Without a ``name`` there is no
        backup."""
        if name != self._name:
            self.close()
            self._name, self._failover = name, Failover()
        if name is None:
            return None
        self._find(name, now)
        before = self._failover
        able = any(one.ready for one in self._lenders.values())
        self._failover = look(before, ready=ready, wanted=wanted, backup=able, hand_back_after=hand_back_after)
        if not able and wanted and not ready:
            self._rouse(name, now)
        self.lend(listener)
        if self._failover.active == before.active:
            return None
        return (
            f"the backup {name!r} takes over: no instance is ready"
            if self.active
            else f"the backup {name!r} hands back"
        )

    def _find(self, name: str, now: float) -> None:
        if now - self._looked >= _LOOK_S:
            self._looked = now
            for _, path in newest(self._home.service(name)):
                if path not in self._lenders and (channel := Channel.to(path / "control")) is not None:
                    self._lenders[path] = _Lender(channel)
                    channel.watch(self._selector, partial(self._receive, path))
        for one in self._lenders.values():
            one.channel.flush()
            if now - one.looked >= _LOOK_S and not one.channel.awaits("state"):
                one.looked = now
                one.channel.ask("state")

    def lend(self, listener: socket.socket | None) -> None:
        """Have the backup's instances that are ready by now accept too, if the backup is to answer."""
        for one in self._lenders.values():
            if self.active and one.ready and not one.listens and listener is not None:
                one.channel.ask("listen", key=self._service, fds=[listener.fileno()])
                one.listens = True
            elif one.listens and not self.active:
                one.channel.ask("ignore", key=self._service)
                one.listens = False

    def _receive(self, path: Path) -> None:
        one = self._lenders[path]
        answers, there = one.channel.answers()
        for asked, body in answers:
            if asked.kind == "state":
                one.ready = bool(body.get("ready"))
            elif asked.kind == "listen" and "error" in body:
                one.listens = False
        if not there:
            self._lenders.pop(path).channel.close()

    def _rouse(self, name: str, now: float) -> None:
        """Have a backup that sleeps, or that nobody watches, get ready: a connection to its port wakes it."""
        if now - self._roused < _ROUSE_S:
            return
        self._roused = now
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
