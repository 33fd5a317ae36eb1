"""What a supervisor hears: from its instances, from keepers of dead ones, from commands, from other supervisors."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from scanflow.backends.local.services.channel import Channel
from scanflow.backends.local.services.crew import Crew
from scanflow.backends.local.services.doors import Doors
from scanflow.backends.local.services.held import Held, Holding
from scanflow.backends.local.services.instance import Instance
from scanflow.backends.local.services.layout import ServiceFolder
from scanflow.backends.local.services.link import Link
from scanflow.wire import Exchange

__all__ = ["Front"]


class Front:
    """Sorts messages, and holds the connections that came with them."""

    def __init__(self, folder: ServiceFolder, crew: Crew, doors: Doors) -> None:
        self._folder, self._crew, self._doors = folder, crew, doors
        self.holding = Holding()

    def heard(self, one: Instance, message: Exchange, fds: list[int], now: float) -> None:
        """Take note of what an instance says."""
        if message.kind == "give":
            self.holding.add(message, fds, gave=True, instance=one.name)
            return
        if message.kind == "reply":
            self.holding.arrived(one.name, message.key)
            key = message.body.get("listener")
            if isinstance(key, str) and fds:
                self._doors.recover(key, fds.pop(0), one.name)
            self._crew.replied(one, message, now)
        _close(fds)

    def recover(self, one: Instance, message: Exchange) -> None:
        """Ask an adopted instance for the sockets it listens on, which an earlier supervisor made."""
        keys = message.body.get("listeners")
        for key in keys if isinstance(keys, list) and one.channel is not None else ():
            if key not in self._doors.own and key not in self._doors.guests and one.channel is not None:
                one.channel.ask("state", {"listener": str(key)})

    def told(self, peer: Channel, message: Exchange, fds: list[int], *, ready: bool) -> None:
        """Take note of what somebody says on the supervisor's own socket; ``ready``: whether anybody here answers."""
        match message.kind:
            case "orphan" | "take":
                self.holding.add(message, fds, gave=message.kind == "take")
                fds = []
            case "listen" if fds and "/" in message.key:
                self._doors.welcome(message.key, fds.pop(0))
            case "ignore" if "/" in message.key:
                self._doors.send_away(message.key, self._crew.all)
            case "state":
                self._tell(peer, message, ready=ready)
                return
            case _:
                pass
        _close(fds)
        if message.kind != "orphan":
            peer.tell("reply", {}, key=message.key)

    def _tell(self, peer: Channel, message: Exchange, *, ready: bool) -> None:
        key = message.body.get("listener")
        if isinstance(key, str):
            sock = self._doors.guests.get(key)
            peer.tell("reply", {"listener": key}, key=message.key, fds=[] if sock is None else [sock.fileno()])
            return
        prefix = f"{message.body.get('service')}/"
        guests = [key for key in self._doors.guests if key.startswith(prefix)]
        peer.tell("reply", {"ready": ready, "listeners": guests}, key=message.key)

    def heard_of_backup(self, link: Link, message: Exchange, fds: list[int]) -> None:
        """Take note of what the backup's supervisor answers."""
        told = link.replied(message)
        if told is not None and fds and isinstance(told.get("listener"), str):
            self._doors.recover(told["listener"].partition("/")[2], fds.pop(0), None)
        for key in (told or {}).get("listeners") or ():
            own = str(key).partition("/")[2]
            link.lent.add(own)
            if own not in self._doors.own and link.channel is not None:
                link.channel.ask("state", {"listener": str(key)})
        _close(fds)

    def note_endings(self) -> None:
        """Learn how the instances of connections ended, where that is known by now."""
        for held in self.holding.all:
            if held.gave or held.ending is not None:
                continue
            one = self._crew.all.get(held.instance)
            if one is not None and one.alive and not one.is_process:
                continue  # it has just died: its shim tells in a moment how
            held.ending, held.ended = self._crew.endings.get(held.instance, ("crashed", time.monotonic()))

    def give_to(self, one: Instance, held: Held, body: dict[str, object], fds: Sequence[int]) -> None:
        """Hand a connection to an instance; a copy is kept until it has it."""
        assert one.channel is not None
        key = one.channel.ask("take", {"replays": body["replays"]}, fds=fds)
        self.holding.passed(held, one.name, key)
        one.state["connections"] = int(one.state.get("connections") or 0) + 1


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
